"""Which models of a workspace a user means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from mtbench_ray.errors import UserError, unknown_name
from mtbench_ray.schema import Evaluation


def choose(words: Sequence[str], models: Mapping[str, Sequence[Evaluation]]) -> list[str]:
    """The models that words and patterns name, each once."""
    if len(words) < 2 and not any(sign in word for word in words for sign in "*?["):
        raise UserError("compare what?", "report compare MODEL MODEL")
    found: dict[str, None] = {}
    for word in words:
        fits = [
            name
            for name, rows in models.items()
            if fnmatchcase(name, word) or any(fnmatchcase(row.model, word) for row in rows)
        ]
        pattern = any(sign in word for sign in "*?[") and word not in models and fits
        for name in fits if pattern else [find_model(word, models)]:
            found[name] = None
    if len(words) > 1 and len(found) == 1:
        raise UserError(f"both names mean {next(iter(found))}", "name two models")
    if len(found) < 2:
        raise UserError(f"{words[0]} fits one model alone", "name two models")
    return list(found)


def find_model(word: str, models: Mapping[str, Sequence[Evaluation]]) -> str:
    """The model that a word names: by its name, its label, the end of its path, or an id."""
    known = set(models)
    if word in known:
        return word
    labelled = [
        name
        for name, rows in models.items()
        if any(row.model == word or _is_id(word, row) for row in rows)
    ]
    if len(labelled) > 1:
        raise UserError(
            f"'{word}' may be any of {', '.join(labelled)}", "write one of these, in quotes"
        )
    if labelled:
        return labelled[0]
    ends = [name for name in sorted(known) if name.rstrip("/").endswith(f"/{word.strip('/')}")]
    if len(ends) > 1:
        raise UserError(f"'{word}' may be any of {', '.join(ends)}", "write more of the path")
    if not ends:
        raise unknown_name("rated model of this workspace", word, known)
    return ends[0]


def _is_id(word: str, row: Evaluation) -> bool:
    return len(word) >= 6 and row.evaluation_id.startswith(word)
