"""What the page shows of a workspace, as plain rows. The only module here that knows of the others.

Judgments are taken as they are: a label, a value, a turn, an order, an opponent. What a value means
is the grader's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mtbench_ray.errors import UserError
from mtbench_ray.judges import base as judging
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.evaluations import (
    answer_settings,
    distinguishing_settings,
    judge_names,
    named,
)
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.results import Results, current, in_order
from mtbench_ray.reports.scores import all_scores
from mtbench_ray.reports.scores import tables as comparisons
from mtbench_ray.reports.tables import no_interval_because, part_header
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Judgment,
    Outcome,
    Question,
    QuestionId,
    Score,
    Turn,
    canonical,
)
from mtbench_ray.workspace.workspace import Workspace


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """A wanted judgment of an answer.

    Attributes:
        grader: Index into the graders.
        value: For the model that it is listed under.
        reason: Why there is no value; empty where there is one.
        opponent: Model index of the other side of a match.
        first: Whether the model's answer was shown first; None without an opponent.
        judgment_id: Of the stored judgment; empty where there is none.
    """

    grader: int
    turn: int
    sample: int
    judge_sample: int
    criterion: str
    label: str
    value: float | None
    reason: str
    opponent: int | None
    first: bool | None
    judgment_id: str


@dataclass
class Item:
    """A question with all that belongs to it.

    Attributes:
        answers: By model index and sample, the turns that are there.
        verdicts: By model index; a match is listed for both of its sides.
    """

    id: str
    benchmark: str
    category: str
    turns: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    context: tuple[tuple[str, str], ...] = ()
    answers: dict[int, dict[int, list[Turn]]] = field(default_factory=dict)
    verdicts: dict[int, list[Verdict]] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """All that the page shows.

    Attributes:
        models: Names, different for different models.
        judgment: The stored judgment of a verdict with its prompt, read from the disk.
    """

    title: str
    models: Sequence[str]
    graders: Sequence[Grader]
    tables: Sequence[Table]
    items: Sequence[Item]
    judgment: Callable[[str], Judgment]


def collect(workspace: Workspace, options: ScoreOptions, only: Filter | None = None) -> Contents:
    """Everything in a workspace that can be looked at.

    Args:
        only: What is shown; None for all.

    Raises:
        UserError: It holds no evaluation, or none that is shown.
    """
    results, rows = (only or Filter()).chosen(Results(workspace, options), _rows(workspace))
    models = _models(rows)
    places = _graders(rows)
    items = _Items(workspace, models)
    for row in rows:
        questions = _questions(workspace, row)
        scale = results.grader(row).scale(results.view(row)) if row.judge else (0.0, 1.0)
        for answers in _sides(row):
            items.take_answers(row, answers, questions)
        for outcome in results.outcomes(row) if row.judge else ():
            value = _value(results, row, outcome)
            items.take_outcome(row, outcome, value, places[row.evaluation_id], questions, scale)
    graders, tables = _scores(rows, results)
    return Contents(
        title=workspace.root.resolve().name,
        models=_model_names(rows, models),
        graders=graders,
        tables=tables,
        items=items.in_order(),
        judgment=workspace.judgments.__getitem__,
    )


def tables_of(results: Results, rows: Sequence[Evaluation]) -> tuple[list[Grader], list[Table]]:
    """The graders and their scores alone."""
    return _scores(rows, results)


def _value(results: Results, row: Evaluation, outcome: Outcome) -> float | None:
    if outcome.judgment is None or outcome.reason:
        return None
    return results.grader(row).value_for(outcome.slot, outcome.judgment)


def _scores(rows: Sequence[Evaluation], results: Results) -> tuple[list[Grader], list[Table]]:
    places = _graders(rows)
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
    return graders, _tables(results, rows, places, _models(rows))


def _rows(workspace: Workspace) -> list[Evaluation]:
    rows = current(workspace)
    if not rows:
        raise UserError(
            f"the workspace {workspace.root} holds no evaluation",
            "run one first, or `import fastchat DIR`",
        )
    return rows


def _sides(row: Evaluation) -> list[AnswerSet]:
    return [side for side in (row.answers, row.opponent) if side is not None]


def _key(answers: AnswerSet) -> str:
    """Equal for the same model with the same settings."""
    return canonical([answers.model, answer_settings(answers)])


def _models(rows: Iterable[Evaluation]) -> dict[str, int]:
    """The place of each model."""
    found: dict[str, int] = {}
    for row in rows:
        for answers in _sides(row):
            found.setdefault(_key(answers), len(found))
    return found


def _model_names(rows: Sequence[Evaluation], models: Mapping[str, int]) -> list[str]:
    """By place; those that have one label get the settings that tell them apart."""
    stands: dict[str, Evaluation] = {}
    for row in rows:
        for answers in _sides(row):
            alone = replace(row, answers=answers, opponent=None, evaluation_id=_key(answers))
            stands.setdefault(
                _key(answers), replace(alone, judge="", judge_settings="{}", mode=ANSWERS_ONLY)
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


def _graders(rows: Sequence[Evaluation]) -> dict[str, int]:
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


def _questions(workspace: Workspace, row: Evaluation) -> dict[QuestionId, Question]:
    found = workspace.load_data(row.data).questions if row.data else ()
    return {question.question_id: question for question in found}


class _Items:
    """The questions, filled evaluation by evaluation."""

    def __init__(self, workspace: Workspace, models: Mapping[str, int]) -> None:
        self._workspace = workspace
        self._models = models
        self._items: dict[tuple[str, str, str], Item] = {}
        self._taken: set[tuple[object, ...]] = set()

    def _item(
        self,
        row: Evaluation,
        question_id: QuestionId,
        questions: Mapping[QuestionId, Question],
        category: str = "",
    ) -> Item:
        """The question of an id; one whose text differs is another one."""
        question = questions.get(question_id)
        asked = canonical(question.turns) if question else ""
        key = (row.benchmark, str(question_id), asked)
        if key not in self._items and not asked:
            same = (known for known in self._items if known[:2] == key[:2])
            key = next(same, key)
        if key not in self._items and asked:
            # Files of judgments alone know no text: the first one that does is theirs.
            unknown = self._items.pop((*key[:2], ""), None)
            if unknown is not None:
                self._items[key] = unknown
        item = self._items.setdefault(key, Item(str(question_id), row.benchmark, category))
        if question is not None:
            item.turns = question.turns
            item.category = question.category
            item.references = item.references or question.references
            item.context = tuple((said.role, said.content) for said in question.context)
        item.category = item.category or category
        return item

    def take_answers(
        self, row: Evaluation, answers: AnswerSet, questions: Mapping[QuestionId, Question]
    ) -> None:
        """The stored turns of a model."""
        model = self._models[_key(answers)]
        turns = self._workspace.turns
        for unit in answers.units:
            item = self._item(row, unit.question_id, questions)
            wanted = max(len(item.turns), 1)
            found: list[Turn] = []
            while turn := turns.get((unit.answer_id, len(found) + 1)):
                found.append(turn)
            samples = item.answers.setdefault(model, {})
            if found or unit.sample not in samples:
                samples[unit.sample] = found[: max(wanted, len(found))]

    def take_outcome(
        self,
        row: Evaluation,
        outcome: Outcome,
        value: float | None,
        grader: int,
        questions: Mapping[QuestionId, Question],
        scale: tuple[float, float],
    ) -> None:
        """A verdict, for its model and for the other side of a match.

        What is good for one side is as bad for the other: the value as far from the other end.
        """
        slot, judgment = outcome.slot, outcome.judgment
        item = self._item(row, slot.question_id, questions, slot.category)
        model = self._models[_key(row.answers)]
        opponent = self._models[_key(row.opponent)] if row.opponent is not None else None
        verdict = Verdict(
            grader=grader,
            turn=slot.turn,
            sample=slot.sample,
            judge_sample=slot.judge_sample,
            criterion=slot.criterion,
            label=(judgment.label if judgment is not None else None) or "",
            value=value,
            reason=outcome.reason,
            opponent=opponent,
            first=slot.order != 2 if slot.order else None,
            judgment_id=judgment.judgment_id if judgment is not None else "",
        )
        item.verdicts.setdefault(model, []).append(verdict)
        if opponent is not None:
            item.verdicts.setdefault(opponent, []).append(
                replace(
                    verdict,
                    value=None if value is None else scale[0] + scale[1] - value,
                    opponent=model,
                    first=None if verdict.first is None else not verdict.first,
                )
            )

    def in_order(self) -> list[Item]:
        """By benchmark, then as the ids are numbered."""
        found = dict.fromkeys((item.benchmark, item.category) for item in self._items.values())
        places = {
            (benchmark, name): place
            for benchmark in {whose for whose, _ in found}
            for place, name in enumerate(
                in_order(benchmark)(name for whose, name in found if whose == benchmark)
            )
        }

        def place(item: Item) -> tuple[str, int, int, str]:
            number = int(item.id) if item.id.isdecimal() else -1
            return item.benchmark, places[item.benchmark, item.category], number, item.id

        return sorted(self._items.values(), key=place)


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
            model = models[_key(answers)]
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
