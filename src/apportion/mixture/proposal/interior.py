"""The optimal mixture under any law: an interior-point method for many problems at once.

Newton steps on the objective with logarithmic barriers at the bounds, in coordinates scaled by the
distance to the nearest bound; ratios sum to 1 throughout. Directions of negative curvature are
turned around, so every step descends, also for laws that are not convex in the mixture. The worst
loss is minimised as a level s with barriers at s - F_t. `polish` then meets bounds exactly.

Axis legend: B problems, T targets, F families.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float

from apportion.mixture.proposal.objective import LossModel, Objective

_STEPS = 120
_FIRST_BARRIER = 0.1
LAST_BARRIER = 1e-11
_TOWARDS_BOUND = 0.99


@dataclass(frozen=True)
class Problem:
    """A batch of problems that share the objective and the bounds.

    Attributes:
        objective: what is minimised.
        model: losses; one set of parameters a problem.
        log_scale: logarithm of what every loss is divided by.
        lower, upper: bounds of all families.
    """

    objective: Objective
    model: LossModel
    log_scale: Float[np.ndarray, "problems targets"]
    lower: Float[np.ndarray, " families"]
    upper: Float[np.ndarray, " families"]

    @classmethod
    def of(
        cls,
        objective: Objective,
        model: LossModel,
        lower: Float[np.ndarray, " families"],
        upper: Float[np.ndarray, " families"],
    ) -> Problem:
        """The problem of an objective, unscaled."""
        return cls(objective, model, objective.log_scale(model), lower, upper)

    @property
    def held(self) -> np.ndarray:
        """Families whose ratio is given by its bounds."""
        return self.upper - self.lower <= 1e-12

    @property
    def centre(self) -> Float[np.ndarray, " families"]:
        """The mixture that uses the same part of every family's room."""
        room = self.upper - self.lower
        total = float(room.sum())
        part = (1.0 - float(self.lower.sum())) / total if total > 0 else 0.0
        return self.lower + room * min(max(part, 0.0), 1.0)

    def take(self, rows: np.ndarray) -> Problem:
        """Some of the problems."""
        return replace(self, model=self.model.take(rows), log_scale=self.log_scale[rows])

    def scaled(self, size: Float[np.ndarray, " problems"]) -> Problem:
        """Every term divided by a number per problem."""
        return replace(self, log_scale=self.log_scale + np.log(size)[:, None])

    def values(
        self, ratios: Float[np.ndarray, "problems families"]
    ) -> Float[np.ndarray, "problems targets"]:
        """Terms F_t."""
        return self.objective.terms(self.model, ratios, self.log_scale)

    def slopes(
        self,
        ratios: Float[np.ndarray, "problems families"],
        values: Float[np.ndarray, "problems targets"],
    ) -> Float[np.ndarray, "problems targets families"]:
        """Derivative of every term by every ratio."""
        by_log = np.where((values > 0)[..., None], self.model.slopes(ratios), 0.0)
        return values[..., None] * by_log

    def curvature(
        self,
        ratios: Float[np.ndarray, "problems families"],
        multipliers: Float[np.ndarray, "problems targets"],
    ) -> Float[np.ndarray, "problems families families"]:
        """Hessian of sum_t y_t F_t by the ratios that are not held, zero elsewhere.

        Central differences of the analytic slopes; their error only slows the last steps.
        """
        count, width = ratios.shape
        free = np.flatnonzero(~self.held)
        size = 1e-4 * np.maximum(np.minimum(ratios, 1.0 - ratios), 1e-9)[:, free]
        step = np.zeros((count, len(free), width))
        step[:, np.arange(len(free)), free] = size
        both = np.stack([ratios[:, None] + step, ratios[:, None] - step], axis=1)
        both = np.maximum(both, 0.0).reshape(-1, width)
        rows = np.repeat(np.arange(count), 2 * len(free))
        near = self.take(rows)
        slope = near.slopes(both, near.values(both))
        slope = (multipliers[rows, :, None] * slope).sum(axis=1)
        ahead, behind = np.moveaxis(slope.reshape(count, 2, len(free), width), 1, 0)
        out = np.zeros((count, width, width))
        out[:, free] = (ahead - behind) / (2.0 * size[..., None])
        out[:, :, self.held] = 0.0
        out = np.where(np.isfinite(out), out, 0.0)
        return 0.5 * (out + out.transpose(0, 2, 1))


