"""One entry to both solvers: the closed form where the law has one, else the interior point."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from apportion.errors import InputError
from apportion.mixture.proposal.constraints import Box
from apportion.mixture.proposal.interior import Problem, interior
from apportion.mixture.proposal.kkt import best_sum, best_worst, kkt_residual
from apportion.mixture.proposal.objective import LossModel, Objective
from apportion.mixture.proposal.polish import polish

# Starting points for laws that may have several minima; deterministic.
_STARTS = 8
# Samples solved at once under a law without closed form; bounds the memory of the differences.
_BATCH = 64


def best_mixture(
    goal: Objective, model: LossModel, box: Box
) -> tuple[Float[np.ndarray, " families"], float]:
    """The optimal ratios of one problem, and their KKT residual.

    Args:
        goal: what is minimised.
        model: losses, of one problem.
        box: bounds.

    Raises:
        InputError: the law does not depend on the mixture, or the objective is infinite everywhere.
    """
    _check(goal, model, box)
    if model.separable:
        ratios, residual = _closed(goal, model, box)
        return ratios[0], float(residual[0])
    many = model.take(np.zeros(_STARTS, dtype=int))
    problem = Problem.of(goal, many, box.lower, box.upper)
    wish = np.random.default_rng(0).dirichlet(np.ones(len(box.lower)), _STARTS)
    wish[0] = 1.0 / len(box.lower)
    starts = best_sum(wish, np.ones_like(wish), box.lower, box.upper)
    ratios, residual = _solve(problem, 0.7 * starts + 0.3 * problem.centre)
    value = goal.value(many, ratios)
    # Among starts that agree on the value the best-converged one is the answer.
    good = value <= value.min() + 1e-12 * abs(value.min())
    best = int(np.flatnonzero(good)[residual[good].argmin()])
    return ratios[best], float(residual[best])


def best_mixtures(
    goal: Objective,
    model: LossModel,
    box: Box,
    near: Float[np.ndarray, " families"],
) -> Iterator[Float[np.ndarray, "batch families"]]:
    """The optimal ratios of every problem, in batches; other laws start near a known optimum."""
    if model.separable:
        yield _closed(goal, model, box)[0]
        return
    for first in range(0, len(model.theta), _BATCH):
        part = model.take(np.arange(first, min(first + _BATCH, len(model.theta))))
        problem = Problem.of(goal, part, box.lower, box.upper)
        start = np.tile(0.7 * near + 0.3 * problem.centre, (len(part.theta), 1))
        yield _solve(problem, start)[0]


def batches(model: LossModel) -> int:
    """How many batches `best_mixtures` yields."""
    return 1 if model.separable else -(-len(model.theta) // _BATCH)


def _solve(problem: Problem, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = float(problem.lower.sum()), float(problem.upper.sum())
    for bound, value in zip((problem.lower, problem.upper), total, strict=True):
        # Bounds that leave one mixture only.
        if abs(value - 1.0) <= 1e-12:
            return np.tile(bound, (len(starts), 1)), np.zeros(len(starts))
    return polish(*interior(problem, starts))


def _check(goal: Objective, model: LossModel, box: Box) -> None:
    if not model.mixed:
        raise InputError(
            f"the {model.law.name} law has no term in the sampling ratios, so no mixture is better "
            "than another; fit a law that has one, for example family"
        )
    shut = [
        model.families[own]
        for t, own in enumerate(model.own)
        if goal.weights[t] > 0 and box.upper[own] == 0.0
    ]
    if shut and not np.isfinite(goal.value(model, box.lower[None])).all():
        trial = box.upper[None] / box.upper.sum()
        if not np.isfinite(goal.value(model, trial)).all():
            raise InputError(
                f"the objective counts the loss of {', '.join(shut)}, which is infinite at ratio 0 "
                f"under the {model.law.name} law, but the cap there is 0; raise the cap, or give "
                "weights for the other families only"
            )


def _closed(goal: Objective, model: LossModel, box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Ratios and KKT residuals of every problem, for laws c_i p_i^(-gamma_i)."""
    own = list(model.own)
    shape = (len(model.theta), len(box.lower))
    weight, gamma = np.zeros(shape), np.zeros(shape)
    gamma[:, own] = model.gamma
    weight[:, own] = goal.weights * np.exp(model.log_alone - goal.log_scale(model))
    if goal.worst:
        ratios = best_worst(gamma, weight[0], box.lower, box.upper)
    else:
        ratios = best_sum(weight, gamma, box.lower, box.upper)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        value = np.where(weight > 0, weight * ratios**-gamma, 0.0)
        slope = np.where(weight * gamma > 0, -gamma * value / ratios, 0.0)
    if goal.worst:
        slope = slope * _multipliers(value, slope, ratios, box)
    diagonal = np.zeros((*shape, shape[1]))
    diagonal[:, np.arange(shape[1]), np.arange(shape[1])] = slope
    return ratios, kkt_residual(diagonal, ratios, box.lower, box.upper)


def _multipliers(value: np.ndarray, slope: np.ndarray, ratios: np.ndarray, box: Box) -> np.ndarray:
    """Multipliers of the terms at the maximum: one that cannot gain, or all with equal slopes."""
    top = value >= value.max(axis=1, keepdims=True) * (1.0 - 1e-12)
    stuck = top & ((ratios >= box.upper) | (slope == 0.0))
    inverse = np.where(top & (slope < 0), 1.0 / np.where(slope < 0, -slope, 1.0), 0.0)
    total = inverse.sum(axis=1, keepdims=True)
    even = np.divide(inverse, total, out=np.zeros_like(inverse), where=total > 0)
    first = np.zeros_like(even)
    first[np.arange(len(first)), stuck.argmax(axis=1)] = 1.0
    return np.where(stuck.any(axis=1, keepdims=True), first, even)
