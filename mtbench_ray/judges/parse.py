r"""Reading a verdict from a judge's reply. Never raises, and takes time linear in the text.

Safe parity (the default) reads the judge's own statement: the reply without thinking, code,
comments and links (:mod:`~mtbench_ray.judges.regions`). In it, the last verdict that is *labelled*
as one counts (``Rating: [[7]]``, ``My verdict: [[A]]``); where none is labelled, the last one that
stands alone on its line; else the last one.

* A rating is a number alone in double brackets, or in single brackets after the word "Rating".
  Marks around the number do not matter: ``[[**7**]]``, ``[[ 7 ]]``, ``[[Rating: 7]]``,
  ``[[7/10]]``, ``\[\[7\]\]`` are all 7. ``x[[7]]`` is an index, not a rating.
* A number outside the scale is no rating (``out_of_range``), it is not clamped; one on another
  scale (``[[4]]/5`` where 1 to 10 was asked for) is none either.
* What the judge denies, quotes, only supposes or gives as an example is no verdict, nor is a list
  of what the verdicts mean.
* Two verdicts joined as a range, a choice or a comparison are none: ``[[7]] or [[8]]``,
  ``[[A]] > [[B]]``, ``[[7]] out of [[10]]``. ``Rating: [[8]][[9]]`` is 9.
* In a reply that was cut off (``finish_reason="length"``) a verdict counts only at the very end:
  the judge may have been about to give another one.
* A code block that ends the reply is read where the statement has no labelled verdict.

Parity ``fastchat`` does what FastChat 0.2.36 does (``common.py``, ``one_score_pattern`` and the
winner tests): the first number in double brackets, else the first in single brackets, anywhere and
on no scale; ``[[A]]`` before ``[[B]]`` before ``[[C]]`` anywhere in the text.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from mtbench_ray.judges.regions import FILLER, plain, statement
from mtbench_ray.models.thinking import THINKING, is_mentioned, split_channels


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reply says.

    Attributes:
        value: A rating; ``A``, ``B`` or ``tie``; None where there is no verdict.
        reason: Empty where there is a value, else ``no_rating``, ``no_winner``, ``out_of_range``,
            ``truncated``, ``refused`` or ``empty``.
        label: The verdict as the judge wrote it: the rating as a number
            without a dot where the judge wrote none, or the value.
    """

    value: float | str | None
    reason: str = ""
    label: str | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """A well-formed verdict, where it stands and how well it is labelled as one."""

    start: int
    end: int
    label: str
    rank: int


_NAMED, _SCORED, _ALONE, _BARE = 4, 3, 2, 1
"""Ranks: labelled in the word that is asked for, in a like one, alone on its line, other."""
_LOOK_BACK = 400
"""So many verdicts from the end are looked at; no judge gives more."""
_LONGEST = 200_000
"""Characters from the end of a reply that are looked at."""
_WINDOW = 120
"""Characters before a verdict that may say what it is."""

# Possessive quantifiers and bounded contents keep every pattern linear on hostile text.
_FASTCHAT_DOUBLE = re.compile(r"\[\[(\d++(?:\.\d*+)?)\]\]")
_FASTCHAT_SINGLE = re.compile(r"\[(\d++(?:\.\d*+)?)\]")

