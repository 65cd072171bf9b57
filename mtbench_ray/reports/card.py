"""``report card judge=...``: is a judge good enough? Against people's votes on the same answers.

The votes are public ones (``benchmarks``: fetched and checked by sum) or a file (``data=``); the
judge's verdicts are those of the workspace, judged one by one (the higher rated answer wins) or two
by two. Agreement is counted vote by vote, as in FastChat's ``compute_agreement`` and Zheng et al.
2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", section 4.2: with ties, and without
(both sides named a winner). All intervals are 95%, from resampling whole questions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError
from mtbench_ray.judges.agreement import (
    TIE,
    Vote,
    compared,
    match_votes,
    rated_votes,
    values_of,
)
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.planning.evaluations import against, judge_names
from mtbench_ray.planning.votes import read_votes, vote_files, votes_of
from mtbench_ray.reports.agreement import played
from mtbench_ray.reports.formats import show
from mtbench_ray.reports.results import Results, answer_ids
from mtbench_ray.reports.tables import grid, interval, label, number, said
from mtbench_ray.schema import Evaluation, Outcome
from mtbench_ray.stats.means import clustered_mean

PEOPLE = "human"
Lengths = dict[tuple[str, str, int], int]
"""Characters of the answer of a model to a question's turn."""


def report(
    results: Results, rows: Sequence[Evaluation], format: str, data: str, out: str = ""
) -> int:
    """Print the card of each judge among some evaluations.

    Args:
        data: Files of votes with commas between; empty for the benchmark's public ones.
        out: A file that gets the same as JSON; empty for none.

    Raises:
        UserError: No judge rated what the votes are about, or there are no votes.
    """
    rows = [row for row in rows if row.judge]
    if not rows:
        raise UserError("nothing here is judged", _HOW)
    names = judge_names(rows)
    groups: dict[tuple[str, str, str], list[Evaluation]] = {}
    for row in rows:
        groups.setdefault((names[row.evaluation_id], row.benchmark, row.mode), []).append(row)
    found = []
    for (judge, benchmark, mode), mine in groups.items():
        files = vote_files(benchmark, [name for name in data.split(",") if name])
        votes = votes_of(read_votes(files), ", ".join(path.name for path in files))
        card = figures(results, mine, votes)
        if card["agreement"]:
            found.append({"judge": judge, "benchmark": benchmark, "mode": mode} | card)
    if not found:
        raise UserError("no verdict here is on two answers that people voted on", _HOW)
    show(found, (_text(card, format) for card in found), format, out)
    return EXIT_OK


_HOW = (
    "`import votes` takes the public answers into a workspace and prints the line that judges them"
)


def figures(results: Results, rows: Sequence[Evaluation], votes: Sequence[Vote]) -> dict[str, Any]:
    """The card of one judge in one mode, as JSON.

    Returns:
        ``agreement``: lines with ``between`` (``judge and people``, ``judge and gpt-4``, and for
        comparison ``gpt-4 and people``, ``people among themselves``), ``turn``, ``ties``,
        ``compared`` and the share with its interval; ``position`` and ``length``, see
        :func:`_position` and :func:`_length`; ``verdicts``, ``failed``; ``dollars_per_1000`` and
        ``tokens_per_1000``.
    """
    options = results.options
    mine = judge_votes(results, rows)
    people = [vote for vote in votes if vote.judge == PEOPLE]
    gpt4 = [vote for vote in votes if vote.judge.replace("_", "-").startswith(("gpt-4", "gpt4"))]
    known = {vote.key for vote in mine}
    same_people = [vote for vote in people if vote.key in known]
    same_gpt4 = [vote for vote in gpt4 if vote.key in known]
    agreement = []
    for between, one, other in (
        ("judge and people", mine, same_people),
        ("judge and gpt-4", mine, same_gpt4),
        ("gpt-4 and people", same_gpt4, same_people),
        ("people among themselves", same_people, None),
    ):
        agreement += _agreement(between, one, other, options)
    outcomes = [outcome for row in rows for outcome in results.outcomes(row)]
    judged = [one for one in outcomes if one.judgment is not None]
    return {
        "agreement": agreement
        if any(a["between"] == "judge and people" for a in agreement)
        else [],
        "position": _position(results, rows, outcomes),
        "length": _length(mine, people, lengths(results, rows), options),
        "verdicts": len(outcomes),
        "failed": sum(bool(one.reason) for one in judged),
        "dollars_per_1000": _per_1000(judged, "cost_usd", options),
        "tokens_per_1000": {
            name: _per_1000(judged, name, options) for name in ("prompt_tokens", "output_tokens")
        },
    }


def judge_votes(results: Results, rows: Sequence[Evaluation]) -> list[Vote]:
    """A judge's verdicts as votes on pairs of answers."""
    alone = [row for row in rows if not against(row)]
    values = values_of(item for row in alone for item in results.items(row))
    name = rows[0].judge
    return match_votes(played(results, rows), name) + rated_votes(values, name)


def lengths(results: Results, rows: Iterable[Evaluation]) -> Lengths:
    """Of the first sample of each answer."""
    found: Lengths = {}
    turns = results.workspace.turns
    for row in rows:
        for answers in filter(None, (row.answers, row.opponent)):
            for (question_id, sample), answer_id in answer_ids(answers).items():
                number = 1
                while sample == 0 and (turn := turns.get((answer_id, number))) is not None:
                    found[answers.model, str(question_id), number] = len(turn.content)
                    number += 1
    return found


