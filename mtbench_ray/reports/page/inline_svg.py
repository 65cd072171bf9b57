"""A picture of matplotlib's as SVG that may stand in the page.

The page's policy forbids style attributes and style elements: what they say becomes attributes.
Only elements and attributes that drawings need are kept. Ink becomes the colour of the page's text,
so that one picture is readable in the light and in the dark theme.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from xml.etree import ElementTree

PAPER = "#fefefe"
"""Drawn in this colour is what shall have the colour of the page's sheet."""
INK = {
    "#000000": "1",
    "#222222": "1",
    "#666666": "0.75",
    "#999999": "0.6",
    "#bbbbbb": "0.45",
    "#cccccc": "0.3",
    "#e0e0e0": "0.16",
    "#e6e6e6": "0.13",
    "#f4f4f4": "0.05",
}
"""Colours that become the text's, by how strong they are."""

WIDE = 620.0
"""Wider ones (in points) are not made to fit a phone, but scrolled."""

_TAGS = frozenset(
    ("svg", "g", "path", "defs", "use", "text", "tspan", "rect", "circle", "line", "polygon",
     "polyline", "clipPath", "pattern")
)  # fmt: skip
_PLAIN = frozenset(
    ("d", "x", "y", "width", "height", "transform", "viewBox", "points", "cx", "cy", "r", "x1",
     "x2", "y1", "y2", "patternUnits", "clipPathUnits")
)  # fmt: skip
_STYLES = frozenset(
    ("fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray",
     "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "opacity",
     "text-anchor", "font-size", "font-weight")
)  # fmt: skip
_FONT = re.compile(r"(?P<bold>bold|[6-9]00)?.*?(?P<size>[\d.]+)px")
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")
_SAFE = re.compile(r"[-\w\s.,#%()+]*")


def inline(picture: bytes, name: str, title: str) -> str:
    """The picture as an element.

    Args:
        name: Begins its ids, so that those of two pictures differ.
        title: What is said instead of it.
    """
    root = ElementTree.fromstring(picture)
    return "".join(_element(root, name, title))


def _element(element: ElementTree.Element, name: str, title: str = "") -> Iterator[str]:
    tag = _local(element.tag)
    if tag not in _TAGS:
        return
    found = _attributes(element, tag, name)
    if tag == "svg":
        _, _, width, height = element.get("viewBox", "0 0 576 432").split()
        found |= {"width": width, "height": height, "role": "img", "aria-label": title,
                  "stroke-linejoin": "round"}  # fmt: skip
        if float(width) > WIDE:
            found["class"] = "wide"
    said = "".join(f' {key}="{escape(value)}"' for key, value in found.items())
    yield f"<{tag}{said}>"
    if tag in ("text", "tspan"):
        yield escape(element.text or "")
    for child in element:
        yield from _element(child, name)
        if tag == "text":
            yield escape(child.tail or "")
    yield f"</{tag}>"


def _attributes(element: ElementTree.Element, tag: str, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in element.attrib.items():
        local = _local(key)
        if local == "style":
            for part in value.split(";"):
                style, _, said = part.partition(":")
                found |= _style(style.strip(), said.strip())
        elif local == "id":
            found["id"] = f"{name}-{value}"
        elif local == "href" and value.startswith("#"):
            found["href"] = f"#{name}-{value[1:]}"
        elif local == "clip-path":
            found["clip-path"] = value
        elif local in _PLAIN:
            found[local] = value
        else:
            found |= _style(local, value)
    if tag == "text":
        found.setdefault("fill", "#000000")
    for kind in ("fill", "stroke"):
        colour = found.get(kind, "")
        if colour in INK:
            strength = float(INK[colour]) * float(found.get(f"{kind}-opacity", 1))
            found |= {kind: "currentColor", f"{kind}-opacity": f"{strength:g}"}
        elif colour == PAPER:
            found["class"] = "paper"
    return {
        key: _REFERENCE.sub(rf"url(#{name}-\1)", value)
        for key, value in found.items()
        if _SAFE.fullmatch(value)
    }


def _style(key: str, value: str) -> dict[str, str]:
    if key == "font" and (font := _FONT.match(value)):
        bold = {"font-weight": "bold"} if font["bold"] else {}
        return {"font-size": font["size"], **bold}
    return {key: value.removesuffix("px")} if key in _STYLES else {}


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
