"""Judge prompts: files in FastChat's format, checked when read and filled in one pass.

A prompt file is JSON lines, one prompt each: ``name``, ``type`` (``single`` or ``pairwise``),
``system_prompt`` and ``prompt_template`` as in FastChat, and two optional fields of our own:
``verdict`` (``brackets``, or ``tags`` for a number in ``<score>``) and ``scale`` (lowest and
highest rating). What a prompt is for (which turn, with or without references) follows from its
placeholders.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any, NamedTuple

from mtbench_ray.errors import UserError, unknown_name
from mtbench_ray.judges.parse import format_examples
from mtbench_ray.schema import canonical, text_hash


class Role(NamedTuple):
    """What a prompt is for."""

    family: str
    """``single`` or ``pairwise``."""
    turn: int
    references: bool

    def __str__(self) -> str:
        with_or_without = "with" if self.references else "without"
        return f"{self.family} prompt for turn {self.turn} {with_or_without} references"


_PLACEHOLDERS = {
    Role("single", 1, False): "question answer",
    Role("single", 1, True): "question ref_answer_1 answer",
    Role("single", 2, False): "question_1 answer_1 question_2 answer_2",
    Role("single", 2, True): "question_1 answer_1 question_2 answer_2 ref_answer_1 ref_answer_2",
    Role("pairwise", 1, False): "question answer_a answer_b",
    Role("pairwise", 1, True): "question ref_answer_1 answer_a answer_b",
    Role("pairwise", 2, False): (
        "question_1 question_2 answer_a_1 answer_a_2 answer_b_1 answer_b_2"
    ),
    Role("pairwise", 2, True): (
        "question_1 question_2 answer_a_1 answer_a_2 answer_b_1 answer_b_2"
        " ref_answer_1 ref_answer_2"
    ),
}
PLACEHOLDERS = {role: frozenset(names.split()) for role, names in _PLACEHOLDERS.items()}
"""Placeholders of each kind of prompt (FastChat's own names)."""

_FASTCHAT_ROLES = {
    "single-v1": Role("single", 1, False),
    "single-math-v1": Role("single", 1, True),
    "single-v1-multi-turn": Role("single", 2, False),
    "single-math-v1-multi-turn": Role("single", 2, True),
    "pair-v2": Role("pairwise", 1, False),
    "pair-math-v1": Role("pairwise", 1, True),
    "pair-v2-multi-turn": Role("pairwise", 2, False),
    "pair-math-v1-multi-turn": Role("pairwise", 2, True),
}
_FAMILIES = ("single", "pairwise")
_STYLES = ("brackets", "tags")
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FIELD_OR_ESCAPE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """One judge prompt.

    Attributes:
        system: System message; none is sent where it is empty.
        template: User message with placeholders.
        verdict: How the reply is read: ``brackets`` or ``tags``.
        scale: Lowest and highest rating.
    """

    name: str
    role: Role
    system: str
    template: str
    verdict: str = "brackets"
    scale: tuple[float, float] = (1.0, 10.0)

    @property
    def hash(self) -> str:
        """Over everything that changes a verdict: the texts, how it is read, the scale."""
        return text_hash(
            canonical([self.system, self.template, self.verdict, [float(x) for x in self.scale]])
        )


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one file.

    Attributes:
        name: ``fastchat``, ``rubric5`` or the file's stem.
        prompts: By prompt name, in file order.
        verdict: How single-mode replies are read; one way per file.
        scale: Lowest and highest rating; one scale per file.
        hash: Of the file's text.
    """

    name: str
    prompts: Mapping[str, JudgePrompt]
    verdict: str
    scale: tuple[float, float]
    hash: str

    @property
    def examples(self) -> frozenset[str]:
        """Verdicts that the prompts show as examples, see parse.format_examples."""
        return format_examples(
            tuple(text for p in self.prompts.values() for text in (p.system, p.template))
        )

    def require(self, family: str) -> None:
        """Check that the set can judge in modes of ``family`` (``single`` or ``pairwise``).

        Raises:
            UserError: It has no prompts of that family.
        """
        if not any(prompt.role.family == family for prompt in self.prompts.values()):
            others = " and ".join(sorted({p.role.family for p in self.prompts.values()}))
            raise UserError(
                f"the judge prompts {self.name!r} have no {family} prompts, only {others} ones",
                "use judge.prompts=fastchat, or a prompt file that has them",
            )

    def pick(self, family: str, turn: int, references: bool) -> JudgePrompt:
        """The prompt for a turn of a question.

        Raises:
            UserError: The set has none.
        """
        role = Role(family, turn, references)
        for prompt in self.prompts.values():
            if prompt.role == role:
                return prompt
        self.require(family)
        raise UserError(f"the judge prompts {self.name!r} have no {role}")


@lru_cache(maxsize=8)
def load_prompts(name: str, text: str) -> PromptSet:
    """Read a prompt file.

    Args:
        name: Name or path of the file, for messages and as the set's name.
        text: Its text.

    Raises:
        UserError: A line is no prompt, a placeholder is unknown or missing, or the file has some
            but not all prompts of a family; the message names file, line and prompt.
    """
    prompts: dict[str, JudgePrompt] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removeprefix("\ufeff")  # also within a file: of files that were joined
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}") from None
        prompt = _prompt(row, where)
        for other in prompts.values():
            if other.name == prompt.name or other.role == prompt.role:
                raise UserError(
                    f"{where}: prompts {other.name!r} and {prompt.name!r} are both the "
                    f"{prompt.role}",
                    "is a placeholder missing in one of them?",
                )
        prompts[prompt.name] = prompt
    _check_complete(name, prompts)
    rated = [p for p in prompts.values() if p.role.family == "single"] or list(prompts.values())
    if len({(p.verdict, p.scale) for p in rated}) > 1:
        raise UserError(f"{name}: all single prompts must have the same verdict and scale")
    short = PurePath(name).stem if name.endswith(".jsonl") else name
    return PromptSet(short, prompts, rated[0].verdict, rated[0].scale, text_hash(text))


def builtin_prompts(name: str) -> str:
    """Text of a prompt file that ships with the package.

    Raises:
        UserError: There is none of that name.
    """
    known = _builtin()
    if name not in known:
        raise unknown_name("prompt set", name, [*known, "fastchat"])
    return known[name].read_text(encoding="utf-8")


def _builtin() -> dict[str, Traversable]:
    return {
        item.name.removesuffix(".jsonl"): item
        for item in resources.files("mtbench_ray.judges").iterdir()
        if item.name.endswith(".jsonl")
    }


def is_shipped(name: str) -> bool:
    """Whether prompts of this name are the benchmark's own or ship with the package."""
    return name == "fastchat" or name in _builtin()


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put ``values`` into a template in one pass.

    ``{name}`` is replaced where ``values`` has the name; nothing inside a value is looked at. A
    template that is a valid format string over ``values`` renders as ``str.format`` does it, as in
    FastChat, so ``{{`` gives one brace. In any other template braces stay as they are.
    """
    pattern = _FIELD_OR_ESCAPE if _is_format(template, frozenset(values)) else _FIELD

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return match[0][0] if name is None else values.get(name, match[0])

    return pattern.sub(value, template)


@lru_cache(maxsize=256)
def _is_format(template: str, names: frozenset[str]) -> bool:
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        return False
    return all(
        field is None or (field in names and not spec and conversion is None)
        for _, field, spec, conversion in parts
    )


def _prompt(row: Any, where: str) -> JudgePrompt:
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object")
    for key in ("name", "type", "system_prompt", "prompt_template"):
        if not isinstance(row.get(key), str):
            raise UserError(f"{where}: a prompt needs the text field {key!r}")
    name, family, template = row["name"], row["type"], row["prompt_template"]
    where = f"{where}: prompt {name!r}"
    if family not in _FAMILIES:
        raise UserError(f"{where} has type {family!r}; it must be one of {', '.join(_FAMILIES)}")
    found = frozenset(_FIELD.findall(template.replace("{{", "").replace("}}", "")))
    role = _FASTCHAT_ROLES.get(name) or _guess_role(family, found)
    if role.family != family:
        raise UserError(f"{where} has type {family!r}; by its name it is {role.family!r}")
    for problem, names in (
        ("lacks the placeholder", PLACEHOLDERS[role] - found),
        ("has the unknown placeholder", found - PLACEHOLDERS[role]),
    ):
        if names:
            listed = ", ".join(f"{{{item}}}" for item in sorted(names))
            known = ", ".join(f"{{{item}}}" for item in sorted(PLACEHOLDERS[role]))
            raise UserError(f"{where} {problem} {listed}", f"a {role} has {known}")
    verdict = row.get("verdict", "brackets")
    if verdict not in _STYLES or (family == "pairwise" and verdict != "brackets"):
        raise UserError(f"{where}: verdict must be brackets, or tags for single prompts")
    return JudgePrompt(name, role, row["system_prompt"], template, verdict, _scale(row, where))


def _scale(row: Mapping[str, Any], where: str) -> tuple[float, float]:
    scale = row.get("scale", [1, 10])
    numbers = isinstance(scale, list) and [
        float(x) for x in scale if isinstance(x, (int, float)) and not isinstance(x, bool)
    ]
    if not numbers or len(numbers) != 2 or len(scale) != 2 or not numbers[0] < numbers[1]:
        raise UserError(f"{where}: scale must be [lowest, highest]")
    return numbers[0], numbers[1]


def _guess_role(family: str, found: frozenset[str]) -> Role:
    """Role of a prompt with a name of its own, from what it shows."""
    later = {"question_1", "question_2", "ref_answer_2"} & found
    references = any(name.startswith("ref_answer") for name in found)
    return Role(family, 2 if later else 1, references)


def _check_complete(name: str, prompts: Mapping[str, JudgePrompt]) -> None:
    roles = {prompt.role for prompt in prompts.values()}
    if not roles:
        raise UserError(f"{name} holds no judge prompts")
    for family in _FAMILIES:
        wanted = [role for role in PLACEHOLDERS if role.family == family]
        missing = [role for role in wanted if role not in roles]
        if missing and len(missing) < len(wanted):
            raise UserError(f"{name} has no {missing[0]}", "a file needs all four of a family")