# The word "rating" in the languages that judges write in: prompts are translated, too.
_RATING = (
    "ratings?|评分|評分|评级|評級|打分|得分|评价|評価|評点|採点|평점|평가|점수|оценка|рейтинг|bewertung"
    "|calificación|puntuación|valoración|classificação|avaliação|pontuação|valutazione|ocena"
    "|beoordeling|değerlendirme|puan|đánh giá|التقييم|تقييم|คะแนน|penilaian|hodnocení|értékelés"
    "|betyg|vurdering|arvosana|रेटिंग"
)
_SCORE = (
    "scores?|grade|marks?|verdict|evaluation|assessment|judge?ment|wertung|punktzahl|note|nota"
    "|punteggio|voto|分数|分數|スコア|점|балл"
)
_WINNER_WORDS = (
    f"verdict|winner|decision|choice|conclusion|judge?ment|answer|preference|result|{_SCORE}"
    f"|{_RATING}|i (?:choose|pick|select|prefer)|결론|결과|判定|结论|結論|判断|裁决|优胜|胜者|勝者"
)
# What may stand between a label and its verdict: a connector, and marks without a meaning.
_DRESS = (
    r"[\s*_`~|\"'“”„«»「」#>${]|\\[a-z]{2,12}+\{?+|\\[(\[]"
    r"|<\w{1,10}+(?:\s[^<>\n]{0,60}+)?+>|</\w{1,10}+>"
)
_CONNECT = (
    rf"(?:{_DRESS}){{0,6}}+(?:(?:is|was|of|stands at|would be|ist|es|est|è|é|是|为|為|は)"
    rf"(?![^\W\d_])|=>|->|→|[:=–—-])(?:{_DRESS}|[:(]|\[(?=\s{{0,2}}\[\s?\[)){{0,16}}+|(?:{_DRESS}){{0,8}}+"
)
_QUALIFIED = r"(?: ?\([^()\[\]\n]{0,40}\)|[^\[\]\n.;!?:=\"“”]{0,60}(?=[:=]))?"
_BRACKET = r"\[[ *]{0,4}\[([^\[\]]{1,60})\][ *]{0,4}\]"
_INDEX = r"(?:(?<![A-Za-z0-9_])|(?<=rating)|(?<=score))"
_DOUBLE = re.compile(_INDEX + _BRACKET, re.IGNORECASE)


def _labels(words: str, bracket: str) -> re.Pattern[str]:
    label = rf"(?<![A-Za-z])(?:{words})(?![a-zA-Z]){_QUALIFIED}(?:{_CONNECT})"
    return re.compile(f"{label}{bracket}", re.IGNORECASE)


_NAMED_RATING = _labels(_RATING, rf"(?:{_BRACKET}|\[?\[([^\[\]]{{1,60}})\]\]?)")
_SCORED_RATING = _labels(_SCORE, _BRACKET)
_NAMED_WINNER = _labels(_WINNER_WORDS, _BRACKET)
_SCORED_WINNER = re.compile(rf"[:=](?:{_DRESS}){{0,12}}+{_BRACKET}", re.IGNORECASE)
_TAGS = re.compile(r"<score>([^<>]{1,60})</score>", re.IGNORECASE)
_LABEL_END = re.compile(
    rf"(?<![A-Za-z])(?:{_WINNER_WORDS})(?![a-zA-Z]){_QUALIFIED}(?:{_CONNECT})\Z", re.IGNORECASE
)

_NUMBER = re.compile(
    r"(?:[^\W\d]{0,20} ?(?:rating|score|评分|評分|评级|得分)[\s:=*_`]{0,8})?"
    r"([+-]?\d{1,20}(?:\.\d{0,20})?)"
    r"(?: ?(?:/|out of) ?(\d{1,20})(?:\.0)?)?(?: ?(?:points?|stars?|分|점|点))?",
    re.IGNORECASE,
)
_WINNER = re.compile(
    r"(?:(?i:assistant|answer|model|response|winner:?|verdict:?)[ _])?([ABC])"
    r"(?i: (?:wins|is better))?|((?i:tie|draw))"
)
_DRESSING = " \t\r\n*_`$\"'#“”"
_DEGREE = r"(?:(?:much|slightly|clearly|far|a bit|a little) )?"
_JOINED = "|".join(
    (
        r"[-–—~/|<>=≤≥≈≻≺+&:→]{1,3}",
        r"to|or|and|and/or|out of|of|vs\.?|versus|but|through|bis|或|或者|到|至|か|または|또는",
        r"over|beats|beat|wins over|loses to",
        rf"(?:(?:is|was) )?{_DEGREE}(?:better|worse|stronger|weaker|higher|lower|more|less) than",
    )
)
_AROUND = r"[\s*_`,;(\"'“”]{0,8}"
_CHOICE = re.compile(rf"{_AROUND}(?:{_JOINED}){_AROUND}(?:an? )?{_AROUND}", re.IGNORECASE)
_LISTED = re.compile(r"[\s,;*_\"'“”]*(?:or|and)?[\s\"'“”*_]*", re.IGNORECASE)
_TAIL = re.compile(r"[\s*_`.!)\]\"'>$}]*(?:</\w{1,20}>\s*)?|[\s*_`]*/ ?\d+[\s*_`.]*")

_SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_N = rf"(\d{{1,4}}|{'|'.join(_SMALL)}|twenty|hundred)(?!\d)"
_SPAN = r"[01] ?(?:-|–|—|to|and|bis|à|a|至|到|~) ?(\d{1,4})"
_SCALE_AFTER = re.compile(
    rf"[\s*_`$}})\"']{{0,6}}(?:stars?|points?)?(?:\s{{0,3}}/ ?{_N}"
    rf"|[\s,(]{{1,3}}(?:out of|of|von|sur|de|su|из|op|av|over) {_N}(?!\w)"
    rf"|[\s,(（]{{0,3}}满分(?:为|是)? ?{_N}"
    rf"|(?:[\s,(]{{1,3}}(?:on )?(?:an? |the )?(?:(?:[\w-]{{1,12}} )?scale (?:of |from |between )?)"
    rf"\(?{_SPAN})|[\s,]{{0,3}}\((?:from )?{_SPAN}\)"
    rf"|[\s,(]{{1,3}}(?:on )?(?:an? |the )?{_SPAN}[- ](?:point )?scale"
    rf"| ?(%)|[\s]?(percent))",
    re.IGNORECASE,
)
_SCALE_BEFORE = re.compile(
    rf"(?:scale (?:of|from|between)? ?{_SPAN}|\((?:from )?{_SPAN}\)|\(?out of {_N}\)?"
    rf"|\(?/ ?{_N}\)|满分 ?{_N})[^\[\]\n]{{0,60}}\Z",
    re.IGNORECASE,
)

