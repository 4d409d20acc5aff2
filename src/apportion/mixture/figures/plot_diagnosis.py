"""Figures of a diagnosis: who changes whose loss, and whether gamma is constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.errors import InputError, require
from apportion.mixture.diagnose import Diagnosis
from apportion.mixture.diagnosis.crosseffect import STEP
from apportion.mixture.figures.figure import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    WIDTH,
    blank,
    label,
    levels,
    look,
    settle,
    size_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Marks of a pair's verdict; a cell without one was tested and has no effect.
_MARKS = {"large": "**", "small": "*", "unclear": "?", "none": "", "not testable": "–"}
_LEGEND = "** at least the noise of a run, * less\n? cannot be excluded, – not testable"
_DARK = "#111111"
_ROW = 0.085
_GAP = 0.14
# Above this many families the cells are too small for numbers at phone width.
_MOST_NUMBERS = 8


def plot_cross_effects(diagnosis: Diagnosis) -> Figure:
    """Effect of every family's share (columns) on every family's loss (rows), own ratio fixed.

    Blue lowers the loss, orange raises it. `**` marks an effect of at least the noise of one run,
    `*` a smaller one (both significant after Holm's correction), `?` one that the runs can neither
    show nor exclude, a dash one that they cannot test.

    Raises:
        InputError: fewer than two families.
        MissingExtraError: matplotlib is not installed.
    """
    pairs = diagnosis.pairs
    rows = [str(family) for family in dict.fromkeys(pairs["family"])]
    columns = [str(family) for family in dict.fromkeys([*rows, *pairs["other"]])]
    if not rows:
        raise InputError("expected at least two families: there is no pair to show")
    effect, marks = _matrix(pairs, rows, columns)
    with look():
        size = max(2.45, 0.42 * len(columns))
        figure = blank(2.0 + size * len(rows) / len(columns), max(WIDTH, size + 1.3))
        axes: Any = figure.subplots()
        strongest = float(np.nanmax(np.abs(effect))) if np.isfinite(effect).any() else 1.0
        image = axes.imshow(
            effect, cmap=_colours(), vmin=-strongest, vmax=strongest, aspect="equal"
        )
        for (i, j), value in np.ndenumerate(effect):
            if rows[i] == columns[j]:
                axes.fill_between(
                    (j - 0.5, j + 0.5), i - 0.5, i + 0.5, color=FAINT, alpha=0.2, lw=0
                )
                continue
            number = _number(float(value)) if len(columns) <= _MOST_NUMBERS else ""
            colour = _DARK if np.isfinite(value) else INK
            text = "\n".join(part for part in (number, marks[i][j]) if part)
            axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=colour)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.set_xticks(range(len(columns)), [label(name) for name in columns], rotation=90)
        axes.set_yticks(range(len(rows)), [label(name) for name in rows])
        axes.set_xlabel(f"{STEP:g} of share moved to\n\n{_LEGEND}")
        axes.set_ylabel("loss of")
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        bar = figure.colorbar(image, ax=axes, location="top", shrink=0.9, aspect=30)
        bar.set_ticks([-strongest, 0.0, strongest])
        bar.set_ticklabels([_number(end) for end in (-strongest, 0.0, strongest)])
        bar.set_label("change of loss (nats per token)")
        bar.outline.set_visible(False)
        settle(figure)
    return figure


def plot_gamma(diagnosis: Diagnosis) -> Figure:
    """Gamma of every family per (N, D) with intervals; the bar behind is that of one common gamma.

    Raises:
        InputError: no (N, D) has enough different ratios to tell gamma.
        MissingExtraError: matplotlib is not installed.
    """
    cells = diagnosis.gamma
    if not len(cells):
        raise InputError("no (N, D) has three different own ratios, so no gamma can be shown")
    families = [str(family) for family in dict.fromkeys(cells["family"])]
    values = cells[["gamma", "low", "high"]].to_numpy(dtype=float)
    tests = diagnosis.gamma_tests.set_index("family")
    size, _ = levels(cells["params"].to_numpy(dtype=float))
    budget, _ = levels(cells["tokens"].to_numpy(dtype=float))
    with look():
        middles: list[float] = []
        top = 0.0
        figure = blank(1.0)
        axes: Any = figure.subplots()
        for family in families:
            rows = np.flatnonzero((cells["family"] == family).to_numpy())
            rows = rows[np.lexsort((budget[rows], size[rows]))]
            places = top + _ROW * np.arange(len(rows), dtype=float)
            common = tests.loc[family, ["gamma", "low", "high"]].to_numpy(dtype=float)
            _common(axes, common, float(places[0]), float(places[-1]))
            for place, row in zip(places, rows, strict=True):
                _gamma(axes, values[row], place, int(size[row]), int(budget[row]))
            middles.append(float(places.mean()))
            top = float(places[-1]) + _ROW + _GAP
        axes.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
        axes.set_yticks(middles, [label(family) for family in families])
        axes.set_ylim(top - 0.5 * _GAP, -0.5 * _GAP - _ROW)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("gamma (the loss goes as p^−gamma)")
        axes.xaxis.set_major_locator(require("matplotlib.ticker", "plot").MaxNLocator(6))
        sizes = cells[["params", "tokens"]].to_numpy(dtype=float)
        size_legend(figure, sizes[:, 0], sizes[:, 1], 3, lines=False)
        figure.set_figheight(max(1.6, top) + 1.2)
        settle(figure)
    return figure


def _number(value: float) -> str:
    """Signed, with three digits at most: cells are narrow."""
    if not np.isfinite(value):
        return ""
    text = f"{value:+.2f}" if abs(value) >= 0.0995 else f"{value:+.3f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _matrix(
    pairs: pd.DataFrame, rows: list[str], columns: list[str]
) -> tuple[Float[np.ndarray, "rows columns"], list[list[str]]]:
    effect = np.full((len(rows), len(columns)), np.nan)
    marks = [["" for _ in columns] for _ in rows]
    for pair in pairs.to_dict("records"):
        i, j = rows.index(str(pair["family"])), columns.index(str(pair["other"]))
        effect[i, j] = float(pair["effect"])
        marks[i][j] = _MARKS[str(pair["verdict"])]
    return effect, marks


def _colours() -> Any:
    """Blue through near white to orange, light enough at both ends for dark numbers."""
    colors = require("matplotlib.colors", "plot")
    return colors.LinearSegmentedColormap.from_list("effect", ["#5aa9dd", "#f4f4f4", "#f2a33a"])


def _common(axes: Axes, gamma: np.ndarray, first: float, last: float) -> None:
    if np.isfinite(gamma).all():
        ends = (first - 0.6 * _ROW, last + 0.6 * _ROW)
        axes.fill_betweenx(ends, gamma[1], gamma[2], color=FAINT, alpha=0.25, linewidth=0, zorder=0)
        axes.plot([gamma[0]] * 2, ends, color=FAINT, linewidth=1.0, zorder=1)


def _gamma(axes: Axes, interval: np.ndarray, place: float, size: int, budget: int) -> None:
    gamma, low, high = (float(value) for value in interval)
    reach = None
    if np.isfinite([low, high]).all():
        reach = np.array([[gamma - low], [high - gamma]])
    axes.errorbar(
        [gamma],
        [place],
        xerr=reach,
        color=COLOURS[size % len(COLOURS)],
        marker=MARKERS[budget % len(MARKERS)],
        markersize=3.6,
        elinewidth=0.9,
        linestyle="",
        zorder=2,
    )
