"""Single-answer grading: one rating per turn."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from mtbench_ray.judges.base import (
    Asked,
    Column,
    EvaluationView,
    Grader,
    Reading,
    Reply,
    ScoreOptions,
)
from mtbench_ray.judges.judge_prompt import (
    prompt_id,
    rated,
    reference_hash,
    render,
    request_of,
    short_reply,
    slot_of,
    units,
)
from mtbench_ray.judges.parse import parse_rating
from mtbench_ray.judges.scores import judge_label, mean_scores
from mtbench_ray.schema import Outcome, Request, Score, Slot

RATING = "rating"


class Single(Grader):
    """Rates each turn of each answer by itself.

    A score is the mean over all valid judgments pooled, as in FastChat's ``show_result``: repeats
    of a judgment (``judge.samples``) and repeats of an answer are rows like any others, and the
    interval is clustered by question, so that they do not pass for independent evidence.

    Args:
        turns: Headers of the columns of the first turns; more turns have no column of their own.
    """

    name = "single"
    prompt_type = "single"
    note = "average: mean over all scored turns"

    def __init__(self, turns: Sequence[str] = ("first", "second")) -> None:
        self.columns = (
            *(
                Column(f"{word}_turn", f"{word} turn", RATING, "turn", str(number))
                for number, word in enumerate(turns, start=1)
            ),
            Column("average", "average", RATING, headline=True),
            Column("categories", "", RATING, "category"),
        )

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """One verdict per answer, turn and judge sample.

        Raises:
            UserError: An answer's question is not there.
        """
        return [
            slot_of(view, unit, question, turn=turn, judge_sample=judge_sample)
            for unit, question, samples in units(view)
            for turn in range(1, len(question.turns) + 1)
            for judge_sample in range(samples)
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """Render the judge call of a turn.

        Raises:
            UserError: The judge prompts have none for it.
        """
        assert view.prompts is not None
        question = view.questions[slot.question_id]
        prompt = view.prompts.pick(self.prompt_type, slot.turn, bool(question.references))
        contents = [view.content(slot.answer_ids[0], turn) for turn in range(1, slot.turn + 1)]
        shown = {f"answer_{number}": text for number, text in enumerate(contents, start=1)}
        messages = render(prompt, question, {**shown, "answer": contents[0]})
        return request_of(
            slot,
            view,
            judgment_id=prompt_id(messages, view.judge, prompt, slot),
            judge_prompt=prompt.name,
            messages=messages,
            prompt_hash=prompt.hash,
            reference_hash=reference_hash(question, slot.turn),
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Read a rating."""
        assert view.prompts is not None
        verdict = parse_rating(
            reply.text,
            reply.finish_reason,
            view.parity,
            scale=view.prompts.scale,
            style=view.prompts.verdict,
            thinking=view.thinking,
            examples=view.prompts.examples,
        )
        return rated(verdict)

    def pattern(self, view: EvaluationView) -> str | None:
        """A rating among the whole numbers of the scale, or its two ends where there is none."""
        assert view.prompts is not None
        if view.prompts.verdict != "brackets":
            return None
        scale = view.prompts.scale
        ratings = range(math.ceil(scale[0]), math.floor(scale[1]) + 1) or scale
        offered = "|".join(re.escape(f"{rating:g}") for rating in reversed(ratings))
        return short_reply(rf"Rating: \[\[({offered})\]\]")

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """That of the judge prompts; FastChat's where there are none (imports)."""
        return view.prompts.scale if view.prompts else (1.0, 10.0)

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Mean rating per model: over all, by turn and by category."""
        return mean_scores(
            self.name,
            RATING,
            self.items(outcomes),
            self.dimensions,
            options,
            judge_label(outcomes, options),
        )
