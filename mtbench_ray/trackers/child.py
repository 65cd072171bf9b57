"""The process in which a tracker's package runs: ``python -m mtbench_ray.trackers.child FOLDER``.

``FOLDER/payload.json`` says what is to be sent. ``FOLDER/said.jsonl`` gets a line for each thing
that is safe: the id of a run, the evaluations in it; and one for each that went wrong.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from mtbench_ray.trackers.base import BadSetting, Part, Payload, Place, Tracker

_LONG = 200
"""Letters of an error that are told; the whole of it is in the process's output."""


def tracker_of(place: Place) -> Tracker:
    """The tracker of a place; its package is imported here."""
    if place.kind == "wandb":
        from mtbench_ray.trackers.wandb_run import WandbRun

        return WandbRun(place)
    if place.kind == "mlflow":
        from mtbench_ray.trackers.mlflow_run import MlflowRun

        return MlflowRun(place)
    if place.kind == "tensorboard":
        from mtbench_ray.trackers.tensorboard_files import TensorboardFiles

        return TensorboardFiles(place)
    from mtbench_ray.trackers.trackio_run import TrackioRun

    return TrackioRun(place)


def main(folder: Path) -> int:
    """Send what a folder holds; returns 0 where all is sent."""
    with (folder / "said.jsonl").open("a", encoding="utf-8") as file:

        def say(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        try:
            payload = Payload.of(json.loads((folder / "payload.json").read_text("utf-8")))
            tracker = tracker_of(payload.place)
            if not payload.parts:
                tracker.check()
            good = [_send(tracker, part, say) for part in payload.parts]
        except BadSetting as error:
            say(bad=error.message, hint=error.hint)
            return 2
        except Exception as error:
            say(error=_told(error))
            return 1
    return 0 if all(good) else 1


def _send(tracker: Tracker, part: Part, say: Any) -> bool:
    """One run; another may go where this one does not."""
    try:
        name = tracker.open(part)
        say(run=part.run, id=name)
        for point in part.points:
            tracker.point(point)
        for picture in part.pictures:
            try:
                tracker.picture(picture)
            except Exception as error:  # scores go before pictures
                say(picture=_told(error))
        tracker.close()
    except BadSetting:
        raise
    except Exception as error:
        say(error=_told(error))
        return False
    say(run=part.run, sent=list(part.new))
    return True


def _told(error: Exception) -> str:
    traceback.print_exception(error)
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
