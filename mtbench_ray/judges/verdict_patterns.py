"""What verdicts look like, and the words around them that make or unmake one.

Possessive quantifiers and bounded contents keep every pattern linear on hostile text.
"""

from __future__ import annotations

import re

FASTCHAT_DOUBLE = re.compile(r"\[\[(\d++(?:\.\d*+)?)\]\]")
FASTCHAT_SINGLE = re.compile(r"\[(\d++(?:\.\d*+)?)\]")

# The word "rating" in the languages that judges write in: prompts are translated, too.
RATING = (
    "ratings?|评分|評分|评级|評級|打分|得分|评价|評価|評点|採点|평점|평가|점수|оценка|рейтинг|bewertung"
    "|calificación|puntuación|valoración|classificação|avaliação|pontuação|valutazione|ocena"
    "|beoordeling|değerlendirme|puan|đánh giá|التقييم|تقييم|คะแนน|penilaian|hodnocení|értékelés"
    "|betyg|vurdering|arvosana|रेटिंग"
)
SCORE = (
    "scores?|grade|marks?|verdict|evaluation|assessment|judge?ment|wertung|punktzahl|note|nota"
    "|punteggio|voto|分数|分數|スコア|점|балл"
)
WINNER_WORDS = (
    f"verdict|winner|decision|choice|conclusion|judge?ment|answer|preference|result|{SCORE}"
    f"|{RATING}|i (?:choose|pick|select|prefer)|결론|결과|判定|结论|結論|判断|裁决|优胜|胜者|勝者"
)
# What may stand between a label and its verdict: a connector, and marks without a meaning.
DRESS = (
    r"[\s*_`~|\"'“”„«»「」#>${]|\\[a-z]{2,12}+\{?+|\\[(\[]"
    r"|<\w{1,10}+(?:\s[^<>\n]{0,60}+)?+>|</\w{1,10}+>"
)
CONNECT = (
    rf"(?:{DRESS}){{0,6}}+(?:(?:is|was|of|stands at|would be|ist|es|est|è|é|是|为|為|は)"
    rf"(?![^\W\d_])|=>|->|→|[:=–—-])(?:{DRESS}|[:(]|\[(?=\s{{0,2}}\[\s?\[)){{0,16}}+|(?:{DRESS}){{0,8}}+"
)
QUALIFIED = r"(?: ?\([^()\[\]\n]{0,40}\)|[^\[\]\n.;!?:=\"“”]{0,60}(?=[:=]))?"
INSIDE = r"[ *]{0,4}\[([^\[\]]{1,60})\][ *]{0,4}\]"
BRACKET = r"\[" + INSIDE
# What stands before is looked at after the bracket, which the engine finds forty times faster.
INDEX = r"(?:(?<![A-Za-z0-9_]\[)|(?<=rating\[)|(?<=score\[))"
DOUBLE = re.compile(r"\[" + INDEX + INSIDE, re.IGNORECASE)


def _labels(words: str, bracket: str) -> re.Pattern[str]:
    label = rf"(?<![A-Za-z])(?:{words})(?![a-zA-Z]){QUALIFIED}(?:{CONNECT})"
    return re.compile(f"{label}{bracket}", re.IGNORECASE)


NAMED_RATING = _labels(RATING, rf"(?:{BRACKET}|\[?\[([^\[\]]{{1,60}})\]\]?)")
SCORED_RATING = _labels(SCORE, BRACKET)
NAMED_WINNER = _labels(WINNER_WORDS, BRACKET)
SCORED_WINNER = re.compile(rf"[:=](?:{DRESS}){{0,12}}+{BRACKET}", re.IGNORECASE)
TAGS = re.compile(r"<score>([^<>]{1,60})</score>", re.IGNORECASE)
LABEL_END = re.compile(
    rf"(?<![A-Za-z])(?:{WINNER_WORDS})(?![a-zA-Z]){QUALIFIED}(?:{CONNECT})\Z", re.IGNORECASE
)

NUMBER = re.compile(
    r"(?:[^\W\d]{0,20} ?(?:rating|score|评分|評分|评级|得分)[\s:=*_`]{0,8})?"
    r"([+-]?\d{1,20}(?:\.\d{0,20})?)"
    r"(?: ?(?:/|out of) ?(\d{1,20})(?:\.0)?)?(?: ?(?:points?|stars?|分|점|点))?",
    re.IGNORECASE,
)
WINNER = re.compile(
    r"(?:(?i:assistant|answer|model|response|winner:?|verdict:?)[ _])?([ABC])"
    r"(?i: (?:wins|is better))?|((?i:tie|draw))"
)
DRESSING = " \t\r\n*_`$\"'#“”"
DEGREE = r"(?:(?:much|slightly|clearly|far|a bit|a little) )?"
JOINED = "|".join(
    (
        r"[-–—~/|<>=≤≥≈≻≺+&:→]{1,3}",
        r"to|or|and|and/or|out of|of|vs\.?|versus|but|through|bis|或|或者|到|至|か|または|또는",
        r"over|beats|beat|wins over|loses to",
        rf"(?:(?:is|was) )?{DEGREE}(?:better|worse|stronger|weaker|higher|lower|more|less) than",
    )
)
AROUND = r"[\s*_`,;(\"'“”]{0,8}"
CHOICE = re.compile(rf"{AROUND}(?:{JOINED}){AROUND}(?:an? )?{AROUND}", re.IGNORECASE)
LISTED = re.compile(r"[\s,;*_\"'“”]*(?:or|and)?[\s\"'“”*_]*", re.IGNORECASE)
TAIL = re.compile(r"[\s*_`.!)\]\"'>$}]*(?:</\w{1,20}>\s*)?|[\s*_`]*/ ?\d+[\s*_`.]*")

SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
N = rf"(\d{{1,4}}|{'|'.join(SMALL)}|twenty|hundred)(?!\d)"
SPAN = r"[01] ?(?:-|–|—|to|and|bis|à|a|至|到|~) ?(\d{1,4})"
SCALE_AFTER = re.compile(
    rf"[\s*_`$}})\"']{{0,6}}(?:stars?|points?)?(?:\s{{0,3}}/ ?{N}"
    rf"|[\s,(]{{1,3}}(?:out of|of|von|sur|de|su|из|op|av|over) {N}(?!\w)"
    rf"|[\s,(（]{{0,3}}满分(?:为|是)? ?{N}"
    rf"|(?:[\s,(]{{1,3}}(?:on )?(?:an? |the )?(?:(?:[\w-]{{1,12}} )?scale (?:of |from |between )?)"
    rf"\(?{SPAN})|[\s,]{{0,3}}\((?:from )?{SPAN}\)"
    rf"|[\s,(]{{1,3}}(?:on )?(?:an? |the )?{SPAN}[- ](?:point )?scale"
    rf"| ?(%)|[\s]?(percent))",
    re.IGNORECASE,
)
SCALE_BEFORE = re.compile(
    rf"(?:scale (?:of|from|between)? ?{SPAN}|\((?:from )?{SPAN}\)|\(?out of {N}\)?"
    rf"|\(?/ ?{N}\)|满分 ?{N})[^\[\]\n]{{0,60}}\Z",
    re.IGNORECASE,
)

FILL = (
    r"(?:(?:be|an?|the|as|give|given|giving|rate|award|choose|pick|say|it|this|my|our|verdict|rating"
    r"|score|of|worth|deserve|deserving|assistant|model|answer|option|final|for|necessarily|quite)"
    r"[\s:]{1,2})"
)
OPEN = r"[\s*_\"'“”(]{0,4}\Z"
DENIED_BEFORE = re.compile(
    rf"(?:\b(?:not|never|nor|neither|cannot|rather than|instead of|without|against|nicht|kein|pas)"
    rf"|n't|n’t)\s+{FILL}{{0,5}}{OPEN}|(?:不是|而非|并非|ではなく){OPEN}",
    re.IGNORECASE,
)
DENIED_AFTER = re.compile(
    r"[\s*_\"'”)]{0,4}(?:(?:is|was|does|did|has|can)(?: not|n't|n’t)\b|cannot\b|isn't"
    r"|(?:is|was|seems) (?:the )?(?:worse|weaker|wrong|inferior|too)\b|loses\b)",
    re.IGNORECASE,
)
SUPPOSED_BEFORE = re.compile(
    rf"(?<!\bI )(?<!\bwe )\b(?:would|could|might)(?: (?:have|not|only|even|then))*"
    rf"(?:\s(?:be|been|get|got|earn|earned|deserve|deserved|receive|merit|become|make|give|given))"
    rf"(?:\sit)?\s{FILL}{{0,3}}{OPEN}",
    re.IGNORECASE,
)
SUPPOSED_AFTER = re.compile(
    r"[\s*_\"'”)]{0,4},?\s?(?:would|could|might|may|means?|meaning|indicates?|stands for|denotes?"
    r"|represents?|were|had it|unless|provided|if)\b",
    re.IGNORECASE,
)
SAID_BUT = re.compile(r"\b(?:would|could|might|['’]d)\s[^\[\]\n.;:]{0,40}\Z", re.IGNORECASE)
BUT = re.compile(r"[\s*_\"'”)]{0,4},? ?(?:but|if|were|had|with)\b", re.IGNORECASE)
EXAMPLE_BEFORE = re.compile(
    r"(?:\bfor (?:example|instance)|\be\. ?g\.|^[\s*_>#-]*example|\bsuch as|\blike so"
    r"|\bz\. ?b\.|\bpar exemple|\bpor ejemplo|\bpor exemplo|\bzum beispiel|\bнапример"
    r"|例如|比如|たとえば|例えば|예를 들어"
    r"|\bexample (?:format|output|verdict|rating))[\s,:*_(\"'“”„«]{0,8}\Z",
    re.IGNORECASE | re.MULTILINE,
)
PLACEHOLDER = re.compile(r"\[\[\s?[^\W\d_][\w /-]{1,30}\]\]")
CLAUSE = re.compile(r"[.!?;:。！？]\s|\n")
PREDICATE = re.compile(r"[*_\"'”)]{0,4}(?:'s\b|\s[a-z])")
SUBJECT = re.compile(
    r"(?:\A|[.!?;:,]|\b(because|while|although|though|since|whereas|as|that|when|if|than))"
    r"[\s*_\"'“(]{0,4}(?:(?:assistant|answer|model)\s)?[\s*_\"'“(]{0,4}\Z",
    re.IGNORECASE,
)
FOLLOW = re.compile(
    r"[\s*_\"'”’)»」]{0,6}(?:,\s?)?(if|when|for|in case|means?|meaning|indicates?"
    r"|stands for|denotes?|represents?|would|[:=](?!>)|[-–—](?=\s)|\()",
    re.IGNORECASE,
)
PREMISE = re.compile(
    r"(?:\A|[\s(*_-])(?:if|when|in case|for an?)\b[^.;\n\[\]]{0,80}\Z", re.IGNORECASE
)
OPENING, CLOSING = "\"'“‘„«「『", "\"'”’“»」』"