_FILL = (
    r"(?:(?:be|an?|the|as|give|given|giving|rate|award|choose|pick|say|it|this|my|our|verdict|rating"
    r"|score|of|worth|deserve|deserving|assistant|model|answer|option|final|for|necessarily|quite)"
    r"[\s:]{1,2})"
)
_OPEN = r"[\s*_\"'“”(]{0,4}\Z"
_DENIED_BEFORE = re.compile(
    rf"(?:\b(?:not|never|nor|neither|cannot|rather than|instead of|without|against|nicht|kein|pas)"
    rf"|n't|n’t)\s+{_FILL}{{0,5}}{_OPEN}|(?:不是|而非|并非|ではなく){_OPEN}",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s*_\"'”)]{0,4}(?:(?:is|was|does|did|has|can)(?: not|n't|n’t)\b|cannot\b|isn't"
    r"|(?:is|was|seems) (?:the )?(?:worse|weaker|wrong|inferior|too)\b|loses\b)",
    re.IGNORECASE,
)
_SUPPOSED_BEFORE = re.compile(
    rf"(?<!\bI )(?<!\bwe )\b(?:would|could|might)(?: (?:have|not|only|even|then))*"
    rf"(?:\s(?:be|been|get|got|earn|earned|deserve|deserved|receive|merit|become|make|give|given))"
    rf"(?:\sit)?\s{_FILL}{{0,3}}{_OPEN}",
    re.IGNORECASE,
)
_SUPPOSED_AFTER = re.compile(
    r"[\s*_\"'”)]{0,4},?\s?(?:would|could|might|may|means?|meaning|indicates?|stands for|denotes?"
    r"|represents?|were|had it|unless|provided|if)\b",
    re.IGNORECASE,
)
_SAID_BUT = re.compile(r"\b(?:would|could|might|['’]d)\s[^\[\]\n.;:]{0,40}\Z", re.IGNORECASE)
_BUT = re.compile(r"[\s*_\"'”)]{0,4},? ?(?:but|if|were|had|with)\b", re.IGNORECASE)
_EXAMPLE_BEFORE = re.compile(
    r"(?:\bfor (?:example|instance)|\be\. ?g\.|^[\s*_>#-]*example|\bsuch as|\blike so"
    r"|\bz\. ?b\.|\bpar exemple|\bpor ejemplo|\bpor exemplo|\bzum beispiel|\bнапример"
    r"|例如|比如|たとえば|例えば|예를 들어"
    r"|\bexample (?:format|output|verdict|rating))[\s,:*_(\"'“”„«]{0,8}\Z",
    re.IGNORECASE | re.MULTILINE,
)
_PLACEHOLDER = re.compile(r"\[\[\s?[^\W\d_][\w /-]{1,30}\]\]")
_CLAUSE = re.compile(r"[.!?;:。！？]\s|\n")
_PREDICATE = re.compile(r"[*_\"'”)]{0,4}(?:'s\b|\s[a-z])")
_SUBJECT = re.compile(
    r"(?:\A|[.!?;:,]|\b(because|while|although|though|since|whereas|as|that|when|if|than))"
    r"[\s*_\"'“(]{0,4}(?:(?:assistant|answer|model)\s)?[\s*_\"'“(]{0,4}\Z",
    re.IGNORECASE,
)
_FOLLOW = re.compile(
    r"[\s*_\"'”’)»」]{0,6}(?:,\s?)?(if|when|for|in case|means?|meaning|indicates?"
    r"|stands for|denotes?|represents?|would|[:=](?!>)|[-–—](?=\s)|\()",
    re.IGNORECASE,
)
_PREMISE = re.compile(
    r"(?:\A|[\s(*_-])(?:if|when|in case|for an?)\b[^.;\n\[\]]{0,80}\Z", re.IGNORECASE
)
_OPENING, _CLOSING = "\"'“‘„«「『", "\"'”’“»」』"


def parse_rating(
    text: str | None,
    finish_reason: str | None = None,
    parity: str = "safe",
    *,
    scale: tuple[float, float] = (1, 10),
    style: str = "brackets",
    thinking: tuple[str, str] = THINKING,
    examples: Collection[str] = (),
) -> Verdict:
    """Read a rating.

    Args:
        text: The judge's reply.
        finish_reason: Why the reply ended; ``length`` means that it was cut off.
        parity: ``safe`` or ``fastchat``, see the module's text.
        scale: Lowest and highest rating that count; parity ``fastchat`` has no scale in brackets.
        style: ``brackets``, or ``tags``: the number stands in ``<score>`` (same in both parities).
        thinking: Opening and closing tag of the judge's thinking.
        examples: Verdicts in the judge prompt itself, see :func:`format_examples`.
    """
    if not text or not text.strip():
        return _nothing(text or "", finish_reason, "empty")
    if parity == "fastchat" and style == "brackets":
        return _fastchat_rating(text)
    seen = plain(outside_thinking(text, thinking))
    find = _scores if style == "tags" else _ratings
    mark = _read(seen, finish_reason, examples, lambda part: find(part, scale[1]))
    if mark is None:
        return _nothing(seen, finish_reason, "no_rating")
    value = float(mark.label)
    if not scale[0] <= value <= scale[1]:
        return Verdict(None, "out_of_range")
    return Verdict(value, label=mark.label)


