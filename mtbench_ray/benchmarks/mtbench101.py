"""MT-Bench-101: dialogues of 13 tasks, each turn answered after the data's own earlier answers.

A judged turn is a question of its own, whose context is the dialogue before it ("golden context").
So the turns of a dialogue do not wait for each other, and share what an engine has cached of it.
Their group is the dialogue: its score is the lowest one of its turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.question_rows import Row, read_questions
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import (
    Asked,
    Column,
    EvaluationView,
    Grader,
    Item,
    Reading,
    Reply,
    ScoreOptions,
)
from mtbench_ray.judges.judge_prompt import (
    judgment_id,
    messages_of,
    rated,
    reference_hash,
    request_of,
    short_reply,
    slot_of,
    units,
)
from mtbench_ray.judges.parse import format_examples, parse_rating
from mtbench_ray.judges.prompts import fill
from mtbench_ray.judges.scores import (
    joined_items,
    judge_label,
    least,
    mean_of_parts,
    mean_scores,
    of_group,
)
from mtbench_ray.schema import (
    Message,
    Outcome,
    Question,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)
from mtbench_ray.system.assets import Asset
from mtbench_ray.system.python_constants import constant

TASKS = ("CM", "AR", "SI", "TS", "CC", "CR", "FR", "SC", "SA", "MR", "GR", "PI", "IC")
"""In the order of the published table: memory, anaphora, separate input, topic shift, content
confusion, rephrasing of content and of format, self-correction, self-affirmation, mathematical and
general reasoning, proactive interaction, clarification."""
FIRST_IS_GIVEN = frozenset({"FR", "CR", "AR", "SA", "SC", "CM"})
"""Tasks whose first turn only sets the scene, and is not judged."""
NEEDS_REFERENCE = frozenset({"MR", "GR"})
"""Tasks whose judge sees the data's own answer."""
SCALE = (1, 10)
DIALOGUE, AVERAGE = "dialogue", "task_average"
_BY_TASK: Mapping[str, Callable[[Slot], str]] = {"category": lambda slot: slot.category}
_FIRST_NUMBER = re.compile(r"\[([0-9]+)\]")
_DATA = (
    "https://raw.githubusercontent.com/mtbench101/mt-bench-101/"
    "bc18b3e2c18c99164e11528f1a79c92083db5953/data/subjective/mtbench101.jsonl"
)


@dataclass(frozen=True, slots=True)
class Prompts:
    """What OpenCompass tells the judge.

    Attributes:
        systems: The system message of each task.
        plain: The user message.
        reference: The user message that shows a reference.
    """

    systems: Mapping[str, str]
    plain: str
    reference: str


