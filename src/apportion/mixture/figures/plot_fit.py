"""Figures of a fit: loss against the own ratio, and predictions against held-out runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.budget import counted
from apportion.errors import InputError
from apportion.mixture.figures.figure import (
    COLOURS,
    FAINT,
    LINES,
    MARKERS,
    WIDTH,
    blank,
    label,
    legend,
    levels,
    log_axis,
    look,
    settle,
    size_legend,
)
from apportion.mixture.figures.heldout import heldout_table
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable, conditions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Lines that can still be told apart in one panel; those of the (N, D) with most runs are drawn.
_MOST_LINES = 12
_POINTS = 48


def plot_losses(fit: Fit, families: Sequence[str] | None = None) -> Figure:
    """Loss against the own sampling ratio, with the fitted line and its band per (N, D).

    Both axes are logarithmic, so that a power of the ratio is a straight line. Bands are the
    bootstrap interval of the expected loss. Where a law looks at the other families too, the line
    splits the rest among them as the runs do on average. Runs without the family are not shown.

    Args:
        fit: the fit.
        families: targets to show, one panel each; all of them by default.

    Raises:
        InputError: unknown families.
        MissingExtraError: matplotlib is not installed.
    """
    shown = list(fit.targets if families is None else families)
    for family in shown:
        if family not in fit.targets:
            raise InputError(f"expected a family out of {', '.join(fit.targets)}; got {family!r}")
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 4 else 3
    rows = -(-len(shown) // columns)
    with look():
        figure = blank(0.7 + 2.5 * rows, WIDTH * columns)
        grid: Any = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(grid.ravel()):
            if place < len(shown):
                _losses(axes, fit, shown[place])
            else:
                axes.remove()
        size_legend(figure, fit.runs.params, fit.runs.tokens, 3 * columns)
        settle(figure)
    return figure


def plot_heldout(fit: Fit, runs: RunTable) -> Figure:
    """Predicted against observed loss of runs that the fit has not seen, and the relative error.

    Args:
        fit: the fit.
        runs: held-out runs with the families of the fit.

    Raises:
        InputError: other families, or no run that the law can use.
        MissingExtraError: matplotlib is not installed.
    """
    table = heldout_table(fit, runs)
    with look():
        figure = blank(4.9)
        above: Any
        below: Any
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        handles: list[Any] = []
        families = list(dict.fromkeys(str(family) for family in table["family"]))
        for k, family in enumerate(families):
            rows = table.loc[table["family"] == family]
            handles.append(_predicted(above, below, rows, k))
        values = table[["observed", "predicted"]].to_numpy(dtype=float)
        low, high = float(values.min()), float(values.max())
        margin = 0.05 * (high - low) or 0.05 * high
        ends = np.array([low - margin, high + margin])
        above.plot(ends, ends, color=FAINT, linewidth=0.8, zorder=0)
        above.set(xlim=ends, ylim=ends, ylabel="predicted loss (nats per token)")
        error = table["error"].abs().mean()
        count = counted(len(table), "held-out loss", "held-out losses")
        above.set_title(f"{count}, mean relative error {error:.2%}")
        below.axhline(0.0, color=FAINT, linewidth=0.8, zorder=0)
        below.set(xlabel="observed loss (nats per token)", ylabel="relative error (%)")
        names = [label(family) for family in families]
        legend(figure, handles, names, _columns(names))
        settle(figure)
    return figure


def _losses(axes: Axes, fit: Fit, target: str) -> None:
    runs = fit.runs
    k = fit.targets.index(target)
    own = runs.ratios[:, runs.family_index(target)]
    shown = own > 0
    size, _ = levels(runs.params)
    budget, _ = levels(runs.tokens)
    cells = runs.cells()
    seen, first, counts = np.unique(cells, return_index=True, return_counts=True)
    chosen = np.argsort(-counts, kind="stable")[:_MOST_LINES]
    span = own[shown]
    ratio = np.geomspace(span.min(), span.max(), _POINTS) if len(span) else np.empty(0)
    lines: list[np.ndarray] = [runs.losses[shown, k]]
    for cell in chosen:
        row = int(first[cell])
        loss, low, high = _line(fit, k, row, ratio)
        colour = COLOURS[size[row] % len(COLOURS)]
        style = LINES[budget[row] % len(LINES)]
        axes.plot(ratio, loss, color=colour, linestyle=style, zorder=2)
        axes.fill_between(ratio, low, high, color=colour, alpha=0.15, linewidth=0, zorder=1)
        lines.append(loss)
    drawn = np.isin(cells, seen[chosen])
    _, groups = np.unique(np.stack([size, budget, drawn]), axis=1, return_inverse=True)
    for group in np.unique(groups[shown]):
        rows = np.flatnonzero(shown & (groups == group))
        axes.plot(
            own[rows],
            runs.losses[rows, k],
            linestyle="",
            marker=MARKERS[budget[rows[0]] % len(MARKERS)],
            markersize=3.6,
            color=COLOURS[size[rows[0]] % len(COLOURS)] if drawn[rows[0]] else FAINT,
            markeredgewidth=0,
            alpha=0.85,
            zorder=3,
        )
    more = f" ({len(chosen)} of {len(seen)} lines)" if len(seen) > len(chosen) else ""
    axes.set_title(label(target) + more)
    axes.set(xlabel="own sampling ratio p", ylabel="loss (nats per token)")
    if len(span):
        losses = np.concatenate(lines)
        log_axis(axes, "x", float(span.min()) / 1.15, min(float(span.max()) * 1.15, 1.05))
        log_axis(axes, "y", float(losses.min()) / 1.03, float(losses.max()) * 1.03)


def _line(
    fit: Fit, k: int, row: int, ratio: Float[np.ndarray, " points"]
) -> tuple[
    Float[np.ndarray, " points"], Float[np.ndarray, " points"], Float[np.ndarray, " points"]
]:
    """Predicted loss over the own ratio at the (N, D) of one run, with the interval's ends."""
    runs = fit.runs
    own = runs.family_index(fit.targets[k])
    rest = np.delete(runs.ratios, own, axis=1).sum(axis=0)
    rest = rest / rest.sum() if rest.sum() > 0 else np.full(len(rest), 1.0 / max(1, len(rest)))
    ratios = np.insert((1.0 - ratio)[:, None] * rest, own, ratio, axis=1)
    size = np.ones(len(ratio))
    at = conditions(
        runs.params[row] * size, runs.tokens[row] * size, ratios, own, runs.unique_tokens
    )
    loss = np.exp(fit.law.log_loss(fit.theta[k], at))
    if fit.samples is None:
        return loss, loss, loss
    low, high = fit.interval(np.exp(fit.law.log_loss(fit.samples[:, k], at)))
    return loss, low, high


def _predicted(above: Axes, below: Axes, rows: pd.DataFrame, k: int) -> Any:
    """The points of one family in both panels; its handle for the legend."""
    colour = COLOURS[k % len(COLOURS)]
    style: dict[str, Any] = {
        "color": colour,
        "marker": MARKERS[(k + k // len(COLOURS)) % len(MARKERS)],
        "markersize": 4.2,
        "linestyle": "",
        "alpha": 0.85,
    }
    names = ["observed", "predicted", "error", "low", "high"]
    observed, predicted, error, low, high = rows[names].to_numpy(dtype=float).T
    if np.isfinite(low).all():
        bars: Any = {"color": colour, "linewidth": 0.8, "alpha": 0.85}
        above.vlines(observed, low, high, **bars)
        below.vlines(observed, 100 * (low / observed - 1), 100 * (high / observed - 1), **bars)
    below.plot(observed, 100 * error, **style)
    return above.plot(observed, predicted, **style)[0]


def _columns(names: Sequence[str]) -> int:
    """Legend columns that fit the width of a phone; about 48 letters, 6 for every handle."""
    longest = max(len(name) for name in names) + 6
    return max(1, min(len(names), 50 // longest))
