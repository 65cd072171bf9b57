"""``report timeline``: what a run did when. As text, or as a trace that Perfetto and Chrome draw.

A run's ``timeline.jsonl`` becomes stretches of time in lanes: one for the run itself, one for each
engine (its starts with their parts, its swaps, the answers to each model in between), one for the
turns of each model and one for the judge's calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError
from mtbench_ray.reports.tables import label
from mtbench_ray.workspace.journal import read, replacing
from mtbench_ray.workspace.workspace import Workspace

FORMATS = ("table", "trace")
_RUN, _JUDGE = "run", "judge calls"
_ROUNDED = 0.01
"""Seconds by which two times that are meant to be the same may differ."""
_WIDTH = 60
"""Columns of the text's time axis."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time.

    Attributes:
        lane: Where it is drawn.
        kind: ``phase``, ``engine``, ``answers``, ``turn`` or ``judgment``.
        begin, end: Seconds since the epoch.
        detail: What else is known of it.
    """

    lane: str
    kind: str
    name: str
    begin: float
    end: float
    detail: str = ""


def spans_of(events: Sequence[dict[str, Any]]) -> list[Span]:
    """Stretches of time of a run's events, in order of their beginnings.

    Events of older versions do not say when a turn was begun: these have no length.
    """
    found: list[Span] = []
    for event in events:
        if event["event"] == "turn":
            model, end = event.get("model", "answers"), event["generated"]
            begin = event.get("begun", end)
            found.append(Span(f"turns of {model}", "turn", f"turn {event['turn']}", begin, end,
                              event["status"]))  # fmt: skip
        elif event["event"] == "judgment":
            found.append(Span(_JUDGE, "judgment", f"turn {event['turn']}", event["started"],
                              event["judged"], event["status"]))  # fmt: skip
        elif event["event"] in ("engine", "phase"):
            end = event.get("ended", event["t"])
            phase = event["event"] == "phase"
            lane = f"engine {event['replica']}" if event["replica"] else _RUN
            name = event["name"] if phase else f"{event['kind']} {label(event['model'])}"
            found.append(Span(lane, event["event"], name, end - event["seconds"], end,
                              "" if phase else event["detail"]))  # fmt: skip
    found += _answers(events, found)
    found = [_within(span, found) if span.kind == "phase" else span for span in found]
    return sorted(found, key=lambda span: (span.begin, -span.end))


def _within(phase: Span, spans: Sequence[Span]) -> Span:
    """A phase that ends where its start does, though the clock's last digits say otherwise."""
    for span in spans:
        whole = span.kind == "engine" and span.lane == phase.lane
        if whole and span.begin - _ROUNDED <= phase.begin and phase.end <= span.end + _ROUNDED:
            return replace(phase, begin=max(phase.begin, span.begin), end=min(phase.end, span.end))
    return phase


def _answers(events: Sequence[dict[str, Any]], spans: Sequence[Span]) -> list[Span]:
    """From an engine's first to its last turn of each model.

    A turn does not say which of several engines of its model it came from: then each has all.
    """
    turns: dict[str, list[Span]] = {}
    for span in spans:
        if span.kind == "turn":
            turns.setdefault(span.lane, []).append(span)
    loads: dict[str, list[tuple[float, str]]] = {}
    for event in events:
        if event["event"] == "engine" and event["kind"] != "failed":
            loads.setdefault(event["replica"], []).append(
                (event.get("ended", event["t"]), event["model"])
            )
    found = []
    for replica, mine in loads.items():
        for number, (begin, model) in enumerate(mine):
            end = mine[number + 1][0] if number + 1 < len(mine) else math.inf
            inside = [turn for turn in turns.get(f"turns of {model}", ())
                      if begin - 1 <= turn.end <= end]  # fmt: skip
            if inside:
                first, last = min(turn.begin for turn in inside), max(turn.end for turn in inside)
                found.append(Span(f"engine {replica}", "answers", label(model), max(first, begin),
                                  last, f"{len(inside)} turns"))  # fmt: skip
    return found