@dataclass(frozen=True)
class Iterate:
    """Where all problems stand.

    Attributes:
        ratios: strictly inside the bounds that are not held.
        level: s, for the worst loss.
        below, above: multipliers of the bounds.
        share: multipliers of the terms (ones unless the worst is minimised).
        barrier: weight of the barriers.
    """

    ratios: Float[np.ndarray, "problems families"]
    level: Float[np.ndarray, " problems"]
    below: Float[np.ndarray, "problems families"]
    above: Float[np.ndarray, "problems families"]
    share: Float[np.ndarray, "problems targets"]
    barrier: Float[np.ndarray, " problems"]

    def take(self, rows: np.ndarray) -> Iterate:
        """Some of the problems."""
        return Iterate(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: np.ndarray, part: Iterate) -> Iterate:
        """The iterate with some problems replaced."""
        out: list[np.ndarray] = []
        for field in fields(self):
            values = getattr(self, field.name).copy()
            values[rows] = getattr(part, field.name)
            out.append(values)
        return Iterate(*out)


@dataclass(frozen=True)
class _Step:
    ratios: np.ndarray
    level: np.ndarray
    slope: np.ndarray  # of the barrier function along the step
    values: np.ndarray  # terms where it starts, and their slopes
    slopes: np.ndarray


def interior(
    problem: Problem, starts: Float[np.ndarray, "problems families"]
) -> tuple[Problem, Iterate]:
    """Minimise every problem from its start, which must lie strictly inside the bounds.

    Returns:
        The problem, scaled so that slopes are of order 1, and where it ended: close to a local
        minimum, inside all bounds.
    """
    values = problem.values(starts)
    size = (np.abs(problem.slopes(starts, values)).sum(axis=1) * starts)[:, ~problem.held]
    problem = problem.scaled(np.maximum(size.max(axis=1, initial=0.0), 1e-200))
    at = _begin(problem, starts)
    if (~problem.held).sum() < 2:
        return problem, at
    stayed = np.zeros(len(starts), dtype=int)
    open_ = np.arange(len(starts))
    for _ in range(_STEPS):
        part, now = problem.take(open_), at.take(open_)
        step = _direction(part, now)
        length = _search(part, now, step)
        now = _advance(part, now, step, length)
        # Eight steps are enough for any barrier: the next, smaller one goes on from here.
        stayed += 1
        settled = (-step.slope < 0.1 * now.barrier) | (length == 0.0) | (stayed >= 8)
        done = settled & (now.barrier <= LAST_BARRIER)
        smaller = np.maximum(np.minimum(0.2 * now.barrier, now.barrier**1.5), LAST_BARRIER)
        now = replace(now, barrier=np.where(settled, smaller, now.barrier))
        at = at.put(open_, now)
        open_, stayed = open_[~done], np.where(settled, 0, stayed)[~done]
        if not len(open_):
            break
    return problem, at


def _begin(problem: Problem, starts: np.ndarray) -> Iterate:
    values = problem.values(starts)
    barrier = np.full(len(starts), _FIRST_BARRIER)
    near, far = _rooms(problem, starts)
    level = values.max(axis=1) + 1.0
    share = np.ones_like(values)
    if problem.objective.worst:
        share = barrier[:, None] / (level[:, None] - values)
    return Iterate(starts, level, barrier[:, None] / near, barrier[:, None] / far, share, barrier)