def parse_winner(
    text: str | None,
    finish_reason: str | None = None,
    parity: str = "safe",
    *,
    thinking: tuple[str, str] = THINKING,
    examples: Collection[str] = (),
) -> Verdict:
    """Read the winner of one game: ``A``, ``B`` or ``tie``. Arguments as in parse_rating."""
    if not text or not text.strip():
        return _nothing(text or "", finish_reason, "empty")
    if parity == "fastchat":
        for letter, value in (("A", "A"), ("B", "B"), ("C", "tie")):
            if f"[[{letter}]]" in text:
                return Verdict(value, label=value)
        return Verdict(None, "no_winner")
    seen = plain(outside_thinking(text, thinking))
    mark = _read(seen, finish_reason, examples, _winners)
    if mark is None:
        return _nothing(seen, finish_reason, "no_winner")
    return Verdict(mark.label, label=mark.label)


@lru_cache(maxsize=64)
def format_examples(texts: tuple[str, ...]) -> frozenset[str]:
    """The verdicts that a judge prompt shows as examples, each with the text that leads to it.

    A judge that repeats its instructions writes them after the same text again.
    """
    found = set()
    for text in texts:
        seen = plain(text)
        for match in _DOUBLE.finditer(seen):
            lead = _lead(seen, match.start())
            if len(lead) >= _LEAD:
                found.add(lead + match[0])
    return frozenset(found)


_LEAD = 30


def _lead(text: str, start: int) -> str:
    before = " ".join(text[max(0, start - 3 * _LEAD) : start].lower().split(" "))
    return re.sub(r"\s+", " ", before)[-_LEAD:]


def outside_thinking(text: str, tags: tuple[str, str] = THINKING) -> str:
    """The text without its thinking: the final channel, and that without blocks between tags.

    An unclosed block runs to the end. A closing tag without an opening one ends a block that the
    chat template opened, so all before it goes. A tag quoted in backticks is only talked about,
    and so is one within a sentence that nothing closes ("it leaks its <think> tag").
    """
    channels = split_channels(text)
    if channels is not None:
        text = channels.final or ""
    opening, closing = tags
    if not opening or not closing or (opening not in text and closing not in text):
        return text
    kept: list[str] = []
    inside, begin, position, lone = False, 0, 0, 0
    for match in _tag_pattern(opening, closing).finditer(text):
        opens = match.group() == opening
        if inside and not opens:
            inside = False
        elif not inside and opens:
            kept.append(text[position : match.start()])
            inside, begin = True, match.start()
        elif not inside:
            lone += 1
            if lone < _LOOK_BACK and is_mentioned(text, match.start(), match.end()):
                continue
            kept.clear()
        position = match.end()
    if not inside:
        kept.append(text[position:])
    elif is_mentioned(text, begin, begin + len(opening)):
        kept.append(text[begin:])
    return "".join(kept)


@lru_cache(maxsize=16)
def _tag_pattern(opening: str, closing: str) -> re.Pattern[str]:
    tag = f"(?:{re.escape(opening)}|{re.escape(closing)})"
    return re.compile(f"(?<!`){tag}|{tag}(?!`)")