def trace_of(spans: Sequence[Span]) -> dict[str, Any]:
    """The spans in Chrome's trace event format (an object of ``traceEvents``), times in
    microseconds from the first span's beginning.

    Each lane is a process. What overlaps in it lies in rows (threads) of its own, as few as it
    takes; parts of a stretch stay in its row.
    """
    began = min((span.begin for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    lanes = list(dict.fromkeys(span.lane for span in sorted(spans, key=_lane_order)))
    for number, lane in enumerate(lanes, start=1):
        events.append({"ph": "M", "name": "process_name", "pid": number, "tid": 0,
                       "args": {"name": lane}})  # fmt: skip
        events.append({"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0,
                       "args": {"sort_index": number}})  # fmt: skip
        rows: list[list[int]] = []
        for span in [one for one in spans if one.lane == lane]:
            begin, end = round(1e6 * (span.begin - began)), round(1e6 * (span.end - began))
            row = next((n for n, open_ in enumerate(rows) if _fits(open_, begin, end)), len(rows))
            if row == len(rows):
                rows.append([])
                events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": row + 1,
                               "args": {"name": f"{lane} {row + 1}"}})  # fmt: skip
            rows[row] = [*(one for one in rows[row] if one > begin), end]
            events.append({"ph": "X", "name": span.name, "cat": span.kind, "pid": number,
                           "tid": row + 1, "ts": begin, "dur": end - begin,
                           "args": {"detail": span.detail}})  # fmt: skip
        if any(span.kind in ("turn", "judgment") for span in spans if span.lane == lane):
            events += [
                {"ph": "C", "name": "at once", "pid": number, "tid": 0, "ts": at,
                 "args": {"count": count}}
                for at, count in _counts(spans, lane, began)
            ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _fits(open_: Sequence[int], begin: int, end: int) -> bool:
    """Whether a stretch lies in a row: within all that is still open there, or after it."""
    return all(end <= one for one in open_ if one > begin)


def _counts(spans: Sequence[Span], lane: str, began: float) -> list[tuple[int, int]]:
    """How many of a lane's stretches there are at once, whenever that changes."""
    changes: dict[int, int] = {}
    for span in spans:
        if span.lane == lane:
            for at, change in ((span.begin, 1), (span.end, -1)):
                place = round(1e6 * (at - began))
                changes[place] = changes.get(place, 0) + change
    count, found = 0, []
    for place, change in sorted(changes.items()):
        count += change
        found.append((place, count))
    return found


def _lane_order(span: Span) -> tuple[int, float]:
    order = {"phase": 1, "engine": 1, "answers": 1, "turn": 2, "judgment": 3}
    return (0 if span.lane == _RUN else order[span.kind]), span.begin


def text_of(spans: Sequence[Span], title: str) -> str:
    """The spans as lines under one time axis: stretches as bars, turns and judge calls as how many
    there were at once."""
    began, ended = min(span.begin for span in spans), max(span.end for span in spans)
    whole = max(ended - began, 1e-9)
    lines: list[tuple[str, str, str]] = []
    for lane in dict.fromkeys(span.lane for span in sorted(spans, key=_lane_order)):
        mine = [span for span in spans if span.lane == lane]
        if mine[0].kind in ("turn", "judgment"):
            most = max(count for _, count in _counts(spans, lane, began))
            first, last = mine[0].begin - began, max(span.end for span in mine) - began
            lines.append((lane, f"{len(mine)}, at most {most} at once, {first:.1f} to {last:.1f} s",
                          _density(mine, began, whole)))  # fmt: skip
            continue
        lines.append((lane, "", ""))
        for span in mine:
            depth = 4 if span.kind == "phase" and lane != _RUN else 2
            lines.append((" " * depth + span.name,
                          f"{span.begin - began:.1f} s + {span.end - span.begin:.2f}",
                          _bar(span, began, whole)))  # fmt: skip
    names, times = (max(len(line[place]) for line in lines) for place in (0, 1))
    axis = f"0 s{f'{whole:.1f} s':>{_WIDTH - 3}}"
    texts = [title, "", f"{'':<{names}}  {'':<{times}}  {axis}"]
    texts += [f"{name:<{names}}  {time:<{times}}  {bar}".rstrip() for name, time, bar in lines]
    return "\n".join(texts)


def _bar(span: Span, began: float, whole: float) -> str:
    first = min(_WIDTH - 1, int(_WIDTH * (span.begin - began) / whole))
    last = max(first + 1, round(_WIDTH * (span.end - began) / whole))
    return " " * first + {"phase": "-", "engine": "=", "answers": "#"}[span.kind] * (last - first)


def _density(spans: Sequence[Span], began: float, whole: float) -> str:
    """For each column the share of the busiest one, from ``.`` to ``@``; a space where none is."""
    busy = [0.0] * _WIDTH
    for span in spans:
        first, last = (_WIDTH * (at - began) / whole for at in (span.begin, span.end))
        for column in range(min(int(first), _WIDTH - 1), min(int(last), _WIDTH - 1) + 1):
            busy[column] += max(0.01, min(last, column + 1) - max(first, column))
    most = max(busy)
    marks = ".:-=+*%@"
    return "".join(
        marks[min(len(marks) - 1, int(len(marks) * share / most))] if share else " "
        for share in busy
    )


def report(workspace: Workspace, *, run: str, format: str, out: str) -> int:
    """Print a run's timeline, or write its trace.

    Args:
        run: Its id, or the beginning of it; the last run that did something where it is empty.

    Raises:
        UserError: There is no such run, or nothing in it.
    """
    if format not in FORMATS:
        raise UserError(f"a timeline has no format={format}", f"format={'|'.join(FORMATS)}")
    path = _timeline(workspace.root, run)
    spans = spans_of([event for _, event in read(path)])
    if not spans:
        raise UserError(f"nothing happened in the run {path.parent.name}", "choose one: run=ID")
    if format == "trace":
        text = json.dumps(trace_of(spans))
    else:
        text = text_of(spans, f"run {path.parent.name}")
    if not out:
        print(text)
        return EXIT_OK
    target = Path(out).expanduser()
    with replacing(target) as temporary:
        temporary.write_text(text + "\n", "utf-8")
    print(target)
    return EXIT_OK


def _timeline(root: Path, run: str) -> Path:
    found = sorted(
        path
        for path in root.glob("runs/*/timeline.jsonl")
        if path.parent.name.startswith(run) and path.stat().st_size
    )
    if not found:
        known = ", ".join(sorted(path.name for path in root.glob("runs/*"))[-5:]) or "none"
        raise UserError(f"no run of {root} has a timeline{f' and the id {run}' * bool(run)}",
                        f"the last runs: {known}")  # fmt: skip
    return found[-1]
