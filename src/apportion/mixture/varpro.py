"""Starting points by variable projection.

A separable law is linear in its amplitudes once the exponents are fixed. So the search runs over a
grid of exponents only, and at every point the best non-negative amplitudes follow in closed form
from least squares on RELATIVE residuals (L_predicted / L - 1), the small-error form of the log
residuals that the polish minimises. This replaces a six-dimensional multi-start by a
three-dimensional scan.

Axis legend: P grid points, R runs, T terms (three at most here, so all supports are enumerated).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from jaxtyping import Float

from apportion.mixture.laws.base import Conditions, SeparableLaw


def project(
    law: SeparableLaw,
    at: Conditions,
    log_loss: Float[np.ndarray, " runs"],
    weights: Float[np.ndarray, " runs"],
    count: int = 8,
) -> Float[np.ndarray, "starts q"]:
    """The `count` best separated points of the exponent grid, as internal coordinates.

    Args:
        law: a law that is linear in non-negative amplitudes.
        at: conditions of one target family.
        log_loss: observed log losses.
        weights: weight of every run; 0 drops it.
        count: how many starts to return, best first.
    """
    grid = law.exponent_grid()
    used = weights > 0
    basis = law.basis(grid, at)[:, used] * np.exp(-log_loss[used])[:, None]
    scale = np.sqrt(weights[used])
    amplitudes, error = nonnegative_least_squares(basis * scale[:, None], scale)
    order = _separated(grid, np.argsort(error, kind="stable"), count)
    return law.assemble(grid[order], amplitudes[order])


def nonnegative_least_squares(
    basis: Float[np.ndarray, "points runs terms"], observed: Float[np.ndarray, " runs"]
) -> tuple[Float[np.ndarray, "points terms"], Float[np.ndarray, " points"]]:
    """min ||basis c - observed||², c >= 0, for many small bases at once, by enumerating supports.

    Returns:
        The amplitudes and the squared error of every point.
    """
    terms = basis.shape[-1]
    gram = np.einsum("prt,pru->ptu", basis, basis)
    moment = np.einsum("prt,r->pt", basis, observed)
    total = float(observed @ observed)
    best = np.zeros_like(moment)
    error = np.full(len(basis), total)
    for size in range(1, terms + 1):
        for support in combinations(range(terms), size):
            columns = list(support)
            block = gram[:, columns][:, :, columns]
            scale = np.sqrt(np.einsum("ptt->pt", block))
            block = block / (scale[:, :, None] * scale[:, None, :])
            block = block + 1e-10 * np.eye(size)  # equal exponents make two terms collinear
            found = np.linalg.solve(block, (moment[:, columns] / scale)[..., None])[..., 0] / scale
            reached = total - np.einsum("pt,pt->p", moment[:, columns], found)
            better = (found >= 0).all(axis=1) & (reached < error)
            error[better] = reached[better]
            best[better] = 0.0
            best[np.ix_(better, columns)] = found[better]
    return best, error


def _separated(grid: np.ndarray, order: np.ndarray, count: int) -> np.ndarray:
    """The best points of which no two are neighbours in the grid."""
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in grid.T], axis=1)
    chosen: list[int] = []
    for point in order:
        distance = np.abs(ranks[chosen] - ranks[point]).max(axis=1)
        if not chosen or distance.min() >= 2:
            chosen.append(int(point))
        if len(chosen) == count:
            break
    return np.array(chosen)