def _read(
    seen: str,
    finish_reason: str | None,
    examples: Collection[str],
    find: Callable[[str], list[_Mark]],
) -> _Mark | None:
    """The verdict of a reply, or None where it states none."""
    seen = seen.rstrip()[-_LONGEST:]
    own = statement(seen)
    text = own.text
    for code in own.codes[-_LOOK_BACK // 8 :]:
        # A label outside and the number in code: that code is dressing.
        if _DOUBLE.fullmatch(code.text.strip()) and _LABEL_END.search(
            text[max(0, code.start - _WINDOW) : code.start]
        ):
            text = (
                text[: code.start]
                + seen[code.start : code.end].replace("`", " ")
                + text[code.end :]
            )
            break
    mark = _choose(text, find(text), examples)
    if (mark is None or mark.rank < _SCORED) and own.codes:
        code = own.codes[-1]
        last = _TAIL.fullmatch(text, code.end) is not None
        inner = _choose(code.text, find(code.text), examples) if last else None
        whole = inner is not None and not text.replace(FILLER, "").strip(_DRESSING)
        if inner is not None and (inner.rank >= _SCORED or whole):
            return inner if _final(code.text, inner, finish_reason) else None
    return mark if mark is not None and _final(text, mark, finish_reason) else None


def _ratings(text: str, top: float) -> list[_Mark]:
    """All well-formed ratings on the scale that ends at ``top``, in order."""
    return _marks(
        text,
        (_NAMED_RATING, _SCORED_RATING),
        lambda content: _number(content, top),
        lambda start, end: _on_scale(text, start, end, top),
    )


def _winners(text: str) -> list[_Mark]:
    return _marks(text, (_NAMED_WINNER, _SCORED_WINNER), _winner, lambda start, end: True)


def _scores(text: str, top: float) -> list[_Mark]:
    marks = []
    for match in _TAGS.finditer(text):
        label = _number(match[1], top)
        if label is not None and _on_scale(text, match.start(), match.end(), top):
            marks.append(_Mark(match.start(), match.end(), label, _NAMED))
    return marks


def _marks(
    text: str,
    labels: Sequence[re.Pattern[str]],
    read: Callable[[str], str | None],
    counts: Callable[[int, int], bool],
) -> list[_Mark]:
    found: dict[int, tuple[int, str, int]] = {}
    for match in list(_DOUBLE.finditer(text))[-_LOOK_BACK:]:
        found[match.start()] = (match.end(), match[1], _BARE)
    for rank, pattern in zip((_NAMED, _SCORED), labels, strict=True):
        for match in list(pattern.finditer(text))[-_LOOK_BACK:]:
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
    marks: list[_Mark] = []
    for start, (end, content, rank) in sorted(found.items()):
        label = read(content)
        if label is None or not counts(start, end):
            continue
        if rank == _BARE and re.match(
            r"\s*\D*(?:rating|score|verdict|winner)", content, re.IGNORECASE
        ):
            rank = _NAMED
        if rank == _BARE and marks and marks[-1].end == start and marks[-1].rank >= _SCORED:
            rank = marks[-1].rank
        if rank == _BARE and _is_alone(text, start, end):
            rank = _ALONE
        marks.append(_Mark(start, end, label, rank))
    return marks


def _choose(text: str, marks: list[_Mark], examples: Collection[str]) -> _Mark | None:
    """The verdict that the judge states: the last of the best labelled ones."""
    listed = _without_lists(text, marks)
    stated = [mark for mark in listed if not _is_aside(text, mark, examples)]
    if not stated:
        return None
    best = max(mark.rank for mark in stated)
    place = max(index for index, mark in enumerate(stated) if mark.rank == best)
    if best == _BARE:
        place = max(range(len(stated)), key=lambda i: (_weight(text, stated[i]), i))
    mark = stated[place]
    for before, after in pairwise(stated[max(0, place - 1) : place + 2]):
        if before.label == after.label:
            continue
        between = text[before.end : after.start]
        if len(between) <= 60 and _CHOICE.fullmatch(between):
            return None
        if not _CLAUSE.search(between) and before.rank > after.rank == _BARE:
            follows = [_FOLLOW.match(text, m.end, m.end + 20) for m in (before, after)]
            if follows[0] and follows[1] and follows[0][1] == follows[1][1] != "":
                return None  # "[[6]] for turn 1 and [[9]] for turn 2"
    return mark


def _is_aside(text: str, mark: _Mark, examples: Collection[str]) -> bool:
    """Whether a verdict is denied, supposed, quoted, an example or a link."""
    line = text[max(0, mark.start - _WINDOW) : mark.start].rpartition("\n")[2]
    after = text[mark.end : mark.end + _WINDOW].partition("\n")[0]
    clause = _CLAUSE.split(line)[-1]
    before = _unlabelled(line)
    if _DENIED_BEFORE.search(line) or _DENIED_AFTER.match(after):
        return True
    if _EXAMPLE_BEFORE.search(before) or _lead_is_example(text, mark, examples):
        return True
    if _SUPPOSED_BEFORE.search(_CLAUSE.split(before)[-1]) or (
        mark.rank < _SCORED and _SUPPOSED_BEFORE.search(clause)
    ):
        return True
    if _is_quoted(line, after, mark):
        # 'I rate it as follows: "Rating: [[7]]".' is how some judges end.
        announced = re.search(r":\s?[*_\s]{0,3}.\Z", before) is not None
        ends = _TAIL.fullmatch(text.replace("”", '"'), mark.end) is not None
        if not (announced and ends) or _PLACEHOLDER.search(line):
            return True
    if mark.rank >= _SCORED:
        return bool(re.match(r"[\s*_]{0,4}(?:would|could|might)\b", after))
    if _SUPPOSED_AFTER.match(after) or (_SAID_BUT.search(clause) and _BUT.match(after)):
        return True
    if re.match(r"\([^()\s]*\)|\s{0,3}[:–-]?\s{0,3}<?https?://", after):
        return True  # a link, or a source
    opened = line.rfind("(")
    return opened > line.rfind(")") and bool(line[opened + 1 :].strip(_DRESSING))


def _unlabelled(line: str) -> str:
    """The text before a verdict and its label."""
    label = _LABEL_END.search(line)
    return line[: label.start()] if label else line


def _is_quoted(line: str, after: str, mark: _Mark) -> bool:
    """Whether a verdict stands in quotation marks among other words, or beside a placeholder."""
    if mark.rank < _SCORED and (_PLACEHOLDER.search(line) or _PLACEHOLDER.search(after)):
        return True
    closed = re.match(rf"[\s*_.,!]{{0,3}}[{_CLOSING}]", after)
    if closed and _LABEL_END.search(line) and line.rstrip(" *_")[-1] in _OPENING:
        return False  # the label stands before the quotation mark
    head = _unlabelled(line).rstrip(" *_")
    if not closed or not head or head[-1] not in _OPENING:
        bare = line.rstrip(" *_")
        if not closed or not bare or bare[-1] not in _OPENING:
            return False
        head = bare
    head = head[:-1]
    rest = after[closed.end() :]
    if not head.strip(_DRESSING + ">-") and not rest.strip(_DRESSING + ".,"):
        return False
    return _LABEL_END.search(head) is None


def _lead_is_example(text: str, mark: _Mark, examples: Collection[str]) -> bool:
    return bool(examples) and _lead(text, mark.start) + text[mark.start : mark.end] in examples


def _weight(text: str, mark: _Mark) -> int:
    """2 for a verdict that is chosen; less for a name: "[[A]] is better", "while [[B]] fails"."""
    before = text[max(0, mark.start - 40) : mark.start].rpartition("\n")[2]
    subject = _SUBJECT.search(before)
    named = subject is not None or not before.strip()
    if not named or not _PREDICATE.match(text, mark.end, mark.end + 8):
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
        and not before[2].strip(_DRESSING + ">-({")
        and not after[0].strip(_DRESSING + ".!)}")
    )


