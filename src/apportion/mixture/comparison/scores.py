"""How well predicted losses match observed ones: error, explained variance, order of mixtures.

The order is judged within one (N, D) at a time. Across sizes any law that knows N ranks the runs
well, and says nothing about mixtures by it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

# Fewer mixtures than this in a cell have no order to speak of.
_FEWEST_MIXTURES = 3


def rank_correlation(
    left: Float[np.ndarray, "*#batch n"], right: Float[np.ndarray, "*#batch n"]
) -> Float[np.ndarray, "*batch"]:
    """Spearman's rank correlation along the last axis, ties at their mean rank.

    NaN where one side is constant.
    """
    ranks = [rankdata(side, axis=-1) for side in (left, right)]
    first, second = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    scale = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    together = (first * second).sum(axis=-1)
    return np.asarray(np.where(scale > 0, together / np.where(scale > 0, scale, 1.0), np.nan))


def cells_with_order(
    cells: Int[np.ndarray, " runs"], mixtures: Int[np.ndarray, " runs"]
) -> list[Int[np.ndarray, " chosen"]]:
    """Rows of every (N, D) that has at least three mixtures."""
    rows = [np.flatnonzero(cells == cell) for cell in np.unique(cells)]
    return [mine for mine in rows if len(np.unique(mixtures[mine])) >= _FEWEST_MIXTURES]


def mixture_rank(
    predicted: Float[np.ndarray, " runs"],
    observed: Float[np.ndarray, " runs"],
    cells: Int[np.ndarray, " runs"],
    mixtures: Int[np.ndarray, " runs"],
) -> float:
    """Rank correlation of mixtures within every (N, D), averaged over these.

    NaN predictions are left out. NaN where no (N, D) has three mixtures, or where one has them all
    predicted alike.
    """
    known = np.isfinite(predicted)
    found = [
        float(rank_correlation(predicted[known][mine], observed[known][mine]))
        for mine in cells_with_order(cells[known], mixtures[known])
    ]
    return float(np.mean(found)) if found else float("nan")


def mean_relative_error(
    predicted: Float[np.ndarray, "*shape"], observed: Float[np.ndarray, "*shape"]
) -> float:
    """Mean of |predicted / observed - 1| over what was predicted; NaN when nothing was."""
    known = np.isfinite(predicted)
    if not known.any():
        return float("nan")
    return float(np.abs(predicted[known] / observed[known] - 1.0).mean())


def explained(predicted: Float[np.ndarray, " runs"], observed: Float[np.ndarray, " runs"]) -> float:
    """R2 on the loss itself: 1 is perfect, 0 no better than the mean of the held-out losses."""
    known = np.isfinite(predicted)
    seen = observed[known]
    total = float(((seen - seen.mean()) ** 2).sum()) if len(seen) else 0.0
    if total == 0.0:
        return float("nan")
    return 1.0 - float(((seen - predicted[known]) ** 2).sum()) / total
