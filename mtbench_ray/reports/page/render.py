"""Text of a model to HTML that can do nothing: Markdown, code and formulas, then a sanitiser.

All of it is hostile. Three things stand between a text and the reader's browser: the Markdown
parser passes no HTML through, the sanitiser (nh3) lets only the tags and attributes named here
live, and the page's Content-Security-Policy runs nothing but the page's own script.

The libraries (the extra ``html``) are imported when the first text is rendered.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from mtbench_ray.errors import UserError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

LONGEST = 50_000
"""Characters; a longer text is shown as it is, since parsers take seconds for hostile ones."""
LONGEST_FORMULA = 2_000
LONGEST_CODE = 20_000
"""Characters; longer ones are shown without colours."""

_MATH = frozenset({
    "math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "msup", "msub", "msubsup",
    "mfrac", "msqrt", "mroot", "mover", "munder", "munderover", "mtable", "mtr", "mtd",
    "mstyle", "mpadded", "mphantom", "menclose", "mmultiscripts", "mprescripts",
})  # fmt: skip
_PROSE = frozenset({
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "code", "pre",
    "span", "div", "ul", "ol", "li", "blockquote", "a", "table", "thead", "tbody", "tr", "th",
    "td",
})  # fmt: skip
TAGS = _PROSE | _MATH
"""Every element that rendered HTML may hold."""
_MATH_ATTRIBUTES = frozenset({
    "display", "stretchy", "fence", "separator", "form", "lspace", "rspace", "minsize",
    "maxsize", "accent", "accentunder", "displaystyle", "scriptlevel", "mathvariant", "width",
    "height", "depth", "columnalign", "rowspacing", "columnspacing", "linethickness",
    "notation", "largeop", "movablelimits", "symmetric",
})  # fmt: skip
ATTRIBUTES: dict[str, frozenset[str]] = {
    "a": frozenset({"href", "target"}),
    "code": frozenset({"class"}),
    "span": frozenset({"class"}),
    "div": frozenset({"class"}),
    "pre": frozenset({"class"}),
    "ol": frozenset({"start"}),
    "th": frozenset({"class"}),
    "td": frozenset({"class"}),
    **dict.fromkeys(_MATH, _MATH_ATTRIBUTES),
}
"""Every attribute that an element may have, beside the ``rel`` of links."""
SCHEMES = frozenset({"http", "https", "mailto"})
"""What a link may point to."""

_CLASSES = frozenset({"code", "lang", "math", "source", "left", "center", "right"})

_CLOSING = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_ENVIRONMENTS = ("align", "equation", "gather", "cases", "array", "matrix", "pmatrix", "bmatrix")


def needed(names: Sequence[str] = ("markdown_it", "nh3", "pygments", "latex2mathml")) -> None:
    """Import the libraries.

    Raises:
        UserError: One is not installed.
    """
    import importlib

    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            raise UserError(f"the page needs {name}", "pip install 'mtbench_ray[html]'") from None


def plain(text: str) -> str:
    """A text as it is, in one block."""
    return f'<pre class="source">{html.escape(_clean(text))}</pre>'


def rich(text: str) -> str:
    """A text with its Markdown, code and formulas as HTML.

    Args:
        text: Anything at all.

    Returns:
        HTML with no element but :data:`TAGS`, no attribute but :data:`ATTRIBUTES`, and no link but
        to :data:`SCHEMES`. A text that cannot be rendered is shown as it is.
    """
    if not text.strip():
        return ""
    if len(text) > LONGEST:
        return plain(text)
    try:
        made = _markdown().render(_clean(text))
    except Exception:  # a parser that stumbles over a hostile text is no reason to show nothing
        return plain(text)
    return _sanitiser()(made)


def _clean(text: str) -> str:
    """Without what HTML cannot hold: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


@cache
def _sanitiser() -> Callable[[str], str]:
    import nh3
    from pygments.token import STANDARD_TYPES

    classes = set(_CLASSES | {name for name in STANDARD_TYPES.values() if name})
    cleaner = nh3.Cleaner(
        tags=set(TAGS),
        clean_content_tags={"script", "style"},
        attributes={name: set(found) - {"class", "target"} for name, found in ATTRIBUTES.items()},
        allowed_classes={name: classes for name, found in ATTRIBUTES.items() if "class" in found},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        url_schemes=set(SCHEMES),
        attribute_filter=_address,
        link_rel="noopener noreferrer nofollow",
        strip_comments=True,
    )
    return cleaner.clean