class DialogueRating(Grader):
    """Rates each turn; a dialogue has the rating of its worst one."""

    name = "single"
    note = (
        "average: mean of the tasks' means, as published; by dialogue: mean over all dialogues, as"
        " in comparisons and curves; a dialogue has the rating of its worst turn"
    )
    scored = "dialogues"
    columns = (
        Column("average", "average", AVERAGE, headline=True),
        Column("dialogues", "by dialogue", DIALOGUE),
        Column("tasks", "", DIALOGUE, "category"),
    )
    dimensions = _BY_TASK
    reply_tokens = 200

    @property
    def item_metrics(self) -> Sequence[str]:
        """Dialogues."""
        return (DIALOGUE,)

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """One verdict per answer and judge sample."""
        return [
            slot_of(view, unit, question, judge_sample=judge_sample)
            for unit, question, samples in units(view)
            for judge_sample in range(samples)
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """Render the judge call of a turn."""
        question = view.questions[slot.question_id]
        prompts = _prompts(view.kept["prompts"])
        system = prompts.systems[question.category]
        template = prompts.plain
        shown = {"history": _history(question), "prediction": view.content(slot.answer_ids[0], 1)}
        if question.references:
            template = prompts.reference
            # OpenCompass shows its list of messages, in Python's spelling, in place of the answer.
            messages = [*question.context, Message("user", question.turns[0]),
                        Message("assistant", question.references[0])]  # fmt: skip
            dialogue = [{"role": one.role, "content": one.content} for one in messages]
            shown["ref_answer"] = str(dialogue) if view.official else question.references[0]
        sent = messages_of(system, fill(template, shown))
        name = f"{question.category}{'-reference' * bool(question.references)}"
        identity = judgment_id(
            sent,
            view.judge,
            slot,
            prompt=name,
            family=MTBench101.name,
            verdict=["first number" if view.official else "brackets", *SCALE],
        )
        return request_of(
            slot,
            view,
            judgment_id=identity,
            judge_prompt=name,
            messages=sent,
            prompt_hash=text_hash(canonical([system, template])),
            reference_hash=reference_hash(question, 1),
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Read a rating; officially the first number in brackets, whatever it is."""
        if view.official:
            return _first_number(reply.text)
        system = _prompts(view.kept["prompts"]).systems[asked.category]
        verdict = parse_rating(
            reply.text,
            reply.finish_reason,
            scale=SCALE,
            thinking=view.thinking,
            examples=format_examples((system,)),
        )
        return rated(verdict)

    def pattern(self, view: EvaluationView) -> str | None:
        """A rating."""
        return short_reply(r"Rating: \[\[(10|[1-9])\]\]")

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """1 to 10."""
        return float(SCALE[0]), float(SCALE[1])

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """Dialogues, each with the lowest rating of its turns, all of which must have one."""
        return joined_items(outcomes, of_group, least)

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Means over dialogues, in all and by task, and the mean of the tasks' means."""
        judge = judge_label(outcomes, options)
        items = self.items(outcomes)
        if any(view.official for view in views):
            items = _without_missing(outcomes, items)
        scores = mean_scores(self.name, DIALOGUE, items, _BY_TASK, options, judge)
        return scores + [
            mean_of_parts(model, judge, self.name, AVERAGE, mine, _BY_TASK["category"], options)
            for model, mine in _by_model(items).items()
        ]

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """Which tasks are in the average, where not all of them are."""
        there = {one.name for one in scores if one.place[:2] == (DIALOGUE, "category")}
        if len(there) == len(TASKS):
            return []
        names = ", ".join(name for name in TASKS if name in there)
        return [f"average: of {len(there)} of the {len(TASKS)} tasks ({names})"]


class MTBench101(Benchmark):
    """MT-Bench-101, and dialogues of its tasks in its file format; answers are greedy."""

    name = "mt_bench_101"
    about = "the turns of 1,388 dialogues of 13 tasks; a dialogue counts by its worst turn"
    licence = "Apache-2.0"
    size = 3615
    calls = 3615
    categories: Sequence[str] = TASKS
    official = "OpenCompass 0.5.4"
    differs = (
        "the judge of MR and GR sees the data's answer, not the repr of the messages; a rating is"
        " read where the reply states it, from 1 to 10; a dialogue counts only with all its turns"
    )
    files: Mapping[str, Asset] = {
        "questions": Asset(
            "mtbench101.jsonl",
            "1a1e433acf7e2ef013b5001b60fd8e48bc3e4202460727e25b2ea8575aae7d80",
            url=_DATA,
        ),
        "prompts": Asset(
            "opencompass_mtbench101.py",
            "46c46d29ef687883be326f38f9fa020fd087939d9faf54dfda800ccf061168f1",
            wheel="opencompass==0.5.4",
            member="opencompass/datasets/subjective/mtbench101.py",
        ),
    }
    graders: Sequence[Grader] = (DialogueRating(),)

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse JSON lines of ``task``, ``id`` and ``history``, a list of ``user`` and ``bot``."""
        found = read_questions(self.name, questions, references, names, _turns)
        return QuestionSet(found)

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """Keep the judge prompts."""
        source = texts["prompts"].encode()

        def text(name: str) -> str:
            return constant(source, name)

        kept = {
            "systems": {
                task: text("judge") + text(f"eval_{task}") + text("score_format") for task in TASKS
            },
            "plain": text("eval_prompt_construct.2"),
            "reference": text("eval_prompt_construct.0"),
        }
        return replace(found, kept={"prompts": canonical(kept)})

    def temperature(self, question: Question) -> float:
        """Greedy."""
        return 0.0


def _turns(row: Row) -> list[Question]:
    """The judged turns of a dialogue."""
    place, task, history = row.place, row.fields.get("task"), row.fields.get("history")
    if task not in TASKS:
        raise UserError(
            f"{place}: task {task!r} is none of MT-Bench-101's", f"known: {', '.join(TASKS)}"
        )
    number = row.name("id")
    if not isinstance(history, list) or not history:
        raise UserError(f"{place}: history must be a list of turns")
    questions: list[Question] = []
    context: list[Message] = []
    for turn, said in enumerate(history, start=1):
        user, bot = (said.get(key) if isinstance(said, dict) else None for key in ("user", "bot"))
        if not isinstance(user, str) or not isinstance(bot, str) or not user.strip():
            raise UserError(f"{place}: turn {turn} needs the texts user and bot")
        if turn > 1 or task not in FIRST_IS_GIVEN:
            questions.append(
                row.question(
                    f"{number}-{turn}",
                    task,
                    user,
                    references=(bot,) if task in NEEDS_REFERENCE else (),
                    group=str(number),
                    context=tuple(context),
                )
            )
        context += [Message("user", user), Message("assistant", bot)]
    if not questions:
        raise UserError(
            f"{place}: the first turn is not judged in task {task}, and it has no other"
        )
    return questions


def _history(question: Question) -> str:
    """The dialogue up to where the judged answer begins, as OpenCompass writes it."""
    said = {"user": "\n\n Human: ", "assistant": "\n\nAssistant: "}
    before = "".join(said[one.role] + one.content for one in question.context)
    return f"{before}{said['user']}{question.turns[0]}{said['assistant']}"


@lru_cache(maxsize=2)
def _prompts(kept: str) -> Prompts:
    return Prompts(**json.loads(kept))


def _first_number(text: str) -> Reading:
    match = _FIRST_NUMBER.search(text)
    if match is None:
        return Reading(None, None, "unparsed", "no_rating")
    label = match[1].lstrip("0") or "0"
    # Longer numbers are infinite as a float.
    return Reading(label, float(label), "ok") if len(label) < 300 else Reading(
        None, None, "unparsed", "out_of_range"
    )  # fmt: skip


def _without_missing(outcomes: Sequence[Outcome], items: Sequence[Item]) -> list[Item]:
    """The dialogues with the lowest rating that is there; none only where no turn has one."""
    there = joined_items([one for one in outcomes if not one.reason], of_group, least)
    found = {(item.slot.model, of_group(item.slot)): item.value for item in there}
    return [
        replace(item, value=value, reason="")
        if (value := found.get((item.slot.model, of_group(item.slot)))) is not None
        else item
        for item in items
    ]


def _by_model(items: Sequence[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.slot.model, []).append(item)
    return found
