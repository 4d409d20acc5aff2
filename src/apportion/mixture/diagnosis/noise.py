"""Seed noise, and the spread of runs that hypothesis 1 says should agree.

Hypothesis 1 (He et al., ACL 2025): the loss of a family depends on N, D and its own sampling ratio,
not on how the rest is split. So runs with the same N, D and p_i and different others should differ
by seed noise only. All spreads are standard deviations of log losses (about: relative ones).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import f as fisher

from apportion.mixture.diagnosis.regression import holm
from apportion.mixture.runs import RunTable

# Own ratios that differ by less than this (relative) belong to one cell; what the difference
# itself does to the loss is taken out by the fitted law.
TOLERANCE = 0.02
# Relative differences that are rounding only.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Noise:
    """Noise of the log loss of every target.

    Attributes:
        sd: standard deviation of one run's log loss.
        freedom: degrees of freedom it rests on.
        source: `"repeats"` (runs repeated with another seed) or `"residuals"` (what is left after
            the law and linear cross-effects: an upper bound, for it holds the law's own misfit).
    """

    sd: Float[np.ndarray, " targets"]
    freedom: Int[np.ndarray, " targets"]
    source: str


def repeat_groups(runs: RunTable) -> Int[np.ndarray, " runs"]:
    """A number for every distinct (N, D, mixture).

    Where the table knows seeds, a second run with a seed already seen repeats nothing: it gets a
    number of its own.
    """
    keys = np.stack([runs.cells(), runs.mixtures()], axis=1)
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    groups = groups.reshape(-1).astype(np.int64)
    if runs.seed is not None:
        seen: set[tuple[int, int]] = set()
        for row, key in enumerate(zip(groups.tolist(), runs.seed.tolist(), strict=True)):
            if key in seen:
                groups[row] = groups.max() + 1
            seen.add(key)
    return groups


def seed_noise(runs: RunTable) -> Noise | None:
    """Noise from repeated runs; None where no run was repeated, or where repeats agree exactly.

    Training twice does not give one loss to the last digit: such rows are copies or rounded.
    """
    groups = repeat_groups(runs)
    freedom = len(runs) - len(np.unique(groups))
    if freedom == 0:
        return None
    logs = np.log(runs.losses)
    squares = ((logs - means(logs, groups)) ** 2).sum(axis=0)
    sd = np.sqrt(squares / freedom)
    if (sd < _ROUNDING).any():
        return None
    count = len(runs.targets)
    return Noise(sd, np.full(count, freedom, dtype=np.int64), "repeats")


def means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Mean of the group of every row, per column; groups are any integers."""
    _, inverse = np.unique(groups, return_inverse=True)
    inverse = inverse.reshape(-1)
    total = np.zeros((int(inverse.max()) + 1, values.shape[1]))
    np.add.at(total, inverse, values)
    return (total / np.bincount(inverse)[:, None])[inverse]


def own_ratio_cells(runs: RunTable, target: str) -> Int[np.ndarray, " runs"]:
    """Cells of runs with one N, D and own ratio and at least two different mixtures; else -1."""
    own = runs.ratios[:, runs.family_index(target)]
    cells, mixtures = runs.cells(), runs.mixtures()
    out = np.full(len(runs), -1, dtype=np.int64)
    number = 0
    for cell in np.unique(cells):
        rows = np.flatnonzero((cells == cell) & (own > 0))
        rows = rows[np.argsort(own[rows], kind="stable")]
        start = 0
        for stop in range(1, len(rows) + 1):
            if stop < len(rows) and own[rows[stop]] <= own[rows[start]] * (1 + TOLERANCE):
                continue
            chosen = rows[start:stop]
            if len(np.unique(mixtures[chosen])) > 1:
                out[chosen] = number
                number += 1
            start = stop
    return out


def within_cell_spread(
    runs: RunTable, residuals: Float[np.ndarray, "runs targets"], noise: Noise
) -> pd.DataFrame:
    """Spread at the same N, D and own ratio against the noise, per family.

    Args:
        runs: the table.
        residuals: log observed - log predicted by a law of the own ratio (NaN: not usable).
        noise: to compare with.

    Returns:
        Columns `family`, `cells`, `runs`, `spread` (of the means of mixtures within a cell),
        `widest` (largest difference within one cell), `noise`, `ratio` (spread over what noise
        alone would give), `p`, `p_holm` (F test; NaN unless the noise comes from repeats).
    """
    rows: list[tuple[object, ...]] = []
    groups = repeat_groups(runs)
    for k, target in enumerate(runs.targets):
        cells = own_ratio_cells(runs, target)
        kept = np.flatnonzero((cells >= 0) & np.isfinite(residuals[:, k]))
        if not len(kept):
            rows.append((target, 0, 0, np.nan, np.nan, noise.sd[k], np.nan, np.nan))
            continue
        spread, widest, ratio, freedom = _cells(residuals[kept, k], cells[kept], groups[kept])
        # A noise of exactly zero (losses rounded alike, or made up) is nothing to compare with.
        ratio = ratio / float(noise.sd[k]) if noise.sd[k] > 0 else np.nan
        p = np.nan
        if noise.source == "repeats":
            p = float(fisher.sf(ratio**2, freedom, noise.freedom[k]))
        count = len(np.unique(cells[kept]))
        rows.append((target, count, len(kept), spread, widest, noise.sd[k], ratio, p))
    names = ["family", "cells", "runs", "spread", "widest", "noise", "ratio", "p"]
    frame = pd.DataFrame(rows, columns=names)
    frame["p_holm"] = holm(frame["p"].to_numpy(dtype=float))
    return frame


def _cells(
    value: np.ndarray, cell: np.ndarray, group: np.ndarray
) -> tuple[float, float, float, int]:
    """Spread and widest gap of mixtures' means in a cell, root mean square, its freedom.

    The mean square weighs every mixture with its runs, as the F test against repeats wants it.
    """
    values = value[:, None]
    between = float(((means(values, group) - means(values, cell)) ** 2).sum())
    _, first = np.unique(group, return_index=True)
    each, of = means(values, group)[first], cell[first]
    freedom = len(each) - len(np.unique(of))
    spread = float(np.sqrt(((each - means(each, of)) ** 2).sum() / freedom))
    widest = max(float(np.ptp(each[of == c])) for c in np.unique(of))
    return spread, widest, float(np.sqrt(between / freedom)), freedom
