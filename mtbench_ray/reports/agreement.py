"""``report agreement A B``: two judges, or a judge and people's votes."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtbench_ray.errors import EXIT_OK, UserError, unknown_name
from mtbench_ray.judges.agreement import (
    Rated,
    Vote,
    agreement,
    load_votes,
    match_votes,
    value_agreement,
    values_of,
)
from mtbench_ray.judges.matches import Match, matches
from mtbench_ray.planning.evaluations import against, judge_names
from mtbench_ray.reports.results import Results, judged_alone
from mtbench_ray.reports.tables import grid, number
from mtbench_ray.schema import Evaluation, Outcome
from mtbench_ray.workspace.journal import replacing


def report(
    words: Sequence[str],
    results: Results,
    rows: Sequence[Evaluation],
    format: str,
    out: str = "",
) -> int:
    """Print how far two judges agree.

    Values of single answers are compared where both judges have some of the same answers, else
    verdicts on two models.

    Args:
        out: A file that gets the same figures as JSON; empty for none.
        words: Two names: judges of the workspace, or a JSON file of votes, optionally with one
            judge of it as ``file.json:human``. The same file twice compares its votes among
            themselves.

    Raises:
        UserError: An unknown judge, an unreadable file, or nothing to compare.
    """
    if len(words) != 2:
        raise UserError("agreement of what?", "report agreement JUDGE JUDGE-or-votes.json")
    if judged_alone(rows) and not any(_votes_file(word) for word in words):
        compared = value_agreement(*(_values(word, results, rows) for word in words))
        if compared.n:
            _print([asdict(compared)], format, out)
            return EXIT_OK
    votes = [_votes(word, results, rows) for word in words]
    found = agreement(votes[0], None if words[0] == words[1] else votes[1])
    if not any(item.total for item in found):
        raise UserError(
            f"{words[0]} and {words[1]} have no verdict on the same pair or answer",
            "judge the same models with both, in the same mode",
        )
    _print(
        [
            {
                "turn": item.turn,
                "ties": "with" if item.ties else "without",
                "compared": item.total,
                "agree": item.agree,
                "agreement": item.ratio,
            }
            for item in found
        ],
        format,
        out,
    )
    return EXIT_OK


def _votes_file(word: str) -> tuple[Path, str] | None:
    """The file and the judge in it that a word names, or None for a judge of the workspace."""
    for text, judge in ((word, ""), tuple(word.rsplit(":", 1)) if ":" in word else ("", "")):
        if text.endswith(".json"):
            return Path(text).expanduser(), judge
    return None


def _votes(word: str, results: Results, rows: Sequence[Evaluation]) -> list[Vote]:
    file = _votes_file(word)
    if file is None:
        return match_votes(played(results, _of_judge(word, rows)), word)
    path, judge = file
    try:
        found = load_votes(json.loads(path.read_text("utf-8-sig")), str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as votes: {error}", "a JSON array") from None
    known = sorted({vote.judge for vote in found})
    if judge and judge not in known:
        raise unknown_name(f"judge in {path.name}", judge, known)
    return [vote for vote in found if not judge or vote.judge == judge]


def played(results: Results, rows: Iterable[Evaluation]) -> list[Match]:
    """The matches of one judge, each once: two modes may hold one, told from either side."""
    games: dict[Hashable, Outcome] = {}
    for row in rows:
        if against(row):
            for outcome in results.outcomes(row):
                games.setdefault(_game(outcome), outcome)
    return matches(games.values(), results.options.parity)


def _game(outcome: Outcome) -> Hashable:
    """Equal for the same game in two evaluations."""
    slot, row = outcome.slot, outcome.judgment
    shown = (slot.model, slot.opponent)
    return (
        row.judgment_id if row else "",
        shown if slot.order == 1 else shown[::-1],
        (slot.question_id, slot.turn, slot.sample, slot.judge_sample),
    )


def _values(word: str, results: Results, rows: Sequence[Evaluation]) -> dict[Hashable, Rated]:
    alone = judged_alone(_of_judge(word, rows))
    return values_of(item for row in alone for item in results.items(row))


def _of_judge(word: str, rows: Sequence[Evaluation]) -> list[Evaluation]:
    judged = [row for row in rows if row.judge]
    names = judge_names(judged)
    mine = [row for row in judged if word in (row.judge, names[row.evaluation_id])]
    if not mine:
        raise unknown_name("judge of this workspace", word, set(names.values()))
    called = dict.fromkeys(names[row.evaluation_id] for row in mine)
    if len(called) > 1:
        raise UserError(
            f"'{word}' judged with several settings: {', '.join(called)}",
            "write one of these, in quotes",
        )
    return mine


def _print(found: list[dict[str, Any]], format: str, out: str) -> None:
    if out:
        path = Path(out).expanduser()
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(path, file=sys.stderr)
    if format == "json":
        print(json.dumps(found, indent=1))
        return
    headers = [key.replace("_", " ") for key in found[0]]
    cells = [
        [
            number(value, 3) if isinstance(value, float | None) else str(value)
            for value in row.values()
        ]
        for row in found
    ]
    print(grid(headers, cells, format))
