"""What the runs of a workspace say of races (``select=``): which are decided, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.workspace.workspace import Workspace

RaceRecord = Mapping[str, Any]
"""As ``run.racing`` writes it into a run record."""


def races_of(workspace: Workspace) -> dict[str, RaceRecord]:
    """The decided races by the ids of their evaluations.

    Only the newest run of an evaluation counts: one without ``select`` wants all of its verdicts.
    """
    found: dict[str, RaceRecord] = {}
    for record in workspace.run_records():
        for row in record.evaluations:
            found.pop(row.evaluation_id, None)
        for race in record.races:
            if race.get("decided"):
                found |= dict.fromkeys(race.get("evaluations", ()), race)
    return found


def decided_by(races: Mapping[str, RaceRecord], evaluation_id: str) -> Sequence[str] | None:
    """The groups of questions that the race of an evaluation was decided by; None without one."""
    race = races.get(evaluation_id)
    if race is None:
        return None
    order: Sequence[str] = race["order"]
    return order[: race["looked_at"][race["evaluations"].index(evaluation_id)]]
