"""The figure of an optimum: the proposed ratios with intervals, beside mixtures that need no runs.

One row a family, because names are long and phones are narrow. Refused: stacked bars, in which only
the first family can be compared across mixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from apportion.mixture.figures.figure import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    amount,
    blank,
    label,
    legend,
    look,
    settle,
)
from apportion.mixture.proposal.optimum import Optimum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches for a family, and for every mixture inside it.
_GAP = 0.16
_ROW = 0.115


def plot_ratios(optimum: Optimum) -> Figure:
    """Proposed sampling ratio of every family with its interval, and the compared mixtures.

    The unconstrained optimum stands among them where floors, caps or supply bind.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    table = optimum.table
    others = [name for name in optimum.mixtures if name != "proposed"]
    families = [str(family) for family in table["family"]]
    height = _GAP + _ROW * (len(others) + 1.6)
    with look():
        figure = blank(0.9 + height * len(families) + 0.15 * ((len(others) + 2) // 2))
        axes: Any = figure.subplots()
        ratio = 100 * table["ratio"].to_numpy(dtype=float)
        ends = 100 * table[["low", "high"]].to_numpy(dtype=float).T
        base = height * np.arange(len(families), dtype=float)
        axes.barh(base, ratio, height=1.6 * _ROW, color=COLOURS[0], alpha=0.85, zorder=2)
        handles: list[Any] = [axes.patches[0]]
        known = bool(np.isfinite(ends).all())
        if known:
            middle, half = ends.mean(axis=0), np.ptp(ends, axis=0) / 2
            style = {"fmt": "none", "ecolor": INK, "elinewidth": 1.1, "capsize": 2, "zorder": 3}
            axes.errorbar(middle, base, xerr=half, **style)
        for k, name in enumerate(others):
            shares = [100 * optimum.mixtures[name][family] for family in families]
            place = base + _ROW * (1.6 + k)
            style = {"color": COLOURS[(k + 1) % len(COLOURS)], "linewidth": 0.7, "alpha": 0.5}
            axes.hlines(place, 0.0, shares, zorder=2, **style)
            handles += axes.plot(
                shares,
                place,
                linestyle="",
                marker=MARKERS[(k + 1) % len(MARKERS)],
                markersize=4.2,
                color=COLOURS[(k + 1) % len(COLOURS)],
                zorder=3,
            )
        middle = base + _ROW * len(others) / 2
        axes.set_yticks(middle, [label(family) for family in families])
        axes.set_ylim(base[-1] + height - 0.5 * _GAP, -_GAP)
        for edge in base[1:]:
            axes.axhline(edge - _GAP, color=FAINT, linewidth=0.5, alpha=0.4, zorder=0)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0.0)
        axes.set_xlabel("sampling ratio (% of the tokens)")
        axes.set_title(f"N = {amount(optimum.params)}, D = {amount(optimum.tokens)}")
        proposed = f"proposed, {optimum.level:.0%} interval" if known else "proposed"
        legend(figure, handles, [proposed, *others], 2)
        settle(figure)
    return figure
