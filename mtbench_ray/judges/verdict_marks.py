"""The verdicts in a text: where they stand, how well they are labelled, which one is meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mtbench_ray.judges.verdict_patterns import (
    BUT,
    CHOICE,
    CLAUSE,
    CLOSING,
    DENIED_AFTER,
    DENIED_BEFORE,
    DOUBLE,
    DRESSING,
    EXAMPLE_BEFORE,
    FOLLOW,
    LABEL_END,
    LISTED,
    NAMED_RATING,
    NAMED_WINNER,
    NUMBER,
    OPENING,
    PLACEHOLDER,
    PREDICATE,
    PREMISE,
    SAID_BUT,
    SCALE_AFTER,
    SCALE_BEFORE,
    SCORED_RATING,
    SCORED_WINNER,
    SMALL,
    SUBJECT,
    SUPPOSED_AFTER,
    SUPPOSED_BEFORE,
    TAGS,
    TAIL,
    WINNER,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A well-formed verdict, where it stands and how well it is labelled as one."""

    start: int
    end: int
    label: str
    rank: int


NAMED, SCORED, ALONE, BARE = 4, 3, 2, 1
"""Ranks: labelled in the word that is asked for, in a like one, alone on its line, other."""
LOOK_BACK = 400
"""So many verdicts from the end are looked at; no judge gives more."""
WINDOW = 120
"""Characters before a verdict that may say what it is."""


EXAMPLE_LEAD = 30


def text_before(text: str, start: int) -> str:
    """The last characters before a verdict, in small letters, with single spaces."""
    before = " ".join(text[max(0, start - 3 * EXAMPLE_LEAD) : start].lower().split(" "))
    return re.sub(r"\s+", " ", before)[-EXAMPLE_LEAD:]


def ratings(text: str, top: float) -> list[Mark]:
    """All well-formed ratings on the scale that ends at ``top``, in order."""
    return _marks(
        text,
        (NAMED_RATING, SCORED_RATING),
        lambda content: _number(content, top),
        lambda start, end: _on_scale(text, start, end, top),
    )


def winners(text: str) -> list[Mark]:
    """All well-formed winners, in order."""
    return _marks(text, (NAMED_WINNER, SCORED_WINNER), _winner, lambda start, end: True)


def scores(text: str, top: float) -> list[Mark]:
    """All ratings in ``<score>`` on the scale that ends at ``top``, in order."""
    marks = []
    for match in TAGS.finditer(text):
        label = _number(match[1], top)
        if label is not None and _on_scale(text, match.start(), match.end(), top):
            marks.append(Mark(match.start(), match.end(), label, NAMED))
    return marks


def _marks(
    text: str,
    labels: Sequence[re.Pattern[str]],
    read: Callable[[str], str | None],
    counts: Callable[[int, int], bool],
) -> list[Mark]:
    found: dict[int, tuple[int, str, int]] = {}
    for match in list(DOUBLE.finditer(text))[-LOOK_BACK:]:
        found[match.start()] = (match.end(), match[1], BARE)
    for rank, pattern in zip((NAMED, SCORED), labels, strict=True):
        for match in list(pattern.finditer(text))[-LOOK_BACK:]:
            group = match.lastindex or 1
            start = match.start(group) - 1
            while (
                start > match.start()
                and text[start - 1] in "[ *"
                and "[" in text[match.start() : start]
            ):
                start -= 1
            while text[start] in " *":
                start += 1
            if found.get(start, (0, "", 0))[2] < rank:
                found[start] = (match.end(), match[group], rank)
    marks: list[Mark] = []
    for start, (end, content, rank) in sorted(found.items()):
        label = read(content)
        if label is None or not counts(start, end):
            continue
        if rank == BARE and re.match(
            r"\s*\D*(?:rating|score|verdict|winner)", content, re.IGNORECASE
        ):
            rank = NAMED
        if rank == BARE and marks and marks[-1].end == start and marks[-1].rank >= SCORED:
            rank = marks[-1].rank
        if rank == BARE and _is_alone(text, start, end):
            rank = ALONE
        marks.append(Mark(start, end, label, rank))
    return marks


def choose(text: str, marks: list[Mark], examples: Collection[str]) -> Mark | None:
    """The verdict that the judge states: the last of the best labelled ones."""
    listed = _without_lists(text, marks)
    stated = [mark for mark in listed if not _is_aside(text, mark, examples)]
    if not stated:
        return None
    best = max(mark.rank for mark in stated)
    place = max(index for index, mark in enumerate(stated) if mark.rank == best)
    if best == BARE:
        place = max(range(len(stated)), key=lambda i: (_weight(text, stated[i]), i))
    mark = stated[place]
    for before, after in pairwise(stated[max(0, place - 1) : place + 2]):
        if before.label == after.label:
            continue
        between = text[before.end : after.start]
        if len(between) <= 60 and CHOICE.fullmatch(between):
            return None
        if not CLAUSE.search(between) and before.rank > after.rank == BARE:
            follows = [FOLLOW.match(text, m.end, m.end + 20) for m in (before, after)]
            if follows[0] and follows[1] and follows[0][1] == follows[1][1] != "":
                return None  # "[[6]] for turn 1 and [[9]] for turn 2"
    return mark


def _is_aside(text: str, mark: Mark, examples: Collection[str]) -> bool:
    """Whether a verdict is denied, supposed, quoted, an example or a link."""
    line = text[max(0, mark.start - WINDOW) : mark.start].rpartition("\n")[2]
    after = text[mark.end : mark.end + WINDOW].partition("\n")[0]
    clause = CLAUSE.split(line)[-1]
    before = _unlabelled(line)
    if DENIED_BEFORE.search(line) or DENIED_AFTER.match(after):
        return True
    if EXAMPLE_BEFORE.search(before) or _lead_is_example(text, mark, examples):
        return True
    if SUPPOSED_BEFORE.search(CLAUSE.split(before)[-1]) or (
        mark.rank < SCORED and SUPPOSED_BEFORE.search(clause)
    ):
        return True
    if _is_quoted(line, after, mark):
        # 'I rate it as follows: "Rating: [[7]]".' is how some judges end.
        announced = re.search(r":\s?[*_\s]{0,3}.\Z", before) is not None
        ends = TAIL.fullmatch(text.replace("”", '"'), mark.end) is not None
        if not (announced and ends) or PLACEHOLDER.search(line):
            return True
    if mark.rank >= SCORED:
        return bool(re.match(r"[\s*_]{0,4}(?:would|could|might)\b", after))
    if SUPPOSED_AFTER.match(after) or (SAID_BUT.search(clause) and BUT.match(after)):
        return True
    if re.match(r"\([^()\s]*\)|\s{0,3}[:–-]?\s{0,3}<?https?://", after):
        return True  # a link, or a source
    opened = line.rfind("(")
    return opened > line.rfind(")") and bool(line[opened + 1 :].strip(DRESSING))


def _unlabelled(line: str) -> str:
    """The text before a verdict and its label."""
    label = LABEL_END.search(line)
    return line[: label.start()] if label else line


def _is_quoted(line: str, after: str, mark: Mark) -> bool:
    """Whether a verdict stands in quotation marks among other words, or beside a placeholder."""
    if mark.rank < SCORED and (PLACEHOLDER.search(line) or PLACEHOLDER.search(after)):
        return True
    closed = re.match(rf"[\s*_.,!]{{0,3}}[{CLOSING}]", after)
    if closed and LABEL_END.search(line) and line.rstrip(" *_")[-1] in OPENING:
        return False  # the label stands before the quotation mark
    head = _unlabelled(line).rstrip(" *_")
    if not closed or not head or head[-1] not in OPENING:
        bare = line.rstrip(" *_")
        if not closed or not bare or bare[-1] not in OPENING:
            return False
        head = bare
    head = head[:-1]
    rest = after[closed.end() :]
    if not head.strip(DRESSING + ">-") and not rest.strip(DRESSING + ".,"):
        return False
    return LABEL_END.search(head) is None


def _lead_is_example(text: str, mark: Mark, examples: Collection[str]) -> bool:
    return (
        bool(examples) and text_before(text, mark.start) + text[mark.start : mark.end] in examples
    )


def _weight(text: str, mark: Mark) -> int:
    """2 for a verdict that is chosen; less for a name: "[[A]] is better", "while [[B]] fails"."""
    before = text[max(0, mark.start - 40) : mark.start].rpartition("\n")[2]
    subject = SUBJECT.search(before)
    named = subject is not None or not before.strip()
    if not named or not PREDICATE.match(text, mark.end, mark.end + 8):
        return 2
    return 0 if subject and subject[1] else 1


