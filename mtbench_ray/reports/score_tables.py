"""Score tables as pages and pictures show them: a row for each model, a column for each part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mtbench_ray.judges import base as judging
from mtbench_ray.planning.evaluations import (
    answer_settings,
    distinguishing_settings,
    judge_names,
    named,
)
from mtbench_ray.reports.results import Results, in_order
from mtbench_ray.reports.scores import all_scores
from mtbench_ray.reports.scores import tables as comparisons
from mtbench_ray.reports.tables import no_interval_because, part_header
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Score,
    canonical,
)


@dataclass(frozen=True)
class Grader:
    """One way of judging. Values of two graders are never put together.

    Attributes:
        name: Judge and mode, as shown.
        low: The scale's lower end.
        high: The scale's upper end.
    """

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class Column:
    """A column of scores.

    Attributes:
        category: Where it is of one category.
        digits: Behind the point; 0 is a count.
    """

    header: str
    category: str = ""
    digits: int = 2


@dataclass(frozen=True)
class Cell:
    """A score with its 95% interval and its coverage.

    Attributes:
        why: Why there is no interval, in a few words; empty where there is one.
    """

    mean: float | None
    low: float | None
    high: float | None
    scored: int
    planned: int
    why: str = ""


@dataclass(frozen=True)
class TableRow:
    """A model's scores; ``model`` is None where the row is of no single one that has answers."""

    model: int | None
    name: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """The scores of one grader.

    Attributes:
        columns: The headline first.
    """

    grader: int
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]


def tables_of(results: Results, rows: Sequence[Evaluation]) -> tuple[list[Grader], list[Table]]:
    """The graders and their scores alone."""
    return scores_of(rows, results)


def scores_of(rows: Sequence[Evaluation], results: Results) -> tuple[list[Grader], list[Table]]:
    """The graders of evaluations and a table for each benchmark."""
    places = grader_numbers(rows)
    scales: list[list[tuple[float, float]]] = [[] for _ in set(places.values())]
    for row in rows:
        if row.judge:
            scale = results.grader(row).scale(results.view(row))
            scales[places[row.evaluation_id]].append(scale)
    names = _grader_names(rows, places)
    graders = [
        Grader(name, min(low for low, _ in mine), max(high for _, high in mine))
        for name, mine in zip(names, scales, strict=True)
    ]
    return graders, _tables(results, rows, places, model_numbers(rows))


def model_numbers(rows: Iterable[Evaluation]) -> dict[str, int]:
    """The place of each model."""
    found: dict[str, int] = {}
    for row in rows:
        for answers in sides_of(row):
            found.setdefault(key_of(answers), len(found))
    return found


def model_names(rows: Sequence[Evaluation], models: Mapping[str, int]) -> list[str]:
    """By place; those that have one label get the settings that tell them apart."""
    stands: dict[str, Evaluation] = {}
    for row in rows:
        for answers in sides_of(row):
            alone = replace(row, answers=answers, opponent=None, evaluation_id=key_of(answers))
            stands.setdefault(
                key_of(answers), replace(alone, judge="", judge_settings="{}", mode=ANSWERS_ONLY)
            )
    apart = distinguishing_settings(list(stands.values()), lambda row: row.model)
    return _different(named(stands[key].model, apart[key]) for key in models)


def _different(names: Iterable[str]) -> list[str]:
    """The names, with a number where one comes again."""
    taken: dict[str, int] = {}
    found = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name} #{taken[name]}")
    return found


def grader_numbers(rows: Sequence[Evaluation]) -> dict[str, int]:
    """The place of each evaluation's grader, by evaluation id."""
    judged = [row for row in rows if row.judge]
    judges = judge_names(judged)
    places: dict[tuple[str, str, str], int] = {}
    return {
        row.evaluation_id: places.setdefault(
            (row.benchmark, row.mode, judges[row.evaluation_id]), len(places)
        )
        for row in judged
    }


