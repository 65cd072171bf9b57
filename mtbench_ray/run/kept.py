"""What one round of work leaves for the next: Ray, warm engines and judges, what is left of the
budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from mtbench_ray.config import RunConfig
from mtbench_ray.generate.engine_pool import EnginePool
from mtbench_ray.judges.budget import Budget
from mtbench_ray.run.judge_pool import WarmServers
from mtbench_ray.run.ray_runtime import RayRuntime
from mtbench_ray.run.signals import Interrupts


@dataclass
class Kept:
    """Of a watch. A context manager.

    Attributes:
        introduced: The first lines of a run have been printed.
    """

    config: RunConfig
    interrupts: Interrupts
    ray: RayRuntime = field(init=False)
    engines: EnginePool = field(init=False, default_factory=EnginePool)
    servers: WarmServers = field(init=False, default_factory=WarmServers)
    budget: Budget = field(init=False)
    introduced: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.ray = RayRuntime(self.config.cluster, self.interrupts)
        self.budget = Budget(self.config.budget_usd)

    def release(self) -> None:
        """Give GPUs back until the next round."""
        self.engines.close()
        self.servers.close()

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        finally:
            self.ray.end()
