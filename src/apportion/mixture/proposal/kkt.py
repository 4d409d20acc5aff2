"""How far a mixture is from optimal, and the closed form where the law has one.

A family's own ratio enters the family law as L_i = c_i p_i^(-gamma_i). The optimum of
sum_i a_i p_i^(-gamma_i) on the simplex is p_i = (a_i gamma_i / lambda)^(1 / (1 + gamma_i)), held to
its bounds; one lambda makes the ratios sum to 1, and the sum falls in lambda, so it is one
monotone root for all families, whatever bounds are active ("water-filling"). The worst normalized
loss works alike: p_i = t^(1 / gamma_i), one level t for every family that no bound holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

# Halvings of a bracket of log lambda; it spans at most a few thousand, so 1e-16 of it remains.
_HALVINGS = 70


def kkt_residual(
    slopes: Float[np.ndarray, "problems targets families"],
    ratios: Float[np.ndarray, "problems families"],
    lower: Float[np.ndarray, " families"],
    upper: Float[np.ndarray, " families"],
) -> Float[np.ndarray, " problems"]:
    """The first-order gain that moving share between two families would still bring.

    Moving share from j to i changes the objective by g_i - g_j. At a minimum no pair gains, where
    j can give (it is above its lower bound) and i can take (it is below its upper one):

        residual = max(0, max over givers g - min over takers g) / scale,

    with the scale the largest sum_t |dF_t/dp_i| over families that can both give and take (over all
    families where there are none). It does not depend on the unit of the loss, nor on the
    multiplier of the constraint that ratios sum to 1.

    Args:
        slopes: derivative of every term of the objective by every ratio (terms of a maximum are
            multiplied by their multipliers).
        ratios: the mixtures; a ratio is at a bound only where it equals it exactly.
        lower, upper: bounds.
    """
    gradient = slopes.sum(axis=1)
    gives, takes = ratios > lower, ratios < upper
    most = np.where(gives, gradient, -np.inf).max(axis=1)
    least = np.where(takes, gradient, np.inf).min(axis=1)
    size = np.abs(slopes).sum(axis=1)
    free = gives & takes
    free |= ~free.any(axis=1, keepdims=True)
    scale = np.where(free, size, 0.0).max(axis=1)
    gap = np.where(np.isfinite(most) & np.isfinite(least), np.maximum(most - least, 0.0), 0.0)
    return np.divide(gap, scale, out=np.zeros_like(gap), where=scale > 0)


def best_sum(
    weight: Float[np.ndarray, "problems families"],
    gamma: Float[np.ndarray, "problems families"],
    lower: Float[np.ndarray, " families"],
    upper: Float[np.ndarray, " families"],
) -> Float[np.ndarray, "problems families"]:
    """Minimise sum_i weight_i p_i^(-gamma_i) over lower <= p <= upper, sum(p) = 1.

    Families with gamma <= 0 or weight 0 do not gain from share: they get their lower bound, and
    more only where all others are full (then in proportion to their room).

    Args:
        weight: a_i >= 0.
        gamma: exponents.
        lower, upper: bounds, with sum(lower) <= 1 <= sum(upper).
    """
    gains = (gamma > 0) & (weight > 0)
    power = np.where(gains, gamma, 0.0)
    # Exponents can be tiny, and their product with the weight then underflows unless logged.
    log_slope = np.log(np.where(gains, weight * power, 1.0))

    def share(level: np.ndarray) -> np.ndarray:
        return np.exp((log_slope - level[:, None]) / (1.0 + power))

    with np.errstate(divide="ignore"):
        slack = np.log(max((1.0 - float(lower.sum())) / lower.size, 1e-300))
        full = log_slope - (1.0 + power) * np.log(upper)
        few = log_slope - (1.0 + power) * slack
    return _fill(share, gains, full, few, lower, upper)


def best_worst(
    gamma: Float[np.ndarray, "problems families"],
    wanted: Float[np.ndarray, " families"],
    lower: Float[np.ndarray, " families"],
    upper: Float[np.ndarray, " families"],
) -> Float[np.ndarray, "problems families"]:
    """Minimise max_i p_i^(-gamma_i), and below it the next largest, and so on.

    The lexicographic minimum is unique: all families that no bound holds share one level. Families
    with gamma <= 0, or that are not wanted, get their lower bound.
    """
    gains = (gamma > 0) & (wanted > 0)
    power = np.where(gains, gamma, 1.0)

    def share(level: np.ndarray) -> np.ndarray:
        return np.exp(-np.exp(-level)[:, None] / power)

    with np.errstate(divide="ignore"):
        slack = np.log(max((1.0 - float(lower.sum())) / lower.size, 1e-300))
        # level = -log(-gamma log p): grows without end as p comes near 1.
        full = -np.log(np.maximum(-power * np.log(np.minimum(upper, 1.0)), 1e-17))
        few = np.broadcast_to(-np.log(-power * min(slack, -1e-17)), full.shape)
    # Here a larger level means larger shares; the search runs on its negative.
    return _fill(lambda level: share(-level), gains, -full, -few, lower, upper)


def _fill(
    share: Callable[[np.ndarray], np.ndarray],
    gains: np.ndarray,
    full: np.ndarray,
    few: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> np.ndarray:
    """Find the level at which shares, held to their bounds, sum to 1 (`share` falls with it)."""
    low = np.where(gains, full, np.inf).min(axis=1)
    high = np.where(gains, few, -np.inf).max(axis=1)
    none = ~gains.any(axis=1)
    low, high = np.where(none, 0.0, low), np.where(none, 0.0, np.maximum(high, low))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        with np.errstate(over="ignore"):
            total = np.where(gains, np.clip(share(middle), lower, upper), lower).sum(axis=1)
        low, high = np.where(total > 1.0, middle, low), np.where(total > 1.0, high, middle)
    with np.errstate(over="ignore"):
        wish = np.where(gains, share(high), lower)
    ratios = np.clip(wish, lower, upper)
    return _close(ratios, gains & (wish > lower) & (wish < upper), lower, upper)


def _close(
    ratios: np.ndarray, free: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Make every mixture sum to 1 to the last bit that matters."""
    missing = 1.0 - ratios.sum(axis=1, keepdims=True)
    loose = np.where(free, ratios, 0.0).sum(axis=1, keepdims=True)
    small = free.any(axis=1, keepdims=True) & (np.abs(missing) <= 1e-9 * np.maximum(loose, 1e-300))
    scaled = ratios * (1.0 + np.divide(missing, loose, out=np.zeros_like(missing), where=small))
    ratios = np.where(free & small, np.clip(scaled, lower, upper), ratios)
    # What is left goes to families that do not gain, in proportion to their room.
    missing = 1.0 - ratios.sum(axis=1, keepdims=True)
    room = upper - ratios
    space = room.sum(axis=1, keepdims=True)
    spread = np.divide(missing, space, out=np.zeros_like(missing), where=space > 0)
    return np.where(missing > 1e-12, np.minimum(ratios + room * spread, upper), ratios)