def _is_alone(text: str, start: int, end: int) -> bool:
    """Whether a verdict is all that its line holds."""
    before = text[max(0, start - 20) : start].rpartition("\n")
    after = text[end : end + 20].partition("\n")
    whole_line = bool(before[1]) or start <= 20
    return (
        whole_line
        and (bool(after[1]) or end + 20 >= len(text))
        and not before[2].strip(DRESSING + ">-({")
        and not after[0].strip(DRESSING + ".!)}")
    )


def _without_lists(text: str, marks: list[Mark]) -> list[Mark]:
    """Without verdicts that only list what there is: sources, choices, meanings."""
    dropped: set[int] = set()
    for index, (one, two) in enumerate(pairwise(marks)):
        between = text[one.end : two.start]
        if one.label != two.label and between and len(between) < 40 and LISTED.fullmatch(between):
            choice = re.search(r"\b(?:or|and)\b", between, re.IGNORECASE) and len(marks) == 2
            one_line = "\n" not in between or one.rank == two.rank == ALONE
            if one_line and not choice:
                dropped |= {i for i in (index, index + 1) if marks[i].rank <= ALONE}
    for kinds in (
        ("if", "when", "for", "in case", "would", "mean", "ind", "sta", "den", "rep"),
        (":", "=", "-", "–", "—", "("),
    ):
        meant = [
            i
            for i, mark in enumerate(marks)
            if (found := FOLLOW.match(text, mark.end, mark.end + 20))
            and found[1].lower().startswith(kinds)
            and (mark.rank <= ALONE or kinds[0] == "if" or _starts_line(text, mark))
        ]
        if len({marks[i].label for i in meant}) > 1 and not _mixed(marks, meant):
            dropped |= set(meant)
    premises = [
        i
        for i, mark in enumerate(marks)
        if PREMISE.search(text[max(0, mark.start - WINDOW) : mark.start].rpartition("\n")[2])
    ]
    if len({marks[i].label for i in premises}) > 1:
        line = text.find("\n", marks[premises[-1]].end)
        end = len(text) if line < 0 else line
        dropped |= {i for i in range(premises[0], len(marks)) if marks[i].end <= end}
    heads = [i for i, mark in enumerate(marks) if mark.rank == BARE and _starts_line(text, mark)]
    if len({marks[i].label for i in heads}) > 1 and len(heads) > 1:
        dropped |= set(heads)
    return [mark for i, mark in enumerate(marks) if i not in dropped]


def _mixed(marks: list[Mark], meant: list[int]) -> bool:
    """Whether one of them is labelled and the others are not: a verdict and its explanation."""
    ranks = Counter(marks[i].rank >= SCORED for i in meant)
    return ranks[True] == 1 and len(meant) == 2


def _starts_line(text: str, mark: Mark) -> bool:
    return (
        not text[max(0, mark.start - 20) : mark.start].rpartition("\n")[2].strip(DRESSING + ">-+•")
    )


def _on_scale(text: str, start: int, end: int, top: float) -> bool:
    """Whether nothing beside a rating says that it is on another scale."""
    after = SCALE_AFTER.match(text, end, end + 60)
    line = text[max(0, start - WINDOW) : start].rpartition("\n")[2]
    for match in (after, SCALE_BEFORE.search(line)):
        if match is None:
            continue
        said = match[match.lastindex or 0].lower()
        if said in ("%", "percent"):
            said = "100"
        number = {"twenty": 20, "hundred": 100}.get(said)
        if number is None:
            number = SMALL.index(said) if said in SMALL else int(said)
        if number != top:
            return False
    return True


def _number(content: str, top: float) -> str | None:
    """A number that stands alone but for its dressing, as a plain literal; else None."""
    match = NUMBER.fullmatch(content.strip(DRESSING + "[]"))
    if match is None or (match[2] is not None and float(match[2]) != top):
        return None
    return str(float(match[1]) if "." in match[1] else int(match[1]))


def _winner(content: str) -> str | None:
    match = WINNER.fullmatch(content.strip(DRESSING))
    if match is None:
        return None
    return match[1] if match[1] in ("A", "B") else "tie"
