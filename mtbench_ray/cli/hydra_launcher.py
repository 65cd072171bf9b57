"""Hydra launcher that hands all jobs of a multirun to one run.

The basic launcher runs job after job; this one composes every job first, gives each its own output
folder and config as Hydra does, and then calls the run once with all of them, so that a sweep is
one stream. Hydra's ``run_job`` swaps global state and cannot serve here.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from mtbench_ray.system.redact import hidden

RunMany = Callable[[list[DictConfig], list[list[str]]], list[Any]]
"""Takes the task configs and the overrides of all jobs; gives a return value, or an exception, for
each job."""


class MtbenchLauncher(Launcher):  # type: ignore[misc]
    """One run for all jobs of a multirun."""

    run_many: RunMany

    def __init__(self, **_: Any) -> None:
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None
        self._validated: dict[tuple[str, ...], DictConfig] = {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what Hydra gives."""
        self.config = config
        self.hydra_context = hydra_context
        # A sweeper composes each job to validate it, just before it is launched.
        self._compose = hydra_context.config_loader.load_sweep_config
        hydra_context.config_loader.load_sweep_config = self._validate

    def _validate(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        config: DictConfig = self._compose(master_config, sweep_overrides)
        self._validated[tuple(sweep_overrides)] = config
        return config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Compose all jobs, then run them as one.

        Raises:
            Exception: A job does not compose; nothing has run then.
        """
        assert self.config is not None
        assert self.hydra_context is not None
        setup_globals()
        returns: list[JobReturn] = []
        for index, overrides in enumerate(job_overrides, start=initial_job_idx):
            config = self._validated.pop(tuple(overrides), None)
            if config is None:
                config = self._compose(self.config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = str(index)
                config.hydra.job.num = index
            HydraConfig.instance().set_config(config)
            folder = Path(str(config.hydra.sweep.dir)) / str(config.hydra.sweep.subdir)
            with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
                config.hydra.runtime.output_dir = str(folder.resolve())
            task = OmegaConf.create(config)
            with read_write(task), open_dict(task):
                del task["hydra"]
            OmegaConf.resolve(task)
            saved = folder / ".hydra"
            saved.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(hidden(OmegaConf.to_container(task)), saved / "config.yaml")
            OmegaConf.save(config.hydra, saved / "hydra.yaml")
            OmegaConf.save(list(overrides), saved / "overrides.yaml")
            returns.append(
                JobReturn(
                    overrides=filter_overrides(overrides),
                    cfg=task,
                    hydra_cfg=config,
                    working_dir=str(Path.cwd()),
                    task_name=config.hydra.job.name,
                )
            )
        values = type(self).run_many(
            [job.cfg for job in returns], [list(job.overrides) for job in returns]
        )
        for job, value in zip(returns, values, strict=True):
            job.status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
            job.return_value = value
        return returns


# Hydra takes launchers from the hydra_plugins namespace only, and does not discover that namespace
# in an editable install; this module under such a name too works in every install.
MtbenchLauncher.__module__ = "hydra_plugins.mtbench_ray"


def _join_namespace() -> None:
    try:
        namespace = importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:
        namespace = types.ModuleType("hydra_plugins")
        namespace.__path__ = []
        sys.modules["hydra_plugins"] = namespace
    sys.modules["hydra_plugins.mtbench_ray"] = sys.modules[__name__]
    namespace.mtbench_ray = sys.modules[__name__]  # type: ignore[attr-defined]


@dataclass
class LauncherConf:
    """Config node of ``hydra/launcher=mtbench``."""

    _target_: str = "hydra_plugins.mtbench_ray.MtbenchLauncher"


def register(run_many: RunMany) -> None:
    """Make ``hydra/launcher=mtbench`` known, with the function that runs all jobs."""
    _join_namespace()
    MtbenchLauncher.run_many = staticmethod(run_many)
    Plugins.instance().register(MtbenchLauncher)
    ConfigStore.instance().store(
        group="hydra/launcher", name="mtbench", node=LauncherConf, provider="mtbench_ray"
    )
