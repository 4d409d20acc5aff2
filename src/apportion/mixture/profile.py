"""Profile intervals: how far one parameter can move before the best fit of the rest gets worse.

For exponents that the runs determine badly the bootstrap is cut off by bounds and vanished terms;
the profile shows an interval that is open where the runs set no limit. With a robust objective the
excess over the minimum is not half a chi-square: it is scaled by E[psi^2] / E[psi'] (the ratio that
relates the spread of an M-estimate to its curvature; Huber and Ronchetti, Robust Statistics, 2009,
chapter 13).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import chi2

from apportion.errors import InputError
from apportion.mixture.fit import stack
from apportion.mixture.identify import standard_errors
from apportion.mixture.laws.base import Parameter
from apportion.mixture.result import Fit
from apportion.mixture.solver import HUBER_DELTA, Problems, minimise

# Grid of the profile, in standard errors from the minimum; widened until it leaves the interval.
_GRID = np.concatenate([-np.geomspace(8.0, 0.25, 12), np.geomspace(0.25, 8.0, 12)])
_WIDENINGS = 3


@dataclass(frozen=True)
class Profile:
    """The profile of one parameter of one target.

    Attributes:
        family, parameter: which one.
        value: its value at the minimum (internal coordinate: exponents as they are).
        low, high: the interval; infinite where the runs set no limit within the law's bounds.
        grid: the values tried.
        excess: objective above its minimum, divided by the cutoff (1 ends the interval).
    """

    family: str
    parameter: str
    value: float
    low: float
    high: float
    grid: Float[np.ndarray, " points"]
    excess: Float[np.ndarray, " points"]


def profile(fit: Fit, family: str, parameter: str, level: float | None = None) -> Profile:
    """Profile interval of one exponent or coefficient of one target family.

    Args:
        fit: a fit.
        family: a target of the fit.
        parameter: symbol of the parameter, for example `"gamma"`.
        level: coverage; the fit's own level if None.

    Raises:
        InputError: the fit has no such target or parameter.
    """
    target, column = _locate(fit, family, parameter)
    stated = fit.law.parameters(len(fit.families))[column]
    width = float(standard_errors(fit.law, fit.runs, fit.theta, fit.used)[target, column])
    if not np.isfinite(width):
        width = (stated.upper - stated.lower) / 8
    cutoff = _cutoff(fit, target, fit.level if level is None else level)
    value = float(fit.theta[target, column])
    grid, excess = np.array([value]), np.zeros(1)
    for _ in range(_WIDENINGS):
        grid = np.unique(np.clip(value + width * _GRID, stated.lower, stated.upper))
        excess = (_refit(fit, target, column, grid) - fit.objective[target]) / cutoff
        ended = [_closed(grid, excess, value, side, stated) for side in (-1, 1)]
        if all(ended):
            break
        width *= 4
    low = _crossing(grid[grid < value][::-1], excess[grid < value][::-1], value)
    high = _crossing(grid[grid > value], excess[grid > value], value)
    return Profile(
        family=family,
        parameter=parameter,
        value=value,
        low=-np.inf if low is None else low,
        high=np.inf if high is None else high,
        grid=grid,
        excess=excess,
    )


def profile_table(
    fit: Fit, parameters: tuple[str, ...] = ("alpha", "beta", "gamma")
) -> pd.DataFrame:
    """Profile intervals of the named parameters for every target that has them.

    Returns:
        Columns `family`, `parameter`, `value`, `low`, `high` (infinite where open).
    """
    symbols = [p.symbol for p in fit.law.parameters(len(fit.families))]
    found = [
        profile(fit, target, symbol)
        for target in fit.targets
        for symbol in parameters
        if symbol in symbols
    ]
    rows = [(p.family, p.parameter, p.value, p.low, p.high) for p in found]
    return pd.DataFrame(rows, columns=["family", "parameter", "value", "low", "high"])


def _locate(fit: Fit, family: str, parameter: str) -> tuple[int, int]:
    if family not in fit.targets:
        raise InputError(f"expected a family out of {', '.join(fit.targets)}; got {family!r}")
    order = fit.runs.order(family)
    symbols = [p.named(order).symbol for p in fit.law.parameters(len(fit.families))]
    if parameter not in symbols:
        raise InputError(f"expected a parameter out of {', '.join(symbols)}; got {parameter!r}")
    return fit.targets.index(family), symbols.index(parameter)


def _refit(fit: Fit, target: int, column: int, grid: np.ndarray) -> Float[np.ndarray, " points"]:
    view = fit.runs.conditions(fit.targets[target])
    start = np.tile(fit.theta[target], (len(grid), 1))
    start[:, column] = grid
    fixed = np.zeros(start.shape, dtype=bool)
    fixed[:, column] = True
    problems = Problems(
        at=stack([view]),
        log_loss=np.log(fit.runs.losses[:, target])[None],
        source=np.zeros(len(grid), dtype=np.int64),
        weights=np.tile(fit.used[target].astype(float), (len(grid), 1)),
        fixed=fixed,
    )
    deltas = (3e-2, 1e-2, 3e-3, HUBER_DELTA)
    return minimise(fit.law, problems, start, deltas=deltas).objective


def _cutoff(fit: Fit, target: int, level: float) -> float:
    residual = np.abs(fit.residuals()[fit.used[target], target])
    count, parameters = len(residual), fit.theta.shape[1]
    # The fit passes through about as many rows as it has parameters; they show no noise.
    noise = np.sort(residual)[min(parameters, count - 1) :]
    spread = np.mean(np.minimum(noise, HUBER_DELTA) ** 2)
    # Curvature: the share of residuals inside delta, from a window wide enough to hold some.
    window = max(HUBER_DELTA, 0.5 * float(np.median(noise)) * 1.4826)
    inside = np.mean(noise < window) * HUBER_DELTA / window
    scale = spread / max(inside, 1.0 / count * HUBER_DELTA / window)
    return float(0.5 * chi2.ppf(level, 1) * scale)


def _closed(
    grid: np.ndarray, excess: np.ndarray, value: float, side: int, stated: Parameter
) -> bool:
    rows = grid < value if side < 0 else grid > value
    at_bound = grid[0] <= stated.lower if side < 0 else grid[-1] >= stated.upper
    return bool((excess[rows] > 1).any() or at_bound or not rows.any())


def _crossing(grid: np.ndarray, excess: np.ndarray, value: float) -> float | None:
    """First value, walking away from the minimum, where the excess passes 1."""
    beyond = np.flatnonzero(excess > 1)
    if not len(beyond):
        return None
    k = int(beyond[0])
    before, at_before = (value, 0.0) if k == 0 else (float(grid[k - 1]), float(excess[k - 1]))
    # The excess is close to quadratic, so its root is close to linear.
    start, end = np.sqrt(max(at_before, 0.0)), np.sqrt(float(excess[k]))
    return float(before + (grid[k] - before) * (1.0 - start) / (end - start))