def _without_lists(text: str, marks: list[_Mark]) -> list[_Mark]:
    """Without verdicts that only list what there is: sources, choices, meanings."""
    dropped: set[int] = set()
    for index, (one, two) in enumerate(pairwise(marks)):
        between = text[one.end : two.start]
        if one.label != two.label and between and len(between) < 40 and _LISTED.fullmatch(between):
            choice = re.search(r"\b(?:or|and)\b", between, re.IGNORECASE) and len(marks) == 2
            one_line = "\n" not in between or one.rank == two.rank == _ALONE
            if one_line and not choice:
                dropped |= {i for i in (index, index + 1) if marks[i].rank <= _ALONE}
    for kinds in (
        ("if", "when", "for", "in case", "would", "mean", "ind", "sta", "den", "rep"),
        (":", "=", "-", "–", "—", "("),
    ):
        meant = [
            i
            for i, mark in enumerate(marks)
            if (found := _FOLLOW.match(text, mark.end, mark.end + 20))
            and found[1].lower().startswith(kinds)
            and (mark.rank <= _ALONE or kinds[0] == "if" or _starts_line(text, mark))
        ]
        if len({marks[i].label for i in meant}) > 1 and not _mixed(marks, meant):
            dropped |= set(meant)
    premises = [
        i
        for i, mark in enumerate(marks)
        if _PREMISE.search(text[max(0, mark.start - _WINDOW) : mark.start].rpartition("\n")[2])
    ]
    if len({marks[i].label for i in premises}) > 1:
        line = text.find("\n", marks[premises[-1]].end)
        end = len(text) if line < 0 else line
        dropped |= {i for i in range(premises[0], len(marks)) if marks[i].end <= end}
    heads = [i for i, mark in enumerate(marks) if mark.rank == _BARE and _starts_line(text, mark)]
    if len({marks[i].label for i in heads}) > 1 and len(heads) > 1:
        dropped |= set(heads)
    return [mark for i, mark in enumerate(marks) if i not in dropped]


