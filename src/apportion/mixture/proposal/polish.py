"""From the interior-point answer to the exact one: bounds met, KKT equations solved by Newton.

For the worst loss also the level that the binding families share, and their multipliers, are
solved for. The answer is taken only where its KKT residual is smaller.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apportion.mixture.proposal.interior import Iterate, Problem
from apportion.mixture.proposal.kkt import kkt_residual

_ROUNDS = 12
# Multipliers below this part of the slope do not prove that a bound holds.
_CERTAIN = 1e-5


def polish(
    problem: Problem, at: Iterate
) -> tuple[Float[np.ndarray, "problems families"], Float[np.ndarray, " problems"]]:
    """Ratios and their KKT residuals.

    Args:
        problem: as `interior` returned it, scaled.
        at: where it ended.
    """
    ratios, share = at.ratios, _shares(problem, at.ratios, at.share)
    best, residual = ratios, residuals(problem, ratios, share)
    slopes = np.abs(problem.slopes(ratios, problem.values(ratios))).sum(axis=1)
    low = (ratios - problem.lower < 1e-5) & (at.below > _CERTAIN * np.maximum(slopes, 1e-3))
    high = (problem.upper - ratios < 1e-5) & (at.above > _CERTAIN * np.maximum(slopes, 1e-3))
    low |= problem.held
    ratios = _snap(problem, ratios, low, high & ~low)
    for _ in range(_ROUNDS):
        ratios, share = _newton(problem, ratios, share, low | high)
        low |= ratios <= problem.lower
        high |= (ratios >= problem.upper) & ~low
        ratios = _snap(problem, ratios, low, high)
        error = residuals(problem, ratios, share)
        better = error < residual
        best = np.where(better[:, None], ratios, best)
        residual = np.where(better, error, residual)
        if (residual < 1e-13).all():
            break
        # Bounds whose multiplier has the wrong sign are let go.
        gradient = (share[..., None] * problem.slopes(ratios, problem.values(ratios))).sum(axis=1)
        middle = _middle(gradient, ~(low | high))
        low &= (gradient >= middle) | problem.held
        high &= gradient <= middle
    return best, residual


def residuals(
    problem: Problem,
    ratios: Float[np.ndarray, "problems families"],
    share: Float[np.ndarray, "problems targets"],
) -> Float[np.ndarray, " problems"]:
    """KKT residual; for the worst loss also how far binding terms lie below the maximum."""
    values = problem.values(ratios)
    if not np.isfinite(values).all():
        values = np.where(np.isfinite(values), values, 0.0)
    slopes = share[..., None] * problem.slopes(ratios, values)
    out = kkt_residual(slopes, ratios, problem.lower, problem.upper)
    if problem.objective.worst:
        most = values.max(axis=1, keepdims=True)
        gap = (share * (most - values) / most).sum(axis=1)
        out = np.maximum(out, gap)
    return out


def _shares(problem: Problem, ratios: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Multipliers of the terms that sum to 1, zero for terms that do not bind."""
    if not problem.objective.worst:
        return np.ones_like(share)
    share = np.where(share > 1e-6 * share.max(axis=1, keepdims=True), share, 0.0)
    return share / share.sum(axis=1, keepdims=True)


def _snap(problem: Problem, ratios: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Put ratios on the bounds that hold; the others take up the difference."""
    ratios = np.clip(ratios, problem.lower, problem.upper)
    ratios = np.where(low, problem.lower, np.where(high, problem.upper, ratios))
    for _ in range(3):
        loose = np.where(low | high, 0.0, ratios)
        total = loose.sum(axis=1, keepdims=True)
        missing = 1.0 - ratios.sum(axis=1, keepdims=True)
        part = np.divide(missing, total, out=np.zeros_like(missing), where=total > 0)
        ratios = np.clip(ratios + loose * part, problem.lower, problem.upper)
    return ratios


def _middle(gradient: np.ndarray, free: np.ndarray) -> np.ndarray:
    """The multiplier of sum(p) = 1: the gradient that free families share."""
    count = free.sum(axis=1, keepdims=True)
    total = np.where(free, gradient, 0.0).sum(axis=1, keepdims=True)
    everywhere = gradient.mean(axis=1, keepdims=True)
    return np.where(count > 0, total / np.maximum(count, 1), everywhere)


def _newton(
    problem: Problem, ratios: np.ndarray, share: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One Newton step on the KKT equations with the held ratios and binding terms kept."""
    count, width = ratios.shape
    values = problem.values(ratios)
    slopes = problem.slopes(ratios, values)
    unit = np.where(held, 0.0, ratios)
    gradient = (share[..., None] * slopes).sum(axis=1)
    hessian = problem.curvature(ratios, share)
    terms = share.shape[1] if problem.objective.worst else 0
    size = width + 1 + (terms + 1 if terms else 0)
    matrix = np.zeros((count, size, size))
    target = np.zeros((count, size))
    # Unknowns: relative changes of the ratios, lambda, then multipliers of the terms and the level.
    matrix[:, :width, :width] = unit[:, :, None] * hessian * unit[:, None, :]
    matrix[:, :width, width] = matrix[:, width, :width] = unit
    middle = _middle(gradient, ~held)
    target[:, :width] = -unit * (gradient - middle)
    target[:, width] = 1.0 - ratios.sum(axis=1)
    if terms:
        binds = (share > 0).astype(float)
        block = slice(width + 1, width + 1 + terms)
        rows = slopes * unit[:, None, :] * binds[..., None]
        matrix[:, block, :width] = rows
        matrix[:, :width, block] = rows.transpose(0, 2, 1)
        matrix[:, block, -1] = matrix[:, -1, block] = -binds
        most = values.max(axis=1, keepdims=True)
        target[:, block] = binds * (most - values)
    step = (np.linalg.pinv(matrix, rcond=1e-13, hermitian=True) @ target[..., None])[..., 0]
    change = unit * step[:, :width]
    # Never past a bound, nor further than Newton's model can be trusted.
    with np.errstate(divide="ignore", invalid="ignore"):
        down = np.where(change < 0, (ratios - problem.lower) / -change, np.inf)
        up = np.where(change > 0, (problem.upper - ratios) / change, np.inf)
    length = np.minimum(1.0, np.minimum(down, up).min(axis=1, keepdims=True))
    ratios = ratios + length * change
    if terms:
        share = np.maximum(share + length * step[:, width + 1 : width + 1 + terms], 0.0)
        share = share / share.sum(axis=1, keepdims=True)
    return ratios, share
