"""What all figures share: look, colours, labels, and how a figure becomes a file or inline SVG.

Figures are built from `matplotlib.figure.Figure`, never through pyplot: no display, no registry of
open figures. A figure is as wide as a phone, so its text needs no zoom there; wider screens put
several beside each other. SVG text stays text, and the same figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from apportion.budget import format_count
from apportion.errors import InputError, require
from apportion.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches; 3.75 are 360 CSS pixels.
WIDTH = 3.75
# Text and axes; becomes the page's own text colour where a figure is set into a page.
INK = "#24292e"
FAINT = "#808080"
# Okabe and Ito, "Color Universal Design" (2008), without black and yellow: these seven can be told
# apart with every common colour blindness, on white and on black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D3B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")

_LOOK = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.labelcolor": INK,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
    # Names come from the user: a dollar sign in one is no formula.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "apportion",
    "path.simplify": False,
}
_FORMATS = ("svg", "png", "pdf")
# Average letters; a third of a figure's width.
_WIDEST = 18.0


@contextmanager
def look() -> Generator[None]:
    """Build or write figures in the common look; what the caller had set comes back after."""
    matplotlib = require("matplotlib", "plot")
    with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
        # A name in a script that the font lacks: a browser has another font for it.
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from", append=False)
        yield


def blank(height: float, width: float = WIDTH) -> Figure:
    """An empty figure; sizes in inches."""
    figure = require("matplotlib.figure", "plot")
    return figure.Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure) -> str:
    """The figure as SVG to set into a page: no background, text in the page's own colour."""
    text = _render(figure, "svg", transparent=True).decode("utf-8")
    return text.replace(INK, "currentColor")


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure atomically; the name's ending says how: .svg, .png or .pdf.

    Raises:
        InputError: another ending, or a path that cannot be written.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(
            f"cannot write {path}: expected a name that ends in .svg, .png or .pdf, "
            f"got {Path(path).suffix or 'no ending'!r}"
        )
    content = _render(figure, kind, transparent=False)
    with atomic_write(path, "wb") as handle:
        handle.write(content)


def label(name: str) -> str:
    """A family's name as it is shown: one that is too wide is shortened in the middle."""
    flat = re.sub(r"[\s\x00-\x1f\x7f]+", " ", name).strip()
    head, tail = flat, ""
    while _width(head) + _width(tail) > _WIDEST:
        cut = head + tail
        half = (len(cut) - 1) // 3
        head, tail = cut[: len(cut) - 1 - half], cut[len(cut) - half :]
    shown = f"{head}…{tail}" if tail else head
    # A legend leaves out labels that start with an underscore; the space has no width.
    return f"\u200b{shown}" if shown.startswith("_") else shown


def _width(text: str) -> float:
    """Width in average letters."""
    wide = (c in "mwMW@%" or unicodedata.east_asian_width(c) in "WF" for c in text)
    return sum(1.6 if each else 1.0 for each in wide)


def amount(value: float) -> str:
    """249,856 as "250k": sizes in legends need three digits."""
    return format_count(float(f"{value:.3g}"))


def levels(
    values: Float[np.ndarray, " runs"], most: int = 6
) -> tuple[Int[np.ndarray, " runs"], list[str]]:
    """A number for every distinct value and its label; many values are put into four ranges."""
    distinct = np.unique(values)
    if len(distinct) <= most:
        return np.searchsorted(distinct, values).astype(np.int64), [amount(v) for v in distinct]
    edges = np.quantile(distinct, [0.25, 0.5, 0.75])
    place = np.searchsorted(edges, values).astype(np.int64)
    names: list[str] = []
    for k in range(4):
        inside = distinct[np.searchsorted(edges, distinct) == k]
        names.append(f"{amount(inside[0])} to {amount(inside[-1])}")
    return place, names


def log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """Logarithmic axis from `low` to `high` with a few plain numbers as ticks."""
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low, high)
    ticks = log_ticks(low, high)
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def log_ticks(low: float, high: float, fewest: int = 3, most: int = 6) -> list[float]:
    """Round numbers between two positive ones: 1, 2, 5 times powers of ten, finer if need be."""
    powers = 10.0 ** np.arange(np.floor(np.log10(low)) - 1, np.ceil(np.log10(high)) + 1)
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)):
        ticks = np.unique(np.round(np.outer(powers, steps).ravel(), 12))
        ticks = ticks[(ticks >= low * (1 - 1e-9)) & (ticks <= high * (1 + 1e-9))]
        if fewest <= len(ticks) <= most:
            return [float(tick) for tick in ticks]
    ticker: Any = require("matplotlib.ticker", "plot")
    found = ticker.MaxNLocator(nbins=most - 1).tick_values(low, high)
    return [float(tick) for tick in found if low <= tick <= high and tick > 0]


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int) -> None:
    """One legend below all panels."""
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def size_legend(
    figure: Figure,
    params: Float[np.ndarray, " runs"],
    tokens: Float[np.ndarray, " runs"],
    columns: int,
    *,
    lines: bool = True,
) -> None:
    """Colours for N above or left, markers (and line styles) for D below or right."""
    line = require("matplotlib.lines", "plot").Line2D
    entries: list[list[tuple[Any, str]]] = [[], []]
    for k, name in enumerate(levels(params)[1]):
        entries[0].append((line([], [], color=COLOURS[k % len(COLOURS)]), f"N = {name}"))
    for k, name in enumerate(levels(tokens)[1]):
        style = {"marker": MARKERS[k % len(MARKERS)], "markersize": 3.6, "color": FAINT}
        style["linestyle"] = LINES[k % len(LINES)] if lines else ""
        entries[1].append((line([], [], **style), f"D = {name}"))
    longest = max(len(each) for each in entries)
    for each in entries:
        each += [(line([], [], linestyle=""), "")] * (longest - len(each))
    # Legends fill column by column.
    wide = longest <= columns
    pairs = zip(*entries, strict=True)
    order = [entry for pair in pairs for entry in pair] if wide else entries[0] + entries[1]
    legend(figure, [h for h, _ in order], [n for _, n in order], longest if wide else 2)


def settle(figure: Figure) -> None:
    """Lay a finished figure out, once: the layout moves a little with every drawing."""
    for _ in range(2):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _render(figure: Figure, kind: str, *, transparent: bool) -> bytes:
    # No date and no versions: the same figure gives the same bytes.
    nothing = {"svg": ("Date", "Creator"), "png": ("Software",), "pdf": ("CreationDate", "Creator")}
    buffer = io.BytesIO()
    with look():
        figure.savefig(
            buffer,
            format=kind,
            dpi=200,
            transparent=transparent,
            metadata=dict.fromkeys(nothing[kind]),
        )
    content = buffer.getvalue()
    if kind == "svg":
        # Where this font is missing, one of the same widths, or else any without serifs.
        content = content.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana")
    return content
