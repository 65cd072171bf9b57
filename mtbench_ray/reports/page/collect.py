"""What the page shows of a workspace, as plain rows. The only module here that knows of the others.

Judgments are taken as they are: a label, a value, a turn, an order, an opponent. What a value means
is the grader's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.page.contents import Contents, Item, Plot, Verdict
from mtbench_ray.reports.page.drawn import plots
from mtbench_ray.reports.results import Results, current, in_order
from mtbench_ray.reports.score_tables import (
    grader_numbers,
    key_of,
    model_names,
    model_numbers,
    scores_of,
    sides_of,
)
from mtbench_ray.schema import (
    AnswerSet,
    Evaluation,
    Outcome,
    Question,
    QuestionId,
    Turn,
    canonical,
)
from mtbench_ray.workspace.workspace import Workspace


def collect(
    workspace: Workspace,
    options: ScoreOptions,
    only: Filter | None = None,
    plotted: Callable[[Callable[[], Sequence[Plot]]], Sequence[Plot]] = lambda _: (),
) -> Contents:
    """Everything in a workspace that can be looked at.

    Args:
        only: What is shown; None for all.
        plotted: Gives the plots; it may draw them, or take those that it has.

    Raises:
        UserError: It holds no evaluation, or none that is shown.
    """
    results, rows = (only or Filter()).chosen(Results(workspace, options), _rows(workspace))
    models = model_numbers(rows)
    places = grader_numbers(rows)
    items = _Items(workspace, models)
    for row in rows:
        questions = _questions(workspace, row)
        scale = results.grader(row).scale(results.view(row)) if row.judge else (0.0, 1.0)
        for answers in sides_of(row):
            items.take_answers(row, answers, questions)
        for outcome in results.outcomes(row) if row.judge else ():
            value = _value(results, row, outcome)
            criterion = _criterion(results, row, outcome, questions)
            place = places[row.evaluation_id]
            items.take_outcome(row, outcome, value, criterion, place, questions, scale)
    graders, tables = scores_of(rows, results)
    return Contents(
        title=workspace.root.resolve().name,
        models=model_names(rows, models),
        graders=graders,
        tables=tables,
        items=items.in_order(),
        judgment=workspace.judgments.__getitem__,
        plots=plotted(lambda: plots(results, rows, graders, tables, only)),
    )


def _value(results: Results, row: Evaluation, outcome: Outcome) -> float | None:
    if outcome.judgment is None or outcome.reason:
        return None
    return results.grader(row).value_for(outcome.slot, outcome.judgment)


def _criterion(
    results: Results,
    row: Evaluation,
    outcome: Outcome,
    questions: Mapping[QuestionId, Question],
) -> str:
    slot = outcome.slot
    if not slot.criterion or slot.question_id not in questions:
        return slot.criterion
    return results.grader(row).criterion_text(slot.criterion, questions[slot.question_id])


def _rows(workspace: Workspace) -> list[Evaluation]:
    rows = current(workspace)
    if not rows:
        raise UserError(
            f"the workspace {workspace.root} holds no evaluation",
            "run one first, or `import fastchat DIR`",
        )
    return rows


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
        model = self._models[key_of(answers)]
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
        criterion: str,
        grader: int,
        questions: Mapping[QuestionId, Question],
        scale: tuple[float, float],
    ) -> None:
        """A verdict, for its model and for the other side of a match.

        What is good for one side is as bad for the other: the value as far from the other end.
        """
        slot, judgment = outcome.slot, outcome.judgment
        item = self._item(row, slot.question_id, questions, slot.category)
        model = self._models[key_of(row.answers)]
        opponent = self._models[key_of(row.opponent)] if row.opponent is not None else None
        verdict = Verdict(
            grader=grader,
            turn=slot.turn,
            sample=slot.sample,
            judge_sample=slot.judge_sample,
            criterion=criterion,
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
