"""The batched solver against scipy on the same objective, in small and in awkward cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from apportion.mixture.fit import stack
from apportion.mixture.laws import get_law
from apportion.mixture.runs import RunTable
from apportion.mixture.solver import HUBER_DELTA, Problems, huber, minimise
from apportion.mixture.varpro import nonnegative_least_squares, project
from mixture.synthetic import synthetic_runs


def problems_of(runs: RunTable, weights: np.ndarray | None = None) -> Problems:
    views = [runs.conditions(target) for target in runs.targets]
    count = len(views)
    return Problems(
        at=stack(views),
        log_loss=np.log(runs.losses.T),
        source=np.arange(count),
        weights=np.ones((count, len(runs))) if weights is None else weights,
    )


def reference_objective(law_name: str, runs: RunTable, target: str, theta: np.ndarray) -> float:
    """The objective written out run by run."""
    law, total = get_law(law_name), 0.0
    values = law.log_loss(theta, runs.conditions(target))
    for value, loss in zip(values, runs.losses[:, runs.targets.index(target)], strict=True):
        residual = abs(float(value) - float(np.log(loss)))
        if residual <= HUBER_DELTA:
            total += 0.5 * residual**2
        else:
            total += HUBER_DELTA * (residual - 0.5 * HUBER_DELTA)
    return total


def scipy_best(law_name: str, runs: RunTable, target: str, starts: np.ndarray) -> float:
    """Best of many BFGS runs in the law's own coordinates."""
    law, at = get_law(law_name), runs.conditions(target)
    log_loss = np.log(runs.losses[:, runs.targets.index(target)])

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, jacobian = law.gradient(theta, at)
        residual = value - log_loss
        slope = np.clip(residual, -HUBER_DELTA, HUBER_DELTA)
        return float(huber(residual).sum()), jacobian.T @ slope

    return min(float(minimize(objective, x, jac=True, method="BFGS").fun) for x in starts)


def test_huber_is_quadratic_inside_and_linear_outside() -> None:
    residual = np.array([-2e-3, -1e-3, -5e-4, 0.0, 1e-4, 1e-3, 1.0])
    expected = [1.5e-6, 5e-7, 1.25e-7, 0.0, 5e-9, 5e-7, 1e-3 - 5e-7]
    np.testing.assert_allclose(huber(residual, 1e-3), expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("law", ["family", "chinchilla"])
def test_never_worse_than_many_scipy_starts(law: str, seed: int) -> None:
    runs, _ = synthetic_runs(law, families=2, runs=47, noise=0.01, seed=seed)
    stated = get_law(law).parameters(2)
    rng = np.random.default_rng(seed)
    draws = [
        rng.uniform(-1, 1, 8) if p.kind == "amplitude" else rng.uniform(0, 0.6, 8) for p in stated
    ]
    for k, target in enumerate(runs.targets):
        log_loss = np.log(runs.losses[:, k])
        start = project(get_law(law), runs.conditions(target), log_loss, np.ones(len(runs)), 4)
        alone = Problems(
            at=stack([runs.conditions(target)]),
            log_loss=log_loss[None],
            source=np.zeros(len(start), dtype=np.int64),
            weights=np.ones((len(start), len(runs))),
        )
        found = minimise(get_law(law), alone, start)
        best = int(found.objective.argmin())
        assert found.converged[best]
        written = reference_objective(law, runs, target, found.theta[best])
        assert found.objective[best] == pytest.approx(written, rel=1e-10)
        assert found.objective[best] <= scipy_best(law, runs, target, np.stack(draws, 1)) * (
            1 + 1e-6
        )


def test_a_batch_gives_what_each_problem_gives_alone() -> None:
    runs, theta = synthetic_runs("family", families=3, runs=31, noise=0.02, seed=5)
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=(3, 31))
    together = minimise(get_law("family"), problems_of(runs, weights), theta)
    for k in range(3):
        alone = minimise(
            get_law("family"), problems_of(runs, weights).take(np.array([k])), theta[k : k + 1]
        )
        np.testing.assert_allclose(alone.theta[0], together.theta[k], rtol=0, atol=0)


