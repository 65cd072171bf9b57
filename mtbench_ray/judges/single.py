"""Single-answer grading: one rating per turn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import Answers, Reading, ScoreOptions
from mtbench_ray.judges.judge_prompt import judgment_id, reading, reference_hash, render, units
from mtbench_ray.judges.parse import parse_rating
from mtbench_ray.judges.prompts import PromptSet
from mtbench_ray.models.thinking import THINKING
from mtbench_ray.schema import Evaluation, Outcome, Question, QuestionId, Request, Score, Slot
from mtbench_ray.stats import clustered_mean


class Single:
    """Rates each turn of each answer by itself.

    A score is the mean over all valid judgments pooled, as in FastChat's ``show_result``: repeats
    of a judgment (``judge.samples``) and repeats of an answer are rows like any others, and the
    interval is clustered by question, so that they do not pass for independent evidence.
    """

    name = "single"
    family = "single"

    def slots(self, evaluation: Evaluation, questions: Mapping[QuestionId, Question]) -> list[Slot]:
        """One slot per answer, turn and judge sample; see :class:`~mtbench_ray.judges.base.Mode`.

        Raises:
            UserError: An answer's question is not in ``questions``.
        """
        return [
            Slot(
                model=evaluation.model,
                question_id=question.question_id,
                category=question.category,
                group=question.group,
                turn=turn,
                sample=unit.sample,
                answer_ids=(unit.answer_id,),
                judge_sample=judge_sample,
            )
            for unit, question in units(evaluation.answers, questions)
            for turn in range(1, len(question.turns) + 1)
            for judge_sample in range(unit.judge_samples or evaluation.judge_samples)
        ]

    def request(
        self,
        slot: Slot,
        question: Question,
        answers: Answers,
        judge: JudgeConfig,
        prompts: PromptSet,
    ) -> Request:
        """Render the judge call of a slot.

        Raises:
            UserError: ``prompts`` has no prompt for it.
        """
        prompt = prompts.pick(self.family, slot.turn, bool(question.references))
        contents = [answers[slot.answer_ids[0], turn].content for turn in range(1, slot.turn + 1)]
        shown = {f"answer_{number}": text for number, text in enumerate(contents, start=1)}
        messages = render(prompt, question, {**shown, "answer": contents[0]})
        identity = judgment_id(messages, judge, prompt, slot)
        return Request(
            judgment_id=identity,
            match_id=identity,
            mode=self.name,
            benchmark=question.benchmark,
            question_id=question.question_id,
            category=question.category,
            turn=slot.turn,
            model=slot.model,
            judge=judge.label,
            judge_prompt=prompt.name,
            messages=messages,
            prompt_hash=prompt.hash,
            reference_hash=reference_hash(question, slot.turn),
            answer_ids=slot.answer_ids,
            sample=slot.sample,
            judge_sample=slot.judge_sample,
        )

    def read(
        self,
        order: int,
        text: str,
        finish_reason: str | None,
        prompts: PromptSet,
        parity: str,
        thinking: tuple[str, str] = THINKING,
    ) -> Reading:
        """Read a rating; ``order`` has no meaning here."""
        verdict = parse_rating(
            text,
            finish_reason,
            parity,
            scale=prompts.scale,
            style=prompts.verdict,
            thinking=thinking,
            examples=prompts.examples,
        )
        value = verdict.value if isinstance(verdict.value, float) else None
        return reading(verdict, value)

    def reduce(self, outcomes: Sequence[Outcome], options: ScoreOptions) -> list[Score]:
        """Mean rating per model: over all, by turn and by category, in order of appearance."""
        judge = options.judge or next((o.judgment.judge for o in outcomes if o.judgment), "")
        models: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            models.setdefault(outcome.slot.model, []).append(outcome)
        return [
            _score(model, judge, dimension, name, part, options)
            for model, rows in models.items()
            for dimension, name, part in _parts(rows)
        ]


def _parts(rows: Sequence[Outcome]) -> Iterable[tuple[str, str, list[Outcome]]]:
    yield "all", "", list(rows)
    for turn in sorted({row.slot.turn for row in rows}):
        yield "turn", str(turn), [row for row in rows if row.slot.turn == turn]
    for category in dict.fromkeys(row.slot.category for row in rows):
        yield "category", category, [row for row in rows if row.slot.category == category]


def _score(
    model: str,
    judge: str,
    dimension: str,
    name: str,
    rows: Sequence[Outcome],
    options: ScoreOptions,
) -> Score:
    valid = [(value, row.slot.group) for row in rows if (value := _value(row)) is not None]
    failed = Counter(row.reason or "unparsed" for row in rows if _value(row) is None)
    interval = clustered_mean(
        [value for value, _ in valid],
        [group for _, group in valid],
        resamples=options.resamples,
        seed=options.seed,
    )
    return Score(
        model=model,
        judge=judge,
        mode=Single.name,
        metric="rating",
        dimension=dimension,
        name=name,
        planned=len(rows),
        scored=len(valid),
        failed=json.dumps(dict(sorted(failed.items()))),
        mean=interval.mean,
        ci_low=interval.low,
        ci_high=interval.high,
        method=interval.method,
    )


def _value(row: Outcome) -> float | None:
    return None if row.reason or row.judgment is None else row.judgment.value
