"""Pairwise comparison: two games per match with the answers in swapped order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    opposing,
    prompt_id,
    reading,
    reference_hash,
    render,
    request_of,
    short_reply,
    slot_of,
    units,
)
from mtbench_ray.judges.matches import FOR_MODEL, GAMES, Match, matches
from mtbench_ray.judges.parse import parse_winner
from mtbench_ray.judges.scores import judge_label, mean_scores
from mtbench_ray.schema import (
    Judgment,
    Outcome,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)

ADJUSTED = "win_rate_adjusted"


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
        """Losses over all matches that count."""
        return self.loss / self.n if self.n else None

    @property
    def win_rate_adjusted(self) -> float | None:
        """Wins and half of the ties over all matches that count."""
        return (self.win + 0.5 * self.tie) / self.n if self.n else None

    @property
    def figures(self) -> tuple[tuple[str, float | None], ...]:
        """All but the adjusted win rate, by metric."""
        return (
            ("win", float(self.win) if self.n else None),
            ("loss", float(self.loss) if self.n else None),
            ("tie", float(self.tie) if self.n else None),
            ("win_rate", self.win_rate),
            ("loss_rate", self.loss_rate),
            ("inconsistent", self.inconsistent_rate),
        )

    @property
    def inconsistent_rate(self) -> float | None:
        """Share of matches whose games disagree."""
        return self.inconsistent / self.n if self.n else None


class Pairwise(Grader):
    """``pairwise-baseline`` or ``pairwise-all``; they differ in what the table counts.

    In ``pairwise-baseline`` the opponent of an evaluation is the baseline and has no row of its
    own; in ``pairwise-all`` a match counts for both models.
    """

    prompt_type = "pairwise"
    scored = "decided"
    note = "adjusted: (win + tie/2) / decided; a verdict that flips with the order is a tie"
    columns = (
        Column("win", "win", "win", digits=0),
        Column("loss", "loss", "loss", digits=0),
        Column("tie", "tie", "tie", digits=0),
        Column("win_rate", "win rate", "win_rate", digits=3),
        Column("loss_rate", "loss rate", "loss_rate", digits=3, lower_is_better=True),
        Column("win_rate_adjusted", "adjusted", ADJUSTED, digits=3, headline=True),
        Column("inconsistent", "inconsistent", "inconsistent", digits=3, lower_is_better=True),
        Column("turns", "", ADJUSTED, "turn", digits=3),
        Column("categories", "", ADJUSTED, "category", digits=3),
    )

    def __init__(self, against: str) -> None:
        self.name = f"pairwise-{against}"
        self.against = against

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """Two games per answer, turn and judge sample; none for a model against itself.

        An answer meets the opponent's answer of the same sample, or its first one where the
        opponent has fewer. An opponent without an answer makes a verdict that fails as missing.

        Raises:
            UserError: An answer's question is not there.
        """
        evaluation = view.evaluation
        opponent, theirs = evaluation.opponent, opposing(view)
        if opponent is None or theirs is None:
            return []
        return [
            slot_of(
                view,
                unit,
                question,
                turn=turn,
                answer_ids=(unit.answer_id, theirs(unit)),
                order=order,
                opponent=opponent.model,
                judge_sample=judge_sample,
            )
            for unit, question, samples in units(view)
            for turn in range(1, len(question.turns) + 1)
            for judge_sample in range(samples)
            for order in GAMES
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """Render the judge call of a game.

        Raises:
            UserError: The judge prompts have none for it.
        """
        assert view.prompts is not None
        question = view.questions[slot.question_id]
        prompt = view.prompts.pick(self.prompt_type, slot.turn, bool(question.references))
        games = []
        for order in GAMES:
            shown_ids = slot.answer_ids if order == 1 else slot.answer_ids[::-1]
            shown = {}
            for side, answer_id in zip("ab", shown_ids, strict=True):
                shown[f"answer_{side}"] = view.content(answer_id, 1)
                for turn in range(1, slot.turn + 1):
                    shown[f"answer_{side}_{turn}"] = view.content(answer_id, turn)
            messages = render(prompt, question, shown)
            games.append((prompt_id(messages, view.judge, prompt, slot), messages))
        identity, messages = games[slot.order - 1]
        return request_of(
            slot,
            view,
            judgment_id=identity,
            # Of both games, in no order: the same for (m, base) and (base, m).
            match_id=text_hash(canonical(sorted(game_id for game_id, _ in games))),
            judge_prompt=prompt.name,
            messages=messages,
            prompt_hash=prompt.hash,
            reference_hash=reference_hash(question, slot.turn),
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """Read a winner; the value is for the model, which is A in game 1 and B in game 2."""
        assert view.prompts is not None
        verdict = parse_winner(
            reply.text,
            reply.finish_reason,
            view.parity,
            thinking=view.thinking,
            examples=view.prompts.examples,
        )
        label = verdict.value if isinstance(verdict.value, str) else None
        return reading(verdict, None if label is None else FOR_MODEL[asked.order][label])

    def value_for(self, slot: Slot, judgment: Judgment) -> float | None:
        """Un-swapped for the slot's model: equal answers make equal calls in both games."""
        return FOR_MODEL[slot.order].get(judgment.label or "", judgment.value)

    def pattern(self, view: EvaluationView) -> str | None:
        """A winner."""
        return short_reply(r"\[\[(A|B|C)\]\]")

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Counts and rates of each model over all its matches, as :func:`tally` has them.

        The adjusted win rate also by the parts of each dimension.
        """
        judge = judge_label(outcomes, options)
        played = matches(outcomes, options.parity)
        tallies = {counts.model: counts for counts in tally(played, self.against)}
        items = _items(played, self.against)
        scores = []
        for score in mean_scores(self.name, ADJUSTED, items, self.dimensions, options, judge):
            scores.append(score)
            if score.dimension == "all":
                plain = replace(score, ci_low=None, ci_high=None, method="")
                figures = tallies[score.model].figures
                scores += [replace(plain, metric=name, mean=mean) for name, mean in figures]
        return scores

    @property
    def item_metrics(self) -> Sequence[str]:
        """The rates."""
        return tuple(_VALUES)

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """Matches, told from the side of each model that has a row.

        Of the adjusted win rate a win is 1 and a tie 0.5.
        """
        return _items(matches(outcomes, parity), self.against, metric or ADJUSTED)


_VALUES: Mapping[str, Callable[[float, bool], float]] = {
    ADJUSTED: lambda value, _: value,
    "win_rate": lambda value, _: float(value == 1.0),
    "loss_rate": lambda value, _: float(value == 0.0),
    "inconsistent": lambda _, inconsistent: float(inconsistent),
}
"""What a match counts in a metric, from its value for the model and whether its games disagree."""


def _items(played: Sequence[Match], against: str, metric: str = ADJUSTED) -> list[Item]:
    """The matches of each model in order of appearance."""
    found: dict[str, list[Item]] = {}
    for match in played:
        for model in _sides(match, against):
            seen = match.seen_by(model)
            value = None if seen is None else _VALUES[metric](seen, match.inconsistent)
            item = Item(_slot(match, model), value, match.reason)
            found.setdefault(model, []).append(item)
    return [item for mine in found.values() for item in mine]


def _sides(match: Match, against: str) -> tuple[str, ...]:
    """The models of a match that have a row."""
    return (match.model, match.opponent) if against == "all" else (match.model,)


def _slot(match: Match, model: str) -> Slot:
    """The part of a match that says where it belongs."""
    return Slot(
        model=model,
        opponent=match.opponent if model == match.model else match.model,
        judge_sample=match.judge_sample,
        question_id=match.question_id,
        category=match.category,
        group=match.group,
        turn=match.turn,
        sample=match.sample,
        answer_ids=(),
    )


def tally(played: Sequence[Match], against: str) -> list[PairTally]:
    """Count wins, losses and ties per model, all turns pooled (FastChat ``show_result``).

    Args:
        played: Matches of one judge.
        against: ``baseline`` (every opponent is the baseline) or ``all``.

    Returns:
        One tally per model in order of appearance.
    """
    sides = [model for match in played for model in _sides(match, against)]
    tallies = {model: PairTally(model) for model in sides}
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