def _rooms(problem: Problem, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances to both bounds; 1 for ratios that their bounds hold."""
    return (
        np.where(problem.held, 1.0, ratios - problem.lower),
        np.where(problem.held, 1.0, problem.upper - ratios),
    )


def _direction(problem: Problem, at: Iterate) -> _Step:
    width = at.ratios.shape[1]
    near, far = _rooms(problem, at.ratios)
    barrier = at.barrier[:, None]
    values = problem.values(at.ratios)
    slopes = problem.slopes(at.ratios, values)
    hessian = problem.curvature(at.ratios, at.share)
    hessian[:, np.arange(width), np.arange(width)] += at.below / near + at.above / far
    gradient = barrier / far - barrier / near
    measure = np.where(problem.held, 0.0, np.minimum(near, far))
    normal = measure
    if problem.objective.worst:
        slack = at.level[:, None] - values
        force = barrier / slack
        rows = np.concatenate([slopes, -np.ones((*slack.shape, 1))], axis=-1)
        hessian = np.pad(hessian, ((0, 0), (0, 1), (0, 1)))
        hessian += rows.transpose(0, 2, 1) @ ((at.share / slack)[..., None] * rows)
        gradient = gradient + (force[..., None] * slopes).sum(axis=1)
        gradient = np.column_stack([gradient, 1.0 - force.sum(axis=1)])
        measure = np.column_stack([measure, np.ones(len(measure))])
        normal = np.column_stack([normal, np.zeros(len(normal))])
    else:
        gradient = gradient + slopes.sum(axis=1)
    step = _descend(hessian, gradient, measure, normal)
    level = step[:, width] if problem.objective.worst else np.zeros(len(step))
    return _Step(step[:, :width], level, (gradient * step).sum(axis=1), values, slopes)


def _descend(
    hessian: np.ndarray, gradient: np.ndarray, measure: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Newton step within the plane sum(step) = 0, with all curvature made positive.

    `measure` is the unit of every coordinate, `normal` the plane's normal in those units.
    """
    unit = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    plane = np.eye(normal.shape[1]) - unit[:, :, None] * unit[:, None, :]
    inner = plane @ (measure[:, :, None] * hessian * measure[:, None, :]) @ plane
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.transpose(0, 2, 1)))
    size = np.abs(values)
    size = np.maximum(size, 1e-12 * size.max(axis=1, keepdims=True) + 1e-200)
    pull = vectors.transpose(0, 2, 1) @ (plane @ (measure * gradient)[..., None])
    return -measure * (plane @ (vectors @ (pull / size[..., None])))[..., 0]


def _merit(problem: Problem, at: Iterate, ratios: np.ndarray, level: np.ndarray) -> np.ndarray:
    """The barrier function; infinite outside the bounds."""
    near, far = _rooms(problem, ratios)
    values = problem.values(np.maximum(ratios, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        wall = np.log(near).sum(axis=1) + np.log(far).sum(axis=1)
        if problem.objective.worst:
            out = level - at.barrier * (wall + np.log(level[:, None] - values).sum(axis=1))
        else:
            out = values.sum(axis=1) - at.barrier * wall
    return np.where(np.isfinite(out), out, np.inf)


def _search(problem: Problem, at: Iterate, step: _Step) -> np.ndarray:
    """Step lengths that stay inside the bounds and lower the barrier function."""
    near, far = _rooms(problem, at.ratios)
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = np.where(step.ratios < 0, near / -step.ratios, far / step.ratios)
    reach = np.where(step.ratios == 0, np.inf, reach).min(axis=1)
    length = np.minimum(1.0, _TOWARDS_BOUND * reach)
    before = _merit(problem, at, at.ratios, at.level)
    # Below the rounding of the merit no decrease can be seen; such steps count as good.
    blur = 1e-15 * np.maximum(1.0, np.abs(before))
    done = np.zeros(len(length), dtype=bool)
    for _ in range(40):
        ratios = at.ratios + length[:, None] * step.ratios
        after = _merit(problem, at, ratios, at.level + length * step.level)
        done |= after <= before + 1e-4 * length * step.slope + blur
        if done.all():
            break
        length = np.where(done, length, 0.5 * length)
    return np.where(done, length, 0.0)


def _advance(problem: Problem, at: Iterate, step: _Step, length: np.ndarray) -> Iterate:
    near, far = _rooms(problem, at.ratios)
    barrier, part = at.barrier[:, None], length[:, None]
    below = at.below + part * ((barrier - at.below * step.ratios) / near - at.below)
    above = at.above + part * ((barrier + at.above * step.ratios) / far - at.above)
    ratios = at.ratios + part * step.ratios
    level = at.level + length * step.level
    share = at.share
    if problem.objective.worst:
        slack = at.level[:, None] - step.values
        change = (step.slopes @ step.ratios[..., None])[..., 0] - step.level[:, None]
        share = share + part * ((barrier + share * change) / slack - share)
        share = _near(share, barrier / (level[:, None] - problem.values(ratios)))
    near, far = _rooms(problem, ratios)
    return Iterate(
        ratios, level, _near(below, barrier / near), _near(above, barrier / far), share, at.barrier
    )


def _near(value: np.ndarray, primal: np.ndarray) -> np.ndarray:
    """Multipliers, kept within a factor of those that the barrier implies."""
    return np.clip(value, 1e-4 * primal, 1e4 * primal)
