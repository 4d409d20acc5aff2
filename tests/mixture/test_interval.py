"""Bootstrap weights, percentiles, profiles, and a small check that intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.fit import fit
from apportion.mixture.interval import bootstrap_weights, percentiles
from apportion.mixture.profile import profile, profile_table
from mixture.synthetic import synthetic_runs

WIDE = {"params": [5e4, 4e5, 3e6], "tokens": [4e5, 4e6, 4e7]}


def test_runs_of_one_mixture_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    mixtures = np.repeat(rng.dirichlet([2.0, 2.0], 10), 3, axis=0)
    runs, _ = synthetic_runs("family", families=2, runs=30, ratios=mixtures)
    weights = bootstrap_weights(runs, 50, seed=1)
    assert weights.shape == (50, 30)
    np.testing.assert_allclose(weights.sum(axis=1), 30)
    grouped = weights.reshape(50, 10, 3)
    np.testing.assert_array_equal(grouped[..., :1].repeat(3, axis=-1), grouped)
    assert (weights > 0).all()


def test_few_mixtures_are_not_drawn_whole() -> None:
    mixtures = np.repeat([[0.3, 0.7], [0.6, 0.4]], 10, axis=0)
    runs, _ = synthetic_runs("family", families=2, runs=20, ratios=mixtures)
    weights = bootstrap_weights(runs, 5, seed=1)
    assert len(np.unique(weights[0])) == 20


def test_percentiles_are_central() -> None:
    samples = np.linspace(-1.0, 3.0, 4001)[:, None]
    low, high = percentiles(samples, 0.9)
    assert low[0] == pytest.approx(-0.8)
    assert high[0] == pytest.approx(2.8)


def test_profile_is_zero_at_the_minimum_and_one_at_its_ends() -> None:
    runs, _ = synthetic_runs("family", families=2, runs=60, noise=0.01, seed=3, **WIDE)
    found = fit(runs)
    result = profile(found, "f1", "gamma")
    assert result.low < result.value < result.high
    assert (result.excess > -1e-6).all()
    inside = (result.grid > result.low) & (result.grid < result.high)
    assert (result.excess[inside] <= 1).all()
    assert (result.excess[~inside] >= 1).all()
    wider = profile(found, "f1", "gamma", level=0.99)
    assert wider.low < result.low < result.high < wider.high


def test_profile_of_an_exponent_that_the_runs_leave_open() -> None:
    runs, _ = synthetic_runs(
        "family", families=2, runs=40, noise=0.01, seed=4, params=[1e6, 1.05e6], tokens=[4e5, 4e7]
    )
    result = profile(fit(runs), "f0", "alpha")
    assert np.isinf(result.high) or result.high - result.low > 1.0


def test_profile_table_and_refusals() -> None:
    runs, _ = synthetic_runs("family", families=2, runs=40, noise=0.01, seed=5, **WIDE)
    found = fit(runs)
    table = profile_table(found, ("gamma",))
    assert list(table["family"]) == ["f0", "f1"]
    with pytest.raises(InputError, match="expected a family"):
        profile(found, "nowhere", "gamma")
    with pytest.raises(InputError, match="expected a parameter"):
        profile(found, "f0", "delta")


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """A small version of benchmarks/mixture_coverage.py, which runs 200 tables."""
    covered: list[np.ndarray] = []
    for seed in range(12):
        runs, theta = synthetic_runs("family", families=3, runs=60, noise=0.01, seed=seed, **WIDE)
        found = fit(runs, bootstrap=80, seed=seed)
        mixture = np.array([0.2, 0.3, 0.5])
        truth = np.exp(found.log_loss(4e5, 4e6, mixture[None], theta))[0]
        frame = found.predict(4e5, 4e6, mixture)
        covered.append((frame["low"] <= truth) & (truth <= frame["high"]))
        table = found.parameters
        rows = table[table["parameter"] == "gamma"]
        covered.append((rows["low"] <= theta[:, 5]).to_numpy() & (theta[:, 5] <= rows["high"]))
    share = float(np.mean(np.concatenate(covered)))
    # 72 correlated trials at 90 %: four standard errors on either side.
    assert 0.74 <= share <= 1.0
