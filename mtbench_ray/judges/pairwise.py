"""Pairwise comparison: two games per match with the answers in swapped order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import Answers, Reading, ScoreOptions
from mtbench_ray.judges.judge_prompt import judgment_id, reading, reference_hash, render, units
from mtbench_ray.judges.matches import FOR_MODEL, GAMES, Match, matches
from mtbench_ray.judges.parse import parse_winner
from mtbench_ray.judges.prompts import PromptSet
from mtbench_ray.models.thinking import THINKING
from mtbench_ray.schema import (
    Evaluation,
    Outcome,
    Question,
    QuestionId,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)
from mtbench_ray.stats import clustered_mean


@dataclass(slots=True)
class PairTally:
    """Counts of one model; a match with a failed game is in ``failed`` only, and once."""

    model: str
    win: int = 0
    loss: int = 0
    tie: int = 0
    inconsistent: int = 0
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Matches that count."""
        return self.win + self.loss + self.tie

    @property
    def planned(self) -> int:
        """Wanted matches."""
        return self.n + sum(self.failed.values())

    @property
    def win_rate(self) -> float | None:
        """Wins over all matches that count."""
        return self.win / self.n if self.n else None

    @property
    def loss_rate(self) -> float | None:
        """CrashRetries over all matches that count."""
        return self.loss / self.n if self.n else None

    @property
    def win_rate_adjusted(self) -> float | None:
        """Wins and half of the ties over all matches that count."""
        return (self.win + 0.5 * self.tie) / self.n if self.n else None

    @property
    def inconsistent_rate(self) -> float | None:
        """Share of matches whose games disagree."""
        return self.inconsistent / self.n if self.n else None


class Pairwise:
    """``pairwise-baseline`` or ``pairwise-all``; they differ in what the table counts.

    In ``pairwise-baseline`` the opponent of an evaluation is the baseline and has no row of its
    own; in ``pairwise-all`` a match counts for both models.
    """

    family = "pairwise"

    def __init__(self, name: str) -> None:
        self.name = name

    def slots(self, evaluation: Evaluation, questions: Mapping[QuestionId, Question]) -> list[Slot]:
        """Two slots per answer, turn and judge sample; none for a model against itself.

        An answer meets the opponent's answer of the same sample, or its first one where the
        opponent has fewer. An opponent without an answer makes a slot that fails as missing.

        Raises:
            UserError: An answer's question is not in ``questions``.
        """
        opponent = evaluation.opponent
        if opponent is None or opponent.model == evaluation.model:
            return []
        theirs = {(unit.question_id, unit.sample): unit.answer_id for unit in opponent.units}
        first: dict[QuestionId, str] = {}
        for unit in opponent.units:
            first.setdefault(unit.question_id, unit.answer_id)
        return [
            Slot(
                model=evaluation.model,
                question_id=question.question_id,
                category=question.category,
                group=question.group,
                turn=turn,
                sample=unit.sample,
                answer_ids=(
                    unit.answer_id,
                    theirs.get((unit.question_id, unit.sample), first.get(unit.question_id, "")),
                ),
                order=order,
                opponent=opponent.model,
                judge_sample=judge_sample,
            )
            for unit, question in units(evaluation.answers, questions)
            for turn in range(1, len(question.turns) + 1)
            for judge_sample in range(unit.judge_samples or evaluation.judge_samples)
            for order in GAMES
        ]

    def request(
        self,
        slot: Slot,
        question: Question,
        answers: Answers,
        judge: JudgeConfig,
        prompts: PromptSet,
    ) -> Request:
        """Render the judge call of a game.

        Raises:
            UserError: ``prompts`` has no prompt for it.
        """
        prompt = prompts.pick(self.family, slot.turn, bool(question.references))
        games = []
        for order in GAMES:
            shown_ids = slot.answer_ids if order == 1 else slot.answer_ids[::-1]
            shown = {}
            for side, answer_id in zip("ab", shown_ids, strict=True):
                shown[f"answer_{side}"] = answers[answer_id, 1].content
                for turn in range(1, slot.turn + 1):
                    shown[f"answer_{side}_{turn}"] = answers[answer_id, turn].content
            messages = render(prompt, question, shown)
            games.append((judgment_id(messages, judge, prompt, slot), messages))
        identity, messages = games[slot.order - 1]
        return Request(
            judgment_id=identity,
            # Of both games, in no order: the same for (m, base) and (base, m).
            match_id=text_hash(canonical(sorted(game_id for game_id, _ in games))),
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
            order=slot.order,
            opponent=slot.opponent,
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
        """Read a winner; the value is for the model, which is A in game 1 and B in game 2."""
        verdict = parse_winner(
            text, finish_reason, parity, thinking=thinking, examples=prompts.examples
        )
        label = verdict.value if isinstance(verdict.value, str) else None
        return reading(verdict, None if label is None else FOR_MODEL[order][label])

    def reduce(self, outcomes: Sequence[Outcome], options: ScoreOptions) -> list[Score]:
        """Adjusted win rate of each model over all its matches; :func:`tally` has the counts."""
        judge = options.judge or next((o.judgment.judge for o in outcomes if o.judgment), "")
        played = matches(outcomes, options.parity)
        scores = []
        for model in _models(played, self.name):
            mine = [match for match in played if model in (match.model, match.opponent)]
            values = [(match.seen_by(model), match) for match in mine]
            failed = Counter(match.reason for value, match in values if value is None)
            interval = clustered_mean(
                [value for value, _ in values if value is not None],
                [match.group for value, match in values if value is not None],
                resamples=options.resamples,
                seed=options.seed,
            )
            scores.append(
                Score(
                    model=model,
                    judge=judge,
                    mode=self.name,
                    metric="win_rate_adjusted",
                    dimension="all",
                    name="",
                    planned=len(mine),
                    scored=len(mine) - failed.total(),
                    failed=json.dumps(dict(sorted(failed.items()))),
                    mean=interval.mean,
                    ci_low=interval.low,
                    ci_high=interval.high,
                    method=interval.method,
                )
            )
        return scores


def tally(outcomes: Iterable[Outcome], mode: str, parity: str = "safe") -> list[PairTally]:
    """Count wins, crash_retries and ties per model, both turns pooled (FastChat ``show_result``).

    Args:
        outcomes: Games of one judge; in ``pairwise-baseline`` every opponent is the baseline.
        mode: ``pairwise-baseline`` or ``pairwise-all``.
        parity: See :func:`matches`.

    Returns:
        One tally per model in order of appearance.
    """
    played = matches(outcomes, parity)
    tallies = {model: PairTally(model) for model in _models(played, mode)}
    for match in played:
        for model in (match.model, match.opponent):
            if model in tallies:
                _count(tallies[model], match)
    return list(tallies.values())


def _count(counts: PairTally, match: Match) -> None:
    value = match.seen_by(counts.model)
    if value is None:
        counts.failed[match.reason] = counts.failed.get(match.reason, 0) + 1
        return
    counts.win += value == 1.0
    counts.loss += value == 0.0
    counts.tie += value == 0.5
    counts.inconsistent += match.inconsistent


def _models(played: Sequence[Match], mode: str) -> list[str]:
    both = mode == "pairwise-all"
    return list(
        dict.fromkeys(
            model
            for match in played
            for model in ((match.model, match.opponent) if both else (match.model,))
        )
    )
