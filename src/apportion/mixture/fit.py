"""Fit a law to a run table: every target family by itself, all of them in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from apportion.errors import InputError, option
from apportion.mixture.identify import status_of
from apportion.mixture.interval import bootstrap_weights
from apportion.mixture.laws import get_law
from apportion.mixture.laws.base import Conditions, Law, SeparableLaw
from apportion.mixture.result import Fit, Status
from apportion.mixture.runs import RunTable
from apportion.mixture.solver import HUBER_DELTA, Minima, Problems, minimise
from apportion.mixture.table.required import require_rows, require_table, require_varied
from apportion.mixture.varpro import project

__all__ = ["Fit", "Status", "fit", "stack"]

# Starts per family. On the public tables and on synthetic ones four already agree; eight is cheap.
_STARTS = 8
# All starts take some steps at a smooth delta; the best of each family go on to the real one.
_SMOOTH_DELTA = 1e-1
_SCREENING_STEPS = 20
_POLISHED = 3
_POLISH_DELTAS = (3e-2, 1e-2, 3e-3, HUBER_DELTA)


def fit(
    runs: RunTable,
    law: str | Law = "family",
    *,
    bootstrap: int = 0,
    seed: int = 0,
    level: float = 0.9,
    progress: Callable[[float], None] | None = None,
) -> Fit:
    """Fit a law to every target family of a run table.

    Minimises the sum over runs of Huber(delta = 1e-3) of log predicted - log observed loss. Starts
    come from variable projection (separable laws) or from the law's own grid, and all parameters
    are then polished together with analytic gradients.

    Args:
        runs: the run table.
        law: name of a law, or a law.
        bootstrap: refits for intervals; 0 for none, 1000 for a report.
        seed: seed of the bootstrap weights.
        level: coverage of the intervals.
        progress: called during the bootstrap with the share of the refits that are done.

    Raises:
        InputError: unknown law, fewer usable runs than parameters, a family with one loss in all
            runs, or runs over several (N, D) for a law that has no term for them.
    """
    require_table(runs)
    law = get_law(law)
    _check_request(law, runs, bootstrap, seed, level)
    views = [runs.conditions(target) for target in runs.targets]
    used = np.stack([law.usable(at) for at in views])
    count = len(law.parameters(len(runs.families)))
    for target, rows in zip(runs.targets, used, strict=True):
        if rows.sum() < min(count, len(runs)):
            raise InputError(
                f"{target}: the ratio is above 0 in {int(rows.sum())} of {len(runs)} runs, and the "
                f"{law.name} law needs {count} such runs; add some, leave the family out, or use a "
                "law that allows a ratio of 0 (transfer, additive)"
            )
    require_rows(runs, count, law.name)
    require_varied(runs)
    log_loss = np.log(runs.losses.T)
    at = stack(views)
    starts = [
        _starts(law, view, log_loss[k], used[k].astype(float)) for k, view in enumerate(views)
    ]
    source = np.repeat(np.arange(len(views)), [len(s) for s in starts])
    problems = Problems(at, log_loss, source, used[source].astype(float))
    found, source = _best_starts(law, problems, np.concatenate(starts))
    best = np.array([_least(found.objective, source == k) for k in range(len(views))])
    theta = found.theta[best]
    samples = None
    if bootstrap:
        weights = bootstrap_weights(runs, bootstrap, seed)
        base = Problems(at, log_loss, source[best], used.astype(float))
        samples = _refit(law, base, theta, weights, progress)
    status = status_of(law, runs, theta, used, bool(found.converged[best].all()))
    return Fit(law, runs, theta, found.objective[best], used, samples, status, level, seed)


def stack(views: Sequence[Conditions]) -> Conditions:
    """Conditions of several targets of one table, stacked along a leading source axis."""
    return Conditions(
        params=views[0].params[None],
        tokens=views[0].tokens[None],
        ratios=np.stack([at.ratios for at in views]),
        unique=(
            None
            if views[0].unique is None
            else np.stack([at.unique for at in views if at.unique is not None])
        ),
    )


def _refit(
    law: Law,
    base: Problems,
    theta: Float[np.ndarray, "targets q"],
    weights: Float[np.ndarray, "samples runs"],
    progress: Callable[[float], None] | None,
) -> Float[np.ndarray, "samples targets q"]:
    """Refit every target under every row of weights, each from the full fit."""
    samples, targets = len(weights), len(theta)
    problems = Problems(
        base.at,
        base.log_loss,
        np.tile(np.arange(targets), samples),
        (weights[:, None] * base.weights[None]).reshape(samples * targets, -1),
    )
    start = np.tile(theta, (samples, 1))
    deltas = (10 * HUBER_DELTA, HUBER_DELTA)
    found = minimise(law, problems, start, deltas, progress=progress)
    return found.theta.reshape(samples, targets, -1)


def _best_starts(
    law: Law, problems: Problems, start: Float[np.ndarray, "b q"]
) -> tuple[Minima, Int[np.ndarray, " kept"]]:
    """Minima from the most promising starts of every source, and the source of each.

    Every start gets a few steps on a smooth objective; only those that lead there are polished.
    """
    source = problems.source
    first = minimise(law, problems, start, deltas=(_SMOOTH_DELTA,), iterations=_SCREENING_STEPS)
    kept: list[int] = []
    for k in range(int(source.max()) + 1):
        mine = np.flatnonzero(source == k)
        kept += mine[np.argsort(first.objective[mine], kind="stable")[:_POLISHED]].tolist()
    rows = np.array(kept)
    found = minimise(law, problems.take(rows), first.theta[rows], deltas=_POLISH_DELTAS)
    return found, source[rows]


def _least(values: np.ndarray, rows: np.ndarray) -> int:
    return int(np.flatnonzero(rows)[values[rows].argmin()])


def _starts(law: Law, at: Conditions, log_loss: np.ndarray, weights: np.ndarray) -> np.ndarray:
    if isinstance(law, SeparableLaw):
        return project(law, at, log_loss, weights, _STARTS)
    return law.starts(at, log_loss)


def _check_request(law: Law, runs: RunTable, bootstrap: int, seed: int, level: float) -> None:
    for name, value in (("bootstrap", bootstrap), ("seed", seed)):
        _check_whole(name, value)
    if bootstrap < 0 or 0 < bootstrap < 20:
        raise InputError(
            f"expected {option('bootstrap', 0)} or at least 20 refits, got {bootstrap}"
        )
    if seed < 0:
        raise InputError(f"expected a seed from 0 up, got {seed}")
    if not 0 < level < 1:
        raise InputError(f"expected a level between 0 and 1 such as 0.9, got {level}")
    for need, values in (("params", runs.params), ("tokens", runs.tokens)):
        if need in law.fixed and len(np.unique(values)) > 1:
            raise InputError(
                f"the {law.name} law has no term for {need}, but the runs have "
                f"{len(np.unique(values))} values of it ({values.min():g} to {values.max():g}); "
                f"keep the runs of one of them, for example those with {need} = {values.max():g}"
            )


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, int | np.integer):
        raise InputError(f"expected a whole number as {option(name)}, got {value!r}")
