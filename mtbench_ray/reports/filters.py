"""Which rows and categories of a workspace a report shows."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.planning.evaluations import against, distinguishing_settings, named
from mtbench_ray.reports.results import Results, in_categories
from mtbench_ray.schema import Evaluation, QuestionId

_SHOWN = 20
"""Names that an error lists."""


@dataclass(frozen=True)
class Filter:
    """What ``model= judge= category= benchmark= mode=`` of a report say; empty takes all.

    Attributes:
        model: Pattern, as of file names, for a model's label, alone or with the settings that the
            table shows beside it.
        judge: The same for the judge's label.
        category: Patterns with commas between, in double quotes where one has a comma; verdicts of
            other categories do not count.
        benchmark: Pattern for the benchmark's name.
        mode: Pattern for the mode.
    """

    model: str = ""
    judge: str = ""
    category: str = ""
    benchmark: str = ""
    mode: str = ""

    def given(self) -> list[str]:
        """The settings that are not empty, as they are typed."""
        return [f"{name}={value}" for name, value in dataclasses.asdict(self).items() if value]

    def check(
        self,
        results: Results,
        rows: Sequence[Evaluation],
    ) -> list[Evaluation]:
        """The evaluations of those tables of which something is shown.

        Raises:
            UserError: Nothing is: the hint names what there is.
        """
        by_table: dict[tuple[str, str], list[Evaluation]] = {}
        for row in rows:
            by_table.setdefault((row.benchmark, row.mode), []).append(row)
        settings = {table: distinguishing_settings(group) for table, group in by_table.items()}
        for key in ("benchmark", "mode", "model", "judge"):
            names = [
                _names(row, settings[row.benchmark, row.mode][row.evaluation_id])[key]
                for row in rows
            ]
            pattern = getattr(self, key)
            if not any(_fits(pattern, name) for some in names for name in some):
                there = dict.fromkeys(some[-1] for some in names if some[-1])
                raise UserError(f"no {key} here matches {pattern}", _there_are(there))
        if self.category:
            found = dict.fromkeys(
                name for row in rows for name in categories(results, row).values()
            )
            for name in self.categories():
                if not in_categories(found, [name]):
                    quoted = [f'"{one}"' if "," in one else one for one in found]
                    raise UserError(f"no category here is called {name}", _there_are(quoted))
        kept = [
            row
            for table, group in by_table.items()
            if self.rows(results, group, settings[table])
            for row in group
        ]
        if not kept:
            raise UserError(
                f"no row of the table fits {' '.join(self.given())} together",
                "leave one of them out",
            )
        return kept

    def rows(
        self,
        results: Results,
        rows: Sequence[Evaluation],
        settings: Mapping[str, Mapping[str, Any]],
    ) -> list[Evaluation]:
        """The evaluations that are shown, with their answers in the wanted categories alone.

        Args:
            rows: Of one table.
            settings: What tells each of them from the others, by id.
        """
        chosen = [row for row in rows if self._fits(_names(row, settings[row.evaluation_id]))]
        if chosen and against(chosen[0]) == "all":  # a model's row is of all its comparisons
            others = dataclasses.replace(self, model="")
            chosen = [row for row in rows if others._fits(_names(row, settings[row.evaluation_id]))]
        wanted = self.categories()
        if not wanted:
            return chosen
        kept = []
        for row in chosen:
            of = categories(results, row)
            inside = {one for one, name in of.items() if in_categories([name], wanted)}
            units = tuple(one for one in row.answers.units if one.question_id in inside)
            if inside:
                answers = dataclasses.replace(row.answers, units=units)
                kept.append(dataclasses.replace(row, answers=answers))
        return kept

    def chosen(
        self, results: Results, rows: Sequence[Evaluation]
    ) -> tuple[Results, list[Evaluation]]:
        """The rows that are shown, and the results with the wanted categories alone.

        Raises:
            UserError: Nothing is shown.
        """
        if not self.given():
            return results, list(rows)
        kept = []
        by_table: dict[tuple[str, str], list[Evaluation]] = {}
        for row in self.check(results, rows):
            by_table.setdefault((row.benchmark, row.mode), []).append(row)
        for group in by_table.values():
            kept += self.rows(results, group, distinguishing_settings(group))
        ids = {row.evaluation_id: row for row in kept}
        ordered = [ids[row.evaluation_id] for row in rows if row.evaluation_id in ids]
        return results.only(self.categories()), ordered

    def takes(self, label: str, settings: Mapping[str, Any]) -> bool:
        """Whether the row of a model is shown; for comparisons, which are of two models."""
        return any(_fits(self.model, name) for name in (label, named(label, settings)))

    def _fits(self, names: Mapping[str, Collection[str]]) -> bool:
        return all(
            any(_fits(getattr(self, key), name) for name in some) for key, some in names.items()
        )

    def categories(self) -> list[str]:
        """The patterns of wanted categories in lower case; empty for all."""
        found = next(csv.reader([self.category], skipinitialspace=True), [])
        return [name.strip().casefold() for name in found if name.strip()]


def categories(results: Results, row: Evaluation) -> dict[QuestionId, str]:
    """The category of each question of an evaluation."""
    asked = {unit.question_id for unit in row.answers.units}
    data = results.workspace.load_data(row.data).questions if row.data else ()
    known = {one.question_id: one.category for one in data if one.question_id in asked}
    judged = results.outcomes(row) if row.judge else ()
    return known | {one.slot.question_id: one.slot.category for one in judged}


def _names(row: Evaluation, settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """What each pattern is held against: the plain name first, the fullest last."""
    models = [row.model, named(row.model, settings)]
    if against(row) == "all" and row.opponent is not None:
        models = [row.opponent.model, row.model]
    judges = [row.judge, named(row.judge, settings, judge=True)] if row.judge else [""]
    return {"model": models, "judge": judges, "benchmark": [row.benchmark], "mode": [row.mode]}


def _fits(pattern: str, name: str) -> bool:
    return not pattern or name == pattern or (bool(name) and fnmatchcase(name, pattern))


def _there_are(names: Collection[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there are: {', '.join(list(names)[:_SHOWN])}{more}" if names else "there is none"