def _mixed(marks: list[_Mark], meant: list[int]) -> bool:
    """Whether one of them is labelled and the others are not: a verdict and its explanation."""
    ranks = Counter(marks[i].rank >= _SCORED for i in meant)
    return ranks[True] == 1 and len(meant) == 2


def _starts_line(text: str, mark: _Mark) -> bool:
    return (
        not text[max(0, mark.start - 20) : mark.start].rpartition("\n")[2].strip(_DRESSING + ">-+•")
    )


def _on_scale(text: str, start: int, end: int, top: float) -> bool:
    """Whether nothing beside a rating says that it is on another scale."""
    after = _SCALE_AFTER.match(text, end, end + 60)
    line = text[max(0, start - _WINDOW) : start].rpartition("\n")[2]
    for match in (after, _SCALE_BEFORE.search(line)):
        if match is None:
            continue
        said = match[match.lastindex or 0].lower()
        if said in ("%", "percent"):
            said = "100"
        number = {"twenty": 20, "hundred": 100}.get(said)
        if number is None:
            number = _SMALL.index(said) if said in _SMALL else int(said)
        if number != top:
            return False
    return True


def _number(content: str, top: float) -> str | None:
    """A number that stands alone but for its dressing, as a plain literal; else None."""
    match = _NUMBER.fullmatch(content.strip(_DRESSING + "[]"))
    if match is None or (match[2] is not None and float(match[2]) != top):
        return None
    return str(float(match[1]) if "." in match[1] else int(match[1]))


def _winner(content: str) -> str | None:
    match = _WINNER.fullmatch(content.strip(_DRESSING))
    if match is None:
        return None
    return match[1] if match[1] in ("A", "B") else "tie"


def _final(text: str, mark: _Mark, finish_reason: str | None) -> bool:
    """Whether nothing but marks follows the verdict of a reply that was cut off."""
    return finish_reason != "length" or _TAIL.fullmatch(text, mark.end) is not None


def _nothing(text: str, finish_reason: str | None, reason: str) -> Verdict:
    """No verdict; the way the reply ended says more than its text."""
    if finish_reason == "length":
        return Verdict(None, "truncated")
    if finish_reason == "content_filter":
        return Verdict(None, "refused")
    return Verdict(None, reason if text.strip() else "empty")


def _fastchat_rating(text: str) -> Verdict:
    match = _FASTCHAT_DOUBLE.search(text) or _FASTCHAT_SINGLE.search(text)
    if match is None:
        return Verdict(None, "no_rating")
    try:
        value = ast.literal_eval(match[1])
        label, value = str(value), float(value)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return Verdict(None, "no_rating")  # FastChat itself dies here, for example on [[05]]
    if not math.isfinite(value):
        return Verdict(None, "out_of_range")
    return Verdict(value, label=label)
