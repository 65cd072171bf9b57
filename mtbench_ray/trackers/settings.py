"""``tracker.*``, checked before a run pays for anything."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from mtbench_ray.config import TrackerConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.naming import Naming
from mtbench_ray.trackers.base import Payload, Place
from mtbench_ray.trackers.process import TrackerProcess

_PROJECT = "mtbench_ray"
_PROJECT_ENV = {"wandb": "WANDB_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LOGIN = re.compile(r"(?<=//)[^/?#@]*@")
_CHECK_S = 60.0


def place_of(tracker: TrackerConfig, workspace: Path) -> Place:
    """The settings with nothing left open.

    Raises:
        UserError: One is wrong, or the tracker's package is not installed.
    """
    kind, uri = tracker.kind, (tracker.uri or "").strip()
    if find_spec(kind) is None:
        raise UserError(f"tracker={kind} needs its package", f"pip install 'mtbench-ray[{kind}]'")
    offline = tracker.offline
    if kind == "wandb":
        offline = offline or os.environ.get("WANDB_MODE", "") in ("offline", "dryrun")
        if uri:
            raise UserError(
                "tracker.uri is not of wandb", "set WANDB_BASE_URL for a server of yours"
            )
        if offline and tracker.run_id:
            raise UserError(
                "tracker.run_id names a run that wandb cannot write into while it is offline: the"
                " upload would write over the training's curves",
                "leave out tracker.run_id; tracker.project=PROJECT puts the scores beside the run",
            )
    elif offline:
        raise UserError(f"tracker.offline is of wandb, not of {kind}", "leave it out")
    if kind == "mlflow":
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            raise UserError(
                "tracker=mlflow needs to know where it sends to",
                "tracker.uri=http://HOST:5000, or a folder: tracker.uri=mlruns",
            )
    if kind == "tensorboard":
        uri = uri or str(workspace / "tensorboard")
        if _REMOTE.match(uri):
            raise UserError(f"tracker.uri={uri} is no folder", "tracker.uri=FOLDER")
    if uri and not _REMOTE.match(uri):
        uri = str(Path(uri).expanduser().absolute())
        _check_folder(Path(uri))
    if not re.fullmatch(r"[\w.\-]+(/[\w.\-]+)*", tracker.prefix):
        raise UserError(f"tracker.prefix={tracker.prefix} is no name", "tracker.prefix=mtbench")
    if tracker.timeout_s <= 0:
        raise UserError(
            f"tracker.timeout_s={tracker.timeout_s:g} is no time", "tracker.timeout_s=300"
        )
    return Place(
        kind=kind,
        uri=uri,
        project=tracker.project or os.environ.get(_PROJECT_ENV.get(kind, "")) or _PROJECT,
        run_id=tracker.run_id or "",
        offline=offline,
        folder=str(workspace.absolute()),
        prefix=tracker.prefix,
    )


def target_of(place: Place) -> str:
    """Where a place is, for the ledger: what is there once is not sent again."""
    uri = _LOGIN.sub("", place.uri)
    if uri and Path(uri).is_relative_to(place.folder):  # a workspace may be moved
        uri = str(Path(uri).relative_to(place.folder))
    return " ".join(filter(None, [place.kind, uri, place.project, place.run_id]))


def _check_folder(folder: Path) -> None:
    """Raises UserError where a folder is not there and cannot be made, or cannot be written."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"tracker.uri={folder}: {nearest} is no folder", "choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"tracker.uri={folder} cannot be written", "choose another folder")


class Checking:
    """A check of a tracker's settings, in part while other things are prepared.

    A context manager; what needs the tracker's package or its service runs in a process of its own
    from the first moment on.

    Args:
        workspace: The folder of the run.

    Raises:
        UserError: A setting is wrong.
    """

    def __init__(self, tracker: TrackerConfig, workspace: Path) -> None:
        self._tracker = tracker
        self._process: TrackerProcess | None = None
        if tracker.kind == "none":
            if tracker.run_id:
                raise UserError("tracker.run_id names a run of no tracker", "add tracker=wandb")
            return
        place = place_of(tracker, workspace)
        remote = bool(_REMOTE.match(place.uri)) or (place.kind == "wandb" and not place.offline)
        if remote or (place.run_id and place.kind != "tensorboard"):
            self._process = TrackerProcess()
            self._process.start(Payload(place))

    def wait(self, models: Iterable[str], naming: Naming, tell: Callable[[str], None]) -> None:
        """See to the end of it, before anything is paid.

        Args:
            models: Labels of the models of the run.
            naming: How they hold their steps.
            tell: Takes a line where the service cannot be reached, which is no mistake.

        Raises:
            UserError: A setting is wrong.
        """
        if self._tracker.run_id and self._tracker.step is None:
            without = [model for model in dict.fromkeys(models) if naming.step(model) is None]
            if len(without) > 1:
                raise UserError(
                    f"tracker.run_id is one run, and these have no training step in their names:"
                    f" {', '.join(without)}",
                    "leave out tracker.run_id: each has a run of its own then",
                )
        if self._process is None:
            return
        for line in self._process.wait(_CHECK_S):
            if "bad" in line:
                raise UserError(str(line["bad"]), str(line.get("hint", "")))
            if "error" in line:
                kind = self._tracker.kind
                tell(f"tracker={kind} cannot be reached: {line['error']}; the run goes on, and what"
                     " is missed is sent by the next one")  # fmt: skip

    def __enter__(self) -> Checking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.__exit__(kind, error, trace)