def _grader_names(rows: Sequence[Evaluation], graders: Mapping[str, int]) -> list[str]:
    judged = [row for row in rows if row.judge]
    judges = judge_names(judged)
    several = len({row.benchmark for row in judged}) > 1
    names = {
        graders[row.evaluation_id]: " · ".join(
            [judges[row.evaluation_id], row.mode, *([row.benchmark] if several else [])]
        )
        for row in judged
    }
    return _different(names[place] for place in sorted(names))


def _tables(
    results: Results,
    rows: Sequence[Evaluation],
    graders: Mapping[str, int],
    models: Mapping[str, int],
) -> list[Table]:
    """The scores of each grader in the columns that it declares, the best model first."""
    known = {row.evaluation_id: row for row in rows if row.judge}
    # A model over all of its comparisons has a row id of its own.
    over_all = {
        name: (table.rows[0], answers)
        for table in comparisons(rows, results)
        for answers, name in table.models.values()
    }
    names = _row_names(list(known.values()))
    lines: dict[int, dict[str, _Line]] = {}
    for score in all_scores(results, rows):
        of = known.get(score.evaluation_id) or over_all[score.evaluation_id][0]
        line = lines.setdefault(graders[of.evaluation_id], {}).setdefault(
            score.evaluation_id, _Line(of, score.model, {})
        )
        line.scores[score.metric, score.dimension, score.name] = score
    tables = []
    for grader, found in sorted(lines.items()):
        of = next(iter(found.values())).of
        columns = _columns(results.grader(of), of.benchmark, found.values())
        made = []
        for row_id, line in found.items():
            answers = known[row_id].answers if row_id in known else over_all[row_id][1]
            model = models[key_of(answers)]
            cells = tuple(_cell(line.scores.get(place)) for _, place in columns)
            made.append(TableRow(model, names.get(row_id, line.label), cells))
        made.sort(key=lambda line: -_first(line))
        tables.append(Table(grader, tuple(column for column, _ in columns), tuple(made)))
    return tables


@dataclass(frozen=True)
class _Line:
    """The scores of a row by metric, dimension and name; ``of`` is an evaluation of its table."""

    of: Evaluation
    label: str
    scores: dict[tuple[str, str, str], Score]


def _first(row: TableRow) -> float:
    return next((cell.mean for cell in row.cells if cell and cell.mean is not None), -1e9)


def _columns(
    grader: judging.Grader, benchmark: str, lines: Iterable[_Line]
) -> list[tuple[Column, tuple[str, str, str]]]:
    """Each column with the place of its scores, the headline first."""
    there = dict.fromkeys(place for line in lines for place in line.scores)
    found = []
    for column in sorted(grader.columns, key=lambda one: not one.headline):
        if not column.parts:
            if column.place in there:
                found.append((Column(column.header, "", column.digits), column.place))
            continue
        parts = [name for metric, kind, name in there
                 if (metric, kind) == (column.metric, column.dimension)]  # fmt: skip
        for name in in_order(benchmark)(parts):
            category = name if column.dimension == "category" else ""
            place = (column.metric, column.dimension, name)
            header = part_header(column.dimension, name)
            found.append((Column(header, category, column.digits), place))
    return found


def _cell(score: Score | None) -> Cell | None:
    if score is None:
        return None
    why = no_interval_because(score.method) if score.ci_low is None else ""
    return Cell(score.mean, score.ci_low, score.ci_high, score.scored, score.planned, why)


def _row_names(rows: Sequence[Evaluation]) -> dict[str, str]:
    """By evaluation id, with the opponent where there are several."""
    apart = distinguishing_settings(rows)
    several = len({row.baseline for row in rows}) > 1
    return {
        row.evaluation_id: named(row.model, apart[row.evaluation_id])
        + (f" against {row.baseline}" if row.baseline and several else "")
        for row in rows
    }


def sides_of(row: Evaluation) -> list[AnswerSet]:
    """The answers that are graded, and those that they are compared with."""
    return [side for side in (row.answers, row.opponent) if side is not None]


def key_of(answers: AnswerSet) -> str:
    """Equal for the same model with the same settings."""
    return canonical([answers.model, answer_settings(answers)])
