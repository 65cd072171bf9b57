"""Weights & Biases.

Online, the training's own run is written to in W&B's shared mode, in which several processes write
into one run. A run of our own is resumed by its id. Offline files cannot be continued by another
process: each holds all points of its run, and replaces the one before it unless that was synced.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from pathlib import Path
from typing import Any

from mtbench_ray.trackers.base import BadSetting, Part, Picture, Place, Point, Tracker


def run_arguments(place: Place, part: Part, new_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``wandb.init`` and its ``Settings`` get.

    >>> place = Place("wandb", "", "team/llm", "abc", False, "/work", "mtbench")
    >>> init, settings = run_arguments(place, Part("", "", "", ()), "")
    >>> init["entity"], init["project"], init["id"], init["mode"]
    ('team', 'llm', 'abc', 'shared')
    >>> settings["x_primary"], settings["x_update_finish_state"]
    (False, False)
    """
    entity, _, project = place.project.rpartition("/")
    init: dict[str, Any] = {"project": project, "entity": entity or None, "dir": place.folder}
    # Nothing of this machine or this process is of interest in a run about checkpoints.
    settings: dict[str, Any] = {
        "console": "off", "silent": True, "save_code": False, "x_disable_stats": True,
        "x_disable_meta": True, "x_disable_machine_info": True, "init_timeout": 60.0,
    }  # fmt: skip
    if place.run_id:
        init |= {"id": place.run_id, "mode": "shared"}
        settings |= {"x_primary": False, "x_update_finish_state": False, "x_label": "mtbench_ray"}
    elif place.offline:
        init |= {"id": part.tracker_id or new_id, "mode": "offline", "name": part.name}
    else:
        init |= {"id": part.tracker_id or new_id, "mode": "online", "name": part.name,
                 "resume": "allow"}  # fmt: skip
    return init, settings


class WandbRun(Tracker):
    """See the module."""

    def check(self) -> None:
        """As in :class:`Tracker`."""
        import wandb

        if self.place.offline:
            return
        try:
            api = wandb.Api(timeout=20)
            if self.place.run_id:
                entity, _, project = self.place.project.rpartition("/")
                path = f"{entity or api.default_entity}/{project}/{self.place.run_id}"
                try:
                    api.run(path)
                except ValueError as error:
                    raise BadSetting(
                        f"tracker.run_id={self.place.run_id} is no run of wandb's {project}",
                        "tracker.project=ENTITY/PROJECT and the id in the address of the run",
                    ) from error
            else:
                _ = api.default_entity
        except wandb.errors.UsageError as error:
            raise BadSetting(
                f"wandb: {error}",
                "set WANDB_API_KEY or run `wandb login`; tracker.offline=true needs no key",
            ) from error
        except wandb.errors.AuthenticationError as error:
            if any(code in str(error) for code in ("401", "403")):
                raise BadSetting("wandb does not take the key", "check WANDB_API_KEY") from error
            raise

    def open(self, part: Part) -> str:
        """As in :class:`Tracker`."""
        import wandb

        init, settings = run_arguments(self.place, part, secrets.token_hex(4))
        self._run = wandb.init(settings=wandb.Settings(**settings), **init)
        step = f"{self.place.prefix}/step"
        self._step = step
        self._run.define_metric(step, hidden=True)
        self._run.define_metric(f"{self.place.prefix}/*", step_metric=step)
        return str(self._run.id)

    def point(self, point: Point) -> None:
        """As in :class:`Tracker`."""
        import wandb

        line: dict[str, Any] = point.named()
        if point.rows:
            table = wandb.Table(columns=list(point.columns), data=[list(row) for row in point.rows])
            line[f"{point.key}/rows"] = table
        self._run.log({self._step: point.step, **line})
        said = f"{point.key} step {point.step}"
        self._run.config.update({f"{self.place.prefix}.{point.evaluation_id}": said})

    def picture(self, picture: Picture) -> None:
        """As in :class:`Tracker`."""
        import wandb

        self._run.log({self._step: picture.step, picture.key: wandb.Image(picture.path)})

    def close(self) -> None:
        """As in :class:`Tracker`."""
        folder = Path(self._run.dir).parent
        self._run.finish()
        if self.place.offline:
            for earlier in folder.parent.glob(f"offline-run-*-{self._run.id}"):
                if earlier != folder and not list(earlier.glob("*.synced")):
                    with contextlib.suppress(OSError):
                        shutil.rmtree(earlier)
