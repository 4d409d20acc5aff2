"""Minimise the Huber objective of many small problems at once.

The standard objective of scaling-law fits is a SUM of Huber terms (delta = 1e-3) on log losses.
Real noise is ten times delta, so the objective is close to a sum of absolute values: its minimum
sits where a few residuals fall inside delta, at the end of a curved valley along which those rows
stay inside. Plain Gauss-Newton sees no curvature outside these rows, re-weighting (IRLS) creeps,
and quasi-Newton methods zigzag across the valley. Four things together end in tens of steps:

- The curvature blends both: J' diag(w * (inside + mu * irls)) J. mu = 1 is a majorising step, mu →
  0 is Newton's step on the rows inside delta; mu follows success per problem.
- Every step is bent along the valley by the second directional derivative of the residuals, taken
  from one more evaluation (geodesic acceleration, Transtrum and Sethna 2012, arXiv 1201.5885).
- Amplitudes move on their own scale, not on the logarithm: a term that the data do not want stops
  at its bound, zero, instead of creeping towards minus infinity. A step that runs into a bound is
  solved again with that coordinate fixed there; clipping alone would spoil its direction.
- delta is lowered in stages, so that the active rows are found from a smooth neighbour.

Problems are stacked along the first axis (families × starts, or families × bootstrap samples),
finish one by one, and are dropped from the stack when done. Refused: scipy's optimisers for the
batch (one Python call per problem and iteration is where the classic 450-start fit spends its
time).

Axis legend: B problems, R runs, Q parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from apportion.mixture.laws.base import Conditions, Law

HUBER_DELTA = 1e-3
# Elements of the Jacobian (B × R × Q) held at once by one thread: what fits the outer caches.
_CHUNK_ELEMENTS = 400_000
_THREADS = 2
# Share of a step at which its curvature is probed, and the longest bend in units of the step.
_PROBE = 0.1
_MOST_BEND = 0.75
# A coordinate this near to a bound that pushes against it is held there.
_AT_BOUND = 1e-9


@dataclass(frozen=True)
class Problems:
    """B fits of one law: problem b sees the runs of `at[source[b]]` with its own weights.

    Attributes:
        at: conditions stacked over sources (families), every array with a leading source axis.
        log_loss: observed log losses per source.
        source: which source each problem reads.
        weights: weight of every run in every problem (0 drops it; bootstrap counts).
        fixed: coordinates that stay at their start, for profiles; None frees all.
    """

    at: Conditions
    log_loss: Float[np.ndarray, "sources runs"]
    source: Int[np.ndarray, " b"]
    weights: Float[np.ndarray, "b runs"]
    fixed: Bool[np.ndarray, "b q"] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: np.ndarray | slice) -> Problems:
        """The chosen problems."""
        return replace(
            self,
            source=self.source[rows],
            weights=self.weights[rows],
            fixed=None if self.fixed is None else self.fixed[rows],
        )

    def gather(self) -> tuple[Conditions, Float[np.ndarray, "b runs"]]:
        """Conditions and log losses repeated for every problem."""
        return at_source(self.at, self.source), self.log_loss[self.source]


@dataclass(frozen=True)
class Minima:
    """The minimum found for every problem.

    Attributes:
        theta: internal coordinates of the law.
        objective: sum of weighted Huber terms at delta = `HUBER_DELTA` (or the delta asked for).
        converged: the last steps changed the objective by less than the tolerance.
    """

    theta: Float[np.ndarray, "b q"]
    objective: Float[np.ndarray, " b"]
    converged: Bool[np.ndarray, " b"]


def at_source(at: Conditions, source: Int[np.ndarray, " b"]) -> Conditions:
    """Conditions of the chosen sources; arrays that all sources share (leading axis 1) stay so."""

    def pick(array: np.ndarray) -> np.ndarray:
        return array if len(array) == 1 else array[source]

    return Conditions(
        params=pick(at.params),
        tokens=pick(at.tokens),
        ratios=pick(at.ratios),
        unique=None if at.unique is None else pick(at.unique),
    )


def huber(
    residual: Float[np.ndarray, "*shape"], delta: float = HUBER_DELTA
) -> Float[np.ndarray, "*shape"]:
    """Huber loss: r²/2 inside delta, delta (|r| - delta/2) outside."""
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    return inside * (size - 0.5 * inside)


def minimise(
    law: Law,
    problems: Problems,
    start: Float[np.ndarray, "b q"],
    deltas: Sequence[float] = (1e-1, 1e-2, HUBER_DELTA),
    iterations: int = 300,
    progress: Callable[[float], None] | None = None,
) -> Minima:
    """Minimise every problem from its own start, lowering delta in stages.

    Args:
        law: gives log losses and their gradients.
        problems: the runs and weights.
        start: internal coordinates per problem (clipped to the law's bounds).
        deltas: Huber deltas of the stages; the last one defines the objective.
        iterations: at most so many per stage.
        progress: called with the share of the problems that are done, now and then.
    """
    space = _Space.of(law, problems.at.ratios.shape[-1])
    runs, width = problems.log_loss.shape[-1], len(space.lower)
    size = max(1, _CHUNK_ELEMENTS // (runs * max(1, width)))
    chunks = [slice(k, k + size) for k in range(0, len(problems), size)]

    def work(chunk: slice) -> Minima:
        part = problems.take(chunk)
        found = Minima(start[chunk], np.zeros(len(part)), np.zeros(len(part), dtype=bool))
        for stage, delta in enumerate(deltas):
            tolerance = 1e-9 if stage == len(deltas) - 1 else 1e-3
            found = _Descent(law, space, delta, tolerance).run(part, found.theta, iterations)
        return found

    if len(chunks) == 1:
        return work(chunks[0])
    parts: list[Minima] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for part in pool.map(work, chunks):
            parts.append(part)
            if progress is not None:
                progress(len(parts) / len(chunks))
    return Minima(
        theta=np.concatenate([p.theta for p in parts]),
        objective=np.concatenate([p.objective for p in parts]),
        converged=np.concatenate([p.converged for p in parts]),
    )


@dataclass(frozen=True)
class _Space:
    """Where the solver moves: amplitudes on their own scale, everything else as the law has it."""

    amplitude: Bool[np.ndarray, " q"]
    lower: Float[np.ndarray, " q"]
    upper: Float[np.ndarray, " q"]

    @classmethod
    def of(cls, law: Law, families: int) -> _Space:
        parameters = law.parameters(families)
        amplitude = np.array([p.kind == "amplitude" for p in parameters])
        lower = np.array([p.lower for p in parameters])
        upper = np.array([p.upper for p in parameters])
        with np.errstate(over="ignore"):
            return cls(
                amplitude,
                np.where(amplitude, np.exp(lower), lower),
                np.where(amplitude, np.exp(upper), upper),
            )

    def from_theta(self, theta: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.clip(np.where(self.amplitude, np.exp(theta), theta), self.lower, self.upper)

    def clip(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, self.lower, self.upper)

    def to_theta(self, x: np.ndarray) -> np.ndarray:
        return np.where(self.amplitude, np.log(np.where(self.amplitude, x, 1.0)), x)

    def chain(self, x: np.ndarray) -> np.ndarray:
        """d theta / d x."""
        return np.where(self.amplitude, 1.0 / np.where(self.amplitude, x, 1.0), 1.0)


@dataclass
class _State:
    """Where the still active problems of one descent stand."""

    x: np.ndarray
    residual: np.ndarray
    jacobian: np.ndarray
    objective: np.ndarray

    def put(self, rows: np.ndarray, other: _State) -> None:
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(other, field.name)[rows]

    def keep(self, rows: np.ndarray) -> _State:
        return _State(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class _Descent:
    """One stage of the descent: a fixed delta."""

    law: Law
    space: _Space
    delta: float
    tolerance: float

    def run(self, problems: Problems, theta: np.ndarray, iterations: int) -> Minima:
        count = len(theta)
        done = Minima(theta.copy(), np.zeros(count), np.zeros(count, dtype=bool))
        index = np.arange(count)
        at, log_loss = problems.gather()
        weights = problems.weights
        fixed = problems.fixed
        if fixed is None:
            fixed = np.zeros(theta.shape, dtype=bool)
        state = self.evaluate(at, log_loss, weights, self.space.from_theta(theta))
        mu, calm = np.ones(count), np.zeros(count)
        for _ in range(iterations):
            step = self.step(at, log_loss, weights, fixed, state, mu)
            # Clipped again: x + (bound - x) may round to the wrong side of the bound.
            trial = self.evaluate(at, log_loss, weights, self.space.clip(state.x + step))
            gain = state.objective - trial.objective
            better = gain > 0
            state.put(better, trial)
            # A small gain counts only while the step is Newton-like, not while it is held short.
            quiet = better & (gain <= self.tolerance * state.objective) & (mu < 0.05)
            calm = np.where(better, np.where(quiet, calm + 1, 0), calm)
            mu = np.clip(np.where(better, mu * 0.2, mu * 6.0), 1e-8, 1e12)
            # Where no damping finds a gain, the minimum is reached to rounding.
            finished = (calm >= 2) | (mu > 1e8)
            if not finished.any():
                continue
            self.settle(done, index, state, finished)
            done.converged[index[finished]] = True
            stay = ~finished
            index, state, weights = index[stay], state.keep(stay), weights[stay]
            mu, calm, fixed = mu[stay], calm[stay], fixed[stay]
            if not len(index):
                return done
            at, log_loss = problems.take(index).gather()
        self.settle(done, index, state, np.ones(len(index), dtype=bool))
        return done

    def settle(self, done: Minima, index: np.ndarray, state: _State, rows: np.ndarray) -> None:
        done.theta[index[rows]] = self.space.to_theta(state.x[rows])
        done.objective[index[rows]] = state.objective[rows]

    def evaluate(
        self, at: Conditions, log_loss: np.ndarray, weights: np.ndarray, x: np.ndarray
    ) -> _State:
        value, jacobian = self.law.gradient(self.space.to_theta(x), at)
        residual = value - log_loss
        jacobian = jacobian * self.space.chain(x)[:, None, :]
        objective = np.einsum("br,br->b", weights, huber(residual, self.delta))
        return _State(x, residual, jacobian, objective)

    def step(
        self,
        at: Conditions,
        log_loss: np.ndarray,
        weights: np.ndarray,
        fixed: np.ndarray,
        state: _State,
        mu: np.ndarray,
    ) -> np.ndarray:
        """The damped step, bent along the valley and kept within the bounds."""
        size = np.abs(state.residual)
        reweighted = self.delta / np.maximum(size, self.delta)
        curvature = weights * ((size < self.delta) + mu[:, None] * reweighted)
        transposed = state.jacobian.swapaxes(1, 2)
        slope = weights * np.clip(state.residual, -self.delta, self.delta)
        gradient = (transposed @ slope[..., None])[..., 0]
        hessian = transposed @ (state.jacobian * curvature[..., None])
        scale = np.einsum("brq,br->bq", state.jacobian**2, weights * reweighted)
        inverse, first, held = self.newton(state.x, fixed, gradient, hessian, scale)
        # Second directional derivative of the residuals along the step, by one extra evaluation.
        probe = self.space.to_theta(self.space.clip(state.x + _PROBE * first))
        moved = (self.law.log_loss(probe, at) - log_loss - state.residual) / _PROBE
        linear = (state.jacobian @ first[..., None])[..., 0]
        pull = (transposed @ (curvature * (moved - linear))[..., None])[..., 0] / _PROBE
        pull[held] = 0.0
        second = -(inverse @ pull[..., None])[..., 0]
        weight = np.sqrt(scale)
        length = np.linalg.norm(weight * first, axis=1)
        bend = np.linalg.norm(weight * second, axis=1)
        trust = np.minimum(1.0, _MOST_BEND * length / np.maximum(bend, 1e-300))
        return self.space.clip(state.x + first + trust[:, None] * second) - state.x

    def newton(
        self,
        x: np.ndarray,
        fixed: np.ndarray,
        gradient: np.ndarray,
        hessian: np.ndarray,
        scale: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inverse curvature, step, and which coordinates the bounds hold."""
        lower, upper = self.space.lower, self.space.upper
        low, high = x <= lower + _AT_BOUND, x >= upper - _AT_BOUND
        held = fixed | (low & (gradient > 0)) | (high & (gradient < 0))
        gradient = np.where(held, 0.0, gradient)
        hessian = hessian * (~held[:, :, None] & ~held[:, None, :])
        diagonal = np.einsum("bqq->bq", hessian)
        # The ridge keeps flat directions solvable without moving them far.
        largest = np.maximum(scale, diagonal)
        diagonal += 1e-10 * largest + 1e-12 * largest.max(axis=1, keepdims=True) + 1e-300
        diagonal[held] = 1.0
        inverse = np.linalg.inv(hessian)
        step = -(inverse @ gradient[..., None])[..., 0]
        for _ in range(2):
            outside = ~fixed & ((x + step < lower) | (x + step > upper))
            rows = np.flatnonzero(outside.any(axis=1))
            if not len(rows):
                break
            hit = outside[rows]
            system, right = hessian[rows], -gradient[rows]
            system[hit] = np.broadcast_to(np.eye(x.shape[1]), system.shape)[hit]
            right[hit] = (self.space.clip(x[rows] + step[rows]) - x[rows])[hit]
            held[rows] |= hit
            inverse[rows] = np.linalg.inv(system)
            step[rows] = (inverse[rows] @ right[..., None])[..., 0]
        return inverse, self.space.clip(x + step) - x, held