def _agreement(
    between: str, one: Sequence[Vote], other: Sequence[Vote] | None, options: ScoreOptions
) -> list[dict[str, Any]]:
    found = compared(one, other)
    lines = []
    for turn in (*sorted({item.turn for item in found}), None):
        for ties in (True, False):
            part = [item for item in found if turn in (item.turn, None) and (ties or not item.tie)]
            if part:
                share = _share([(item.agree, item.question_id) for item in part], options)
                lines.append({"between": between, "turn": turn, "ties": ties} | share)
    return lines


def _share(found: Sequence[tuple[float, Hashable]], options: ScoreOptions) -> dict[str, Any]:
    """A mean with its interval, clustered by question."""
    mean = clustered_mean(
        [float(value) for value, _ in found],
        [str(question) for _, question in found],
        resamples=options.resamples,
        seed=options.seed,
    )
    return {"compared": mean.n, "mean": mean.mean, "ci_low": mean.low, "ci_high": mean.high}


def _position(
    results: Results, rows: Sequence[Evaluation], outcomes: Sequence[Outcome]
) -> dict[str, Any] | None:
    """Of games, those that are no tie: how often the answer shown first wins (0.5 is no bias), and
    of matches how often the order changes the verdict; None where answers are judged one by one."""
    grader = results.grader(rows[0])
    if not grader.against:
        return None
    low, high = grader.scale(results.view(rows[0]))
    first: list[tuple[float, Hashable]] = []
    for one in outcomes:
        if one.judgment is not None and not one.reason:
            value = grader.value_for(one.slot, one.judgment)
            if value is not None and value != (low + high) / 2:
                mine = value > (low + high) / 2
                first.append((mine == (one.slot.order == 1), one.slot.question_id))
    both = [
        (float(match.inconsistent), match.question_id)
        for match in played(results, rows)
        if match.value is not None
    ]
    return {
        "first_shown_wins": _share(first, results.options),
        "inconsistent": _share(both, results.options),
    }


def _length(
    mine: Iterable[Vote], people: Sequence[Vote], known: Lengths, options: ScoreOptions
) -> dict[str, Any]:
    """How often the longer answer wins where there is a winner: by the judge, by people, and on
    pairs that both decided by the judge minus by people (0 is the bias that people have)."""
    judge = _longer(mine, known)
    theirs = _longer(people, known)
    gaps = [
        (fmean(value for value, _ in judge[key]) - fmean(value for value, _ in voted), key[0])
        for key, voted in theirs.items()
        if key in judge
    ]
    return {
        "judge": _share([one for some in judge.values() for one in some], options),
        "people": _share([one for some in theirs.values() for one in some], options),
        "difference": _share(gaps, options),
    }


def _longer(
    votes: Iterable[Vote], known: Lengths
) -> dict[tuple[Hashable, ...], list[tuple[float, Hashable]]]:
    """By pair, whether the longer answer won; pairs of equal length and ties are left out."""
    found: dict[tuple[Hashable, ...], list[tuple[float, Hashable]]] = {}
    for vote in votes:
        sizes = {
            model: known.get((model, str(vote.question_id), vote.turn))
            for model in (vote.model_a, vote.model_b)
        }
        a, b = sizes[vote.model_a], sizes[vote.model_b]
        if vote.winner != TIE and a is not None and b is not None and a != b:
            longer = vote.model_a if a > b else vote.model_b
            found.setdefault(vote.key, []).append((vote.winner == longer, vote.question_id))
    return found


def _per_1000(judged: Sequence[Outcome], name: str, options: ScoreOptions) -> dict[str, Any]:
    """Mean of a figure of judgments times 1000; each judgment counts once."""
    rows = {one.judgment.judgment_id: one for one in judged if one.judgment is not None}
    values = [
        (1000.0 * value, one.slot.question_id)
        for one in rows.values()
        if (value := getattr(one.judgment, name)) is not None
    ]
    return _share(values, options)


def _text(card: dict[str, Any], format: str) -> str:
    lines = [
        [line["between"], "all" if line["turn"] is None else str(line["turn"]),
         "with" if line["ties"] else "without", str(line["compared"]), number(line["mean"], 3),
         interval(line, 3)]
        for line in card["agreement"]
    ]  # fmt: skip
    agreed = grid(
        ["agreement", "turn", "ties", "votes compared", "share", "95% interval"], lines, format
    )
    figures = []
    if card["position"]:
        figures += [
            ("the answer shown first wins", card["position"]["first_shown_wins"], 3),
            ("the order changes the verdict", card["position"]["inconsistent"], 3),
        ]
    figures += [
        ("the longer answer wins, by the judge", card["length"]["judge"], 3),
        ("the longer answer wins, by people", card["length"]["people"], 3),
        ("judge minus people, same pairs", card["length"]["difference"], 3),
        ("dollars for 1,000 judgments", card["dollars_per_1000"], 2),
        ("prompt tokens for 1,000", card["tokens_per_1000"]["prompt_tokens"], 0),
        ("completion tokens for 1,000", card["tokens_per_1000"]["output_tokens"], 0),
    ]
    other = grid(
        ["bias and price", "n", "value", "95% interval"],
        [
            [name, str(one["compared"]), number(one["mean"], digits), interval(one, digits)]
            for name, one, digits in figures
        ],
        format,
    )
    head = f"judge {label(card['judge'])}, {card['benchmark']}, {card['mode']}"
    if format == "csv":
        return f"{agreed}\n\n{other}"
    notes = [
        f"{card['failed']} of {card['verdicts']} verdicts failed",
        "share of votes on the same two answers with the same winner; without: both named one."
        " People among themselves is what a judge can reach",
        "intervals: 95%, bootstrap over questions",
    ]
    return "\n\n".join([*said([head], format), agreed, other, "\n".join(said(notes, format))])