def test_chunks_over_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, theta = synthetic_runs("family", families=4, runs=25, noise=0.02, seed=6)
    whole = minimise(get_law("family"), problems_of(runs), theta)
    monkeypatch.setattr("apportion.mixture.solver._CHUNK_ELEMENTS", 1)
    pieces = minimise(get_law("family"), problems_of(runs), theta)
    np.testing.assert_array_equal(whole.theta, pieces.theta)


def test_a_zero_weight_is_as_good_as_a_missing_row() -> None:
    runs, theta = synthetic_runs("family", families=2, runs=40, noise=0.02, seed=7)
    spoilt = RunTable.of(
        runs.params, runs.tokens, runs.ratios, runs.losses.copy(), families=runs.families
    )
    spoilt.losses[::5] *= 3.0
    weights = np.ones((2, 40))
    weights[:, ::5] = 0.0
    masked = minimise(get_law("family"), problems_of(spoilt, weights), theta)
    kept = runs.take(np.arange(40) % 5 != 0)
    removed = minimise(get_law("family"), problems_of(kept), theta)
    np.testing.assert_allclose(masked.objective, removed.objective, rtol=1e-9)


def test_exact_data_are_fitted_exactly() -> None:
    runs, theta = synthetic_runs("family", families=2, runs=60, noise=0.0, seed=8)
    law = get_law("family")
    start = theta + np.array([0.3, -0.3, 0.2, 0.05, -0.05, 0.03])
    found = minimise(law, problems_of(runs), start)
    assert (found.objective < 1e-14).all()
    np.testing.assert_allclose(found.theta[:, 5], theta[:, 5], atol=1e-5)


def test_an_unwanted_term_stops_at_zero() -> None:
    """Losses without a constant: E must end at its bound, and at no cost to the objective."""
    runs, theta = synthetic_runs("family", families=1, runs=50, noise=0.0, seed=9)
    law = get_law("family")
    truth = theta.copy()
    truth[:, 0] = -30.0
    losses = np.exp(law.log_loss(truth[0], runs.conditions(runs.targets[0])))[:, None]
    bare = RunTable.of(runs.params, runs.tokens, runs.ratios, losses, families=runs.families)
    found = minimise(law, problems_of(bare), theta)
    assert found.objective[0] < 1e-14
    assert np.exp(found.theta[0, 0]) < 1e-4


def test_fixed_coordinates_stay_and_bounds_hold() -> None:
    runs, theta = synthetic_runs("family", families=2, runs=40, noise=0.02, seed=10)
    law = get_law("family")
    fixed = np.zeros(theta.shape, dtype=bool)
    fixed[:, 3] = True
    start = theta.copy()
    start[:, 3] = 0.77
    base = problems_of(runs)
    held = Problems(base.at, base.log_loss, base.source, base.weights, fixed)
    found = minimise(law, held, start)
    np.testing.assert_array_equal(found.theta[:, 3], 0.77)
    free = minimise(law, base, theta)
    assert (found.objective >= free.objective * (1 - 1e-9)).all()
    for q, p in enumerate(law.parameters(2)):
        assert (free.theta[:, q] >= p.lower - 1e-9).all()
        assert (free.theta[:, q] <= p.upper + 1e-9).all()


def test_a_design_without_variation_is_survived() -> None:
    """One N and one D: the terms are the same column, and nothing must blow up."""
    runs, theta = synthetic_runs(
        "family", families=2, runs=30, noise=0.01, seed=11, params=[1e6], tokens=[1e9]
    )
    found = minimise(get_law("family"), problems_of(runs), theta)
    assert np.isfinite(found.theta).all()
    assert (found.objective < 1e-3).all()


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_nonnegative_least_squares_matches_scipy(terms: int) -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(terms)
    basis = rng.normal(size=(50, 13, terms))
    observed = rng.normal(size=13)
    found, error = nonnegative_least_squares(basis, observed)
    for k in range(50):
        expected, norm = nnls(basis[k], observed)
        np.testing.assert_allclose(found[k], expected, atol=1e-7)
        assert error[k] == pytest.approx(norm**2, abs=1e-7)