def _address(_: str, attribute: str, value: str) -> str | None:
    """Links to whole addresses alone: a relative one would point into the reader's own disk."""
    scheme = value.partition(":")[0].strip().lower()
    return None if attribute == "href" and scheme not in SCHEMES else value


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "highlight": _code})
    parser.enable(["table", "strikethrough"])
    # A model's text is no document: what it writes as HTML is shown as what it wrote.
    parser.disable(["html_block", "html_inline"])
    parser.inline.ruler.before("escape", "formula", _inline_formula)
    parser.block.ruler.before(
        "fence", "formula", _block_formula, {"alt": ["paragraph", "blockquote", "list"]}
    )
    renderer: Any = parser.renderer
    rules = renderer.rules
    rules["formula"] = lambda tokens, at, *_: _formula(tokens[at].content, tokens[at].block)
    rules["image"] = lambda tokens, at, *_: _image(tokens[at])
    rules["fence"] = lambda tokens, at, *_: _fence(tokens[at].info, tokens[at].content)
    for name in ("th_open", "td_open"):
        rules[name] = lambda tokens, at, *_: _cell(tokens[at])
    return parser


def _cell(token: Any) -> str:
    """A table cell; its alignment is a class, since the page allows no style attributes."""
    side = str(token.attrs.get("style", "")).rpartition(":")[2]
    return f'<{token.tag} class="{side}">' if side in ("center", "right") else f"<{token.tag}>"


def _image(token: Any) -> str:
    """A picture is not fetched; a link to it says where it is."""
    address = html.escape(str(token.attrs.get("src", "")))
    said = html.escape(token.content or "picture")
    return f'<a href="{address}">{said}</a> <span class="lang">(picture, not loaded)</span>'


def _fence(info: str, text: str) -> str:
    language = info.split(maxsplit=1)[0] if info.strip() else ""
    name = f'<span class="lang">{html.escape(language)}</span>' if language else ""
    return f'<div class="code">{name}<pre><code>{_code(text, language, "")}</code></pre></div>'


def _code(text: str, language: str, _: str) -> str:
    """Code with its colours as classes."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language or len(text) > LONGEST_CODE:
        return html.escape(text)
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except (ClassNotFound, ValueError):
        return html.escape(text)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True)))


def _formula(source: str, block: bool) -> str:
    """MathML, or the LaTeX source where it cannot be read."""
    from latex2mathml.converter import convert_to_element

    made = ""
    if len(source) <= LONGEST_FORMULA:
        try:
            root = convert_to_element(source, display="block" if block else "inline")
            # Its texts hold entities; its own way to a string leaves a "<" of the text a "<".
            for element in root.iter():
                element.text = html.unescape(element.text or "")
            made = ElementTree.tostring(root, encoding="unicode")
        except Exception:  # many kinds, for whatever a model takes for LaTeX
            made = ""
    made = made or f'<code class="math">{html.escape(source)}</code>'
    return f'<div class="math">{made}</div>' if block else made


def _inline_formula(state: StateInline, silent: bool) -> bool:
    """``$x$``, ``$$x$$``, ``\\(x\\)`` and ``\\[x\\]`` in a line of text."""
    at, source = state.pos, state.src
    opening = next((mark for mark in _CLOSING if source.startswith(mark, at)), "")
    if not opening:
        return False
    begin = at + len(opening)
    end = source.find(_CLOSING[opening], begin, begin + LONGEST_FORMULA)
    inside = source[begin:end] if end >= 0 else ""
    if not inside.strip():
        return False
    if opening == "$" and not _is_formula(source, at, inside, end):
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content = inside.strip()
        token.block = False
    state.pos = end + len(_CLOSING[opening])
    return True


def _is_formula(source: str, at: int, inside: str, end: int) -> bool:
    """Whether ``$...$`` is one and not two prices: no space inside the marks, no digit behind."""
    return (
        not inside[0].isspace()
        and not inside[-1].isspace()
        and inside[-1] != "\\"
        and not source[end + 1 : end + 2].isdigit()
        and not source[at - 1 : at].isalnum()
        and "\n\n" not in inside
    )


def _block_formula(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """A formula in lines of its own: ``$$``, ``\\[`` or ``\\begin{align}`` to its end."""
    begin = state.bMarks[first] + state.tShift[first]
    source = state.src
    if state.is_code_block(first):
        return False
    closing, content = "", begin
    for opening in ("$$", "\\["):
        if source.startswith(opening, begin):
            closing, content = _CLOSING[opening], begin + 2
    if source.startswith("\\begin{", begin):
        name = source[begin + 7 : begin + 40].partition("}")[0]
        if name.rstrip("*") in _ENVIRONMENTS:
            closing = f"\\end{{{name}}}"
    if not closing:
        return False
    stop = state.eMarks[last - 1]
    end = source.find(closing, content, min(stop, content + LONGEST_FORMULA))
    if end < 0:
        return False
    after = end + len(closing)
    line = first
    while line < last and state.eMarks[line] < after:
        line += 1
    if line >= last or source[after : state.eMarks[line]].strip():
        return False  # text follows in the same line: the inline rule takes it
    inside = source[content:end] if content > begin else source[begin:after]
    if not inside.strip():
        return False
    if silent:
        return True
    token = state.push("formula", "", 0)
    token.content = inside.strip()
    token.block = True
    token.map = [first, line + 1]
    state.line = line + 1
    return True
