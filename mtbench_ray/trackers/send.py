"""Sends what is new in a round of work, and notes what was sent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mtbench_ray.config import RunConfig, TrackerConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.naming import Naming
from mtbench_ray.reports.points import collect
from mtbench_ray.reports.results import Results, current
from mtbench_ray.schema import Evaluation
from mtbench_ray.trackers.base import Part, Payload, Picture, Place, Point, segment
from mtbench_ray.trackers.contents import COLUMNS, Found, found_in
from mtbench_ray.trackers.ledger import Ledger
from mtbench_ray.trackers.process import TrackerProcess, without_keys
from mtbench_ray.trackers.settings import place_of, target_of
from mtbench_ray.workspace.run_record import RunRecord

_ANY_STEP = ("wandb",)
"""Trackers whose steps may be parts of an epoch."""
Tell = Callable[[str], None]


def send(
    results: Results,
    rows: Sequence[Evaluation],
    config: RunConfig,
    record: RunRecord,
    naming: Naming,
    tell: Tell,
) -> None:
    """Send the evaluations of a round that the tracker does not have; see ``run/after_round.py``.

    One of which something is still to be tried is left for the run that does it. Never raises: what
    could not be sent is told, and sent by the next run.
    """
    kind = config.tracker.kind
    if kind == "none" or record.status == "interrupted":
        return
    said: list[str] = []

    def told(line: str) -> None:
        said.append(line)
        tell(line)

    try:
        _send(results, rows, config.tracker, naming, told)
    except Exception as error:  # a run does not end by its tracker
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        told(f"tracker={kind}: {without_keys(text)}; the next run sends it")
    workspace = results.workspace
    if said and (workspace.root / "runs" / record.run_id / "record.json").is_file():
        record.notes += said
        with contextlib.suppress(UserError):  # the disk, which the next row tells of
            workspace.save_run(record)


def _send(
    results: Results,
    rows: Sequence[Evaluation],
    tracker: TrackerConfig,
    naming: Naming,
    tell: Tell,
) -> None:
    root = results.workspace.root
    place = place_of(tracker, root)
    ledger = Ledger(root, target_of(place))
    found = [
        one for one in found_in(results, rows, place.prefix, naming, tracker.tables) if one.whole
    ]
    found = list(_placed(found, tracker, tell))
    by_run: dict[str, list[Found]] = {}
    for one in found:
        run = "" if place.run_id else one.run
        if ledger.is_new(run, one.evaluation_id, one.digest):
            by_run.setdefault(run, []).append(one)
    if not by_run:
        return
    new = {run: tuple(one.evaluation_id for one in mine) for run, mine in by_run.items()}
    digests = {one.evaluation_id: one.digest for mine in by_run.values() for one in mine}
    if place.offline:  # each file holds the whole run
        every = current(results.workspace)
        for one in _placed(found_in(results, every, place.prefix, naming, tracker.tables), tracker):
            earlier = one.run in by_run and ledger.was_sent(one.run, one.evaluation_id)
            if earlier and one.evaluation_id not in new[one.run]:
                by_run[one.run].append(one)
    with TrackerProcess() as process:
        parts = []
        for run, mine in by_run.items():
            mine.sort(key=lambda one: one.step or 0)
            pictures: tuple[Picture, ...] = ()
            if tracker.pictures:
                pictures = tuple(_curves(results, mine, place, naming, process.folder, tell))
            name = _short(run)
            if not place.run_id:
                name = ledger.name(run, name)
            points = tuple(_point(one, ledger.key(run, one.line, one.key)) for one in mine)
            parts.append(Part(run, name, ledger.tracker_id(run), points, pictures, new[run]))
        process.start(Payload(place, tuple(parts)))
        said = process.wait(tracker.timeout_s)
    sent = 0
    for line in said:
        if "id" in line and not ledger.tracker_id(line["run"]):
            ledger.add("run", line["run"], id=line["id"])
        for name in line.get("sent", ()):
            ledger.add("sent", line["run"], evaluation=name, digest=digests[name])
            sent += 1
        if "picture" in line:
            tell(f"tracker={place.kind}: a picture was not sent: {line['picture']}")
        for key in ("error", "bad"):
            if key in line:
                tell(f"tracker={place.kind}: {line[key]}; the next run sends it")
    if sent:
        tell(f"tracker={place.kind}: {sent} evaluation{'s' * (sent > 1)} {_where(place)}")


def _where(place: Place) -> str:
    if place.offline:
        return f"written; to send them: wandb sync {place.folder}/wandb/offline-run-*"
    if place.kind == "tensorboard":
        return f"written; to look at them: tensorboard --logdir {place.uri}"
    return "sent"


def _placed(
    found: Iterable[Found], tracker: TrackerConfig, tell: Tell | None = None
) -> Iterator[Found]:
    """Those with a step that the tracker takes; a model without one has that of the settings."""
    for one in found:
        if one.step is None:
            if tracker.step is None and tracker.run_id and tell:
                tell(f"tracker: {one.model} has no training step in its name and stands at step 0;"
                     " tracker.step=N says another one")  # fmt: skip
            yield dataclasses.replace(one, step=tracker.step or 0)
        elif tracker.kind in _ANY_STEP or float(one.step).is_integer():
            yield one
        elif tell:
            tell(f"tracker={tracker.kind} takes whole steps only: {one.model} is left out")


def _point(one: Found, key: str) -> Point:
    assert one.step is not None
    return Point(one.evaluation_id, one.model, one.step, key, one.values, COLUMNS, one.rows)


def _short(run: str) -> str:
    """The last part of a training run's path."""
    return segment(run.rstrip("/").rpartition("/")[2] or run)


def _curves(
    results: Results,
    found: Sequence[Found],
    place: Place,
    naming: Naming,
    folder: Path,
    tell: Tell,
) -> Iterator[Picture]:
    """The curves of the training runs of some evaluations, where they have two steps or more."""
    runs = {one.run for one in found}
    points, _ = collect([results.workspace], results.options, naming=naming)
    points = [
        point for point in points if naming.run(point.model) in runs and point.mean is not None
    ]
    for judge, metric in dict.fromkeys((point.judge, point.metric) for point in points):
        mine = [point for point in points if (point.judge, point.metric) == (judge, metric)]
        steps = {point.step for point in mine}
        if len(steps) < 2 or len({point.scale for point in mine}) > 1:
            continue
        try:
            from mtbench_ray.reports.plots import draw

            drawn = draw(mine, error="ci95", by="both")
        except UserError as error:  # matplotlib is not installed
            tell(f"tracker: no picture of the curve: {error.message}; {error.hint}")
            return
        for end, content in drawn.items():
            if end.endswith(".png"):
                path = folder / f"{segment(metric)}-{segment(judge)}-curve{end}"
                path.write_bytes(content)
                key = f"{place.prefix}/curves/{path.stem}"
                yield Picture(key, max(steps), str(path))
