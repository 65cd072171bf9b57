"""Public votes on pairs of answers: the votes, and the answers that they are about.

A row is one vote as FastChat writes it (``question_id``, ``model_a``, ``model_b``, ``winner``,
``judge``, ``turn``), in the hub's files also with both conversations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.errors import UserError
from mtbench_ray.judges.agreement import Vote, load_votes
from mtbench_ray.planning.answer_files import Imported, import_answers
from mtbench_ray.system.assets import fetch
from mtbench_ray.system.json_lines import json_lines
from mtbench_ray.workspace.workspace import Workspace


def vote_files(benchmark: str, data: Sequence[str]) -> list[Path]:
    """Files of votes: those named, else the benchmark's public ones, fetched and checked.

    Raises:
        UserError: It has none, or they cannot be fetched.
    """
    if data:
        return [Path(name).expanduser() for name in data]
    known = get_benchmark(benchmark).votes
    if not known:
        raise UserError(f"no public votes on {benchmark} are known", "name a file: data=votes.json")
    found = fetch(f"votes/{benchmark}", known, "name a file of your own: data=votes.json")
    return list(found.values())


def read_votes(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of files of votes: Parquet, a JSON array, or JSON lines.

    Raises:
        UserError: A file cannot be read.
    """
    return [row for path in paths for row in _rows(path)]


def votes_of(rows: Sequence[Mapping[str, Any]], where: str) -> list[Vote]:
    """The votes in rows; see :func:`~mtbench_ray.judges.agreement.load_votes`."""
    return load_votes(list(rows), where)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows: Any = parquet.read_table(path).to_pylist()
        else:
            text = path.read_bytes().decode("utf-8-sig")
            rows = json.loads(text) if text.lstrip().startswith("[") else [
                row for _, row in json_lines(text, path.name)
            ]  # fmt: skip
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as votes: {error}", "Parquet or JSON") from None
    return list(rows)


def import_votes(
    paths: Sequence[Path], workspace: Workspace, *, benchmark: str, question_path: str | None
) -> dict[str, Imported]:
    """Take the answers that votes are about into a workspace, by model; judging them is a run.

    Raises:
        UserError: The files hold no conversation, or one that is no answer to its question.
    """
    answers: dict[str, dict[Any, list[str]]] = {}
    for row in read_votes(paths):
        for side in ("a", "b"):
            texts = _replies(row.get(f"conversation_{side}"))
            if texts:
                mine = answers.setdefault(str(row.get(f"model_{side}")), {})
                known = mine.get(row.get("question_id"), [])
                # A vote on an earlier turn may come without the later ones.
                mine[row.get("question_id")] = max(known, texts, key=len)
    if not answers:
        raise UserError(
            f"{paths[0]} holds no conversation",
            "import the answers by themselves: import fastchat DIR",
        )
    return {
        model: import_answers(
            paths[0],
            workspace,
            benchmark=benchmark,
            model=model,
            question_path=question_path,
            rows=[
                (f"{paths[0].name}, {model}", {"question_id": name, "response": _response(texts)})
                for name, texts in mine.items()
            ],
        )
        for model, mine in sorted(answers.items())
    }


def _replies(conversation: Any) -> list[str]:
    if not isinstance(conversation, Sequence) or isinstance(conversation, str):
        return []
    return [
        str(message.get("content"))
        for message in conversation
        if isinstance(message, Mapping) and message.get("role") == "assistant"
    ]


def _response(texts: list[str]) -> str | list[str]:
    return texts[0] if len(texts) == 1 else texts
