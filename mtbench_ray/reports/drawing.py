"""What all pictures have in common: fonts, style, files.

matplotlib (the extra ``plots``) is imported when one is drawn.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from mtbench_ray.errors import UserError

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito (2008) that can be told apart with any kind of colour vision and on
white; yellow is left out."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LONG_NAME = 40

_SCRIPTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "Source Han Sans",
    "WenQuanYi Zen Hei", "Droid Sans Fallback", "Hiragino Sans", "PingFang SC",
    "Microsoft YaHei", "Malgun Gothic", "Noto Sans Arabic", "Noto Sans Devanagari",
)  # fmt: skip
"""Fonts for names that the default one has no letters for; those that are installed are used."""
_DEFAULT = "DejaVu Sans"
_DARK = {
    "text.color": "#e8e8e8",
    "axes.labelcolor": "#e8e8e8",
    "axes.edgecolor": "#8a8f98",
    "xtick.color": "#c8ccd2",
    "ytick.color": "#c8ccd2",
    "figure.facecolor": "#16181d",
    "axes.facecolor": "#16181d",
    "savefig.facecolor": "#16181d",
    "grid.color": "#30343c",
}
Figures = Callable[[], Iterator[tuple[str, Any]]]
"""Makes figures by the ends of their files' names."""


@contextmanager
def style(needs: str, dark: bool = False, paper: str = "") -> Iterator[None]:
    """The look of a picture.

    Args:
        needs: What is drawn, for the message where matplotlib is not installed.
        paper: The colour of the ground; empty for white.

    Raises:
        UserError: It is not.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError(
            f"{needs} need matplotlib",
            "pip install 'mtbench_ray[plots]' (or: pip install matplotlib)",
        ) from None
    settings: dict[str, Any] = {
        "font.size": 10,
        "font.family": fonts(),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": "#e6e6e6",
        "text.parse_math": False,  # a $ in a name is a $
        "svg.hashsalt": "mtbench_ray",  # equal pictures are equal files
        "svg.fonttype": "none",
        **(_DARK if dark else {}),
        **({"axes.facecolor": paper} if paper else {}),
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Letters that no font has are drawn as boxes, and told once by `tell_lacking`.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def saved(figure: Any, dpi: int = 150) -> dict[str, bytes]:
    """A figure as PNG and SVG, by file ending; equal figures give equal bytes."""
    files = {}
    kinds: Mapping[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}}
    for kind, metadata in kinds.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
        files[f".{kind}"] = buffer.getvalue()
    return files


def fonts() -> list[str]:
    """The fonts that are tried for each letter, in order."""
    from matplotlib.font_manager import fontManager

    there = set(fontManager.get_font_names())
    if not there.intersection(_SCRIPTS):
        _find_new_fonts()
        there = set(fontManager.get_font_names())
    return [_DEFAULT, *(name for name in _SCRIPTS if name in there)]


@lru_cache(maxsize=1)
def _find_new_fonts() -> None:
    """Add fonts that were installed after matplotlib made its list, which it keeps on disk."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in known:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # a broken font file
                fontManager.addfont(path)


def tell_lacking(text: str) -> None:
    """Say on standard error where no font here has a letter of a text."""
    lacking = "".join(dict.fromkeys(letter for letter in text if not _has(letter)))
    if lacking:
        print(
            f"no font here has {lacking[:12]!r}: PNG files show boxes instead (SVG files use the"
            " viewer's fonts); install one, for example fonts-noto-cjk",
            file=sys.stderr,
        )


@lru_cache(maxsize=4096)
def _has(letter: str) -> bool:
    return ord(letter) < 0x250 or any(ord(letter) in one for one in _letters(tuple(fonts())))


@lru_cache(maxsize=2)
def _letters(names: tuple[str, ...]) -> list[frozenset[int]]:
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    return [
        frozenset(get_font(fontManager.findfont(FontProperties(family=[name]))).get_charmap())
        for name in names
    ]


def short_name(name: str) -> str:
    """A name that fits beside a plot: of a longer one both ends."""
    half = LONG_NAME // 2
    return name if len(name) <= LONG_NAME else f"{name[: half - 1]}…{name[-half:]}"


def legend_below(figure: Any, names: Sequence[str], most: int) -> int:
    """How many columns of a legend fit below a figure, which grows for its rows.

    About 11 characters go to an inch, and 7 for the sample of a line.
    """
    width, height = figure.get_size_inches()
    columns = max(1, min(most, len(names), int(11 * width / (7 + max(map(len, names))))))
    figure.set_size_inches(width, height + 0.21 * math.ceil(len(names) / columns))
    return columns


def new_figure(width: float, height: float, title: str) -> Any:
    """An empty figure with a title; sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure
