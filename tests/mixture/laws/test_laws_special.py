"""What is peculiar to one law: redundant numbers, corners of the simplex, kinship of laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.laws import Conditions, get_law


def runs_at(ratios: list[list[float]], unique: list[float] | None = None) -> Conditions:
    count = len(ratios)
    rng = np.random.default_rng(0)
    return Conditions(
        10 ** rng.uniform(7, 9, count),
        10 ** rng.uniform(9, 10, count),
        np.array(ratios),
        None if unique is None else np.array(unique),
    )


def test_bimix_is_the_family_law_at_one_size():
    at = runs_at([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    bimix = get_law("bimix").log_loss(np.array([0.6, 0.3, 0.4, 0.1]), at)
    nothing = -30.0
    family = get_law("family").log_loss(np.array([0.6, nothing, 0.3, 0.2, 0.4, 0.1]), at)
    np.testing.assert_allclose(bimix, family, rtol=1e-10)


def test_mixing_absorbs_its_amplitude():
    """c + k exp(t r) with log k added to every t is the same prediction on the simplex."""
    at, k = runs_at([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]]), 2.5
    t = np.array([-1.0, 0.3])
    published = 1.5 + k * np.exp(at.ratios @ t)
    found = get_law("mixing").log_loss(np.r_[np.log(1.5), t + np.log(k)], at)
    np.testing.assert_allclose(np.exp(found), published, rtol=1e-13)


def test_transfer_without_transfer_sees_own_tokens_only():
    at = runs_at([[0.2, 0.8], [0.5, 0.5]])
    theta = np.array([0.5, 0.4, 0.3, 0.3, 0.35])
    own = replace(at, tokens=at.tokens * at.own)
    found = get_law("transfer").log_loss(np.r_[theta, 0.0], at)
    np.testing.assert_allclose(found, get_law("chinchilla").log_loss(theta, own), rtol=1e-13)


def test_full_transfer_is_blind_to_the_mixture():
    at = runs_at([[0.2, 0.8], [0.0, 1.0]])
    theta = np.array([0.5, 0.4, 0.3, 0.3, 0.35])
    found = get_law("transfer").log_loss(np.r_[theta, 1.0], at)
    np.testing.assert_allclose(found, get_law("chinchilla").log_loss(theta, at), rtol=1e-13)


def test_transfer_without_any_source_is_large_finite_and_points_back():
    at = runs_at([[0.0, 1.0]])
    law, theta = get_law("transfer"), np.array([0.5, 0.4, 0.3, 0.3, 0.35, 0.0])
    value, gradient = law.gradient(theta, at)
    some = law.log_loss(np.r_[theta[:5], 1e-3], at)
    assert some[0] < value[0] < 50.0
    assert gradient[0, 5] < 0
    assert np.isfinite(gradient).all()
    assert law.ratio_gradient(theta, at)[0, 0] < 0
    grown = law.log_loss(theta, replace(at, tokens=at.tokens * 1.001))
    slope = law.size_gradient(theta, at)[0, 1]
    assert slope == pytest.approx((grown - value)[0] / np.log(1.001), rel=1e-3)


def test_atlas_at_the_published_decay_is_transfer_with_repetition():
    """Both write the same saturation, with lambda = 1 / rd."""
    at = runs_at([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]], unique=[2e8, 1e9])
    theta = np.array([0.5, 0.4, 0.3, 0.3, 0.35, 0.2])
    with_rate = np.insert(theta, 5, np.log(1.0 / 15.387756))
    found = get_law("atlas").log_loss(with_rate, at)
    np.testing.assert_allclose(
        found, get_law("transfer+repetition").log_loss(theta, at), rtol=1e-12
    )


def test_atlas_says_that_it_needs_unique_tokens():
    with pytest.raises(InputError, match=r"unique tokens of every family.*'transfer'"):
        get_law("atlas").log_loss(np.full(7, 0.1), runs_at([[0.2, 0.8]]))


def test_fernandes_is_a_power_of_n_alone_at_ratio_one():
    """f(1) = 1 whatever the bonus, also with c3 = 0."""
    at = runs_at([[1.0, 0.0], [1.0, 0.0]])
    for c3 in (0.0, 0.5, 2.0):
        theta = np.array([0.3, 0.6, 0.4, 1.0, 0.5, c3])
        expected = np.exp(0.3) + np.exp(0.6) * (at.params / 1e6) ** -0.4
        found = get_law("fernandes")
        np.testing.assert_allclose(np.exp(found.log_loss(theta, at)), expected, rtol=1e-13)
        assert np.array_equal(found.gradient(theta, at)[1][:, 3:], np.zeros((2, 3)))


@pytest.mark.parametrize("c3", [1.0, 2.0])
def test_fernandes_slope_at_ratio_one(c3):
    """From the left, where the slope is finite."""
    law, theta = get_law("fernandes"), np.array([0.3, 0.6, 0.4, 0.5, 0.7, c3])
    at, h = runs_at([[1.0, 0.0]]), 1e-6
    left = replace(at, ratios=np.array([[1.0 - h, h]]))
    slope = (law.log_loss(theta, at) - law.log_loss(theta, left))[0] / h
    assert law.ratio_gradient(theta, at)[0, 0] == pytest.approx(slope, rel=1e-4)


def test_fernandes_without_a_share_is_not_usable():
    law, at = get_law("fernandes"), runs_at([[0.0, 1.0], [0.1, 0.9]])
    assert law.usable(at).tolist() == [False, True]


def test_additive_absent_family_gives_nothing_and_pulls_hard():
    law = get_law("additive")
    theta = np.array([0.5, 0.4, 0.3, 0.3, 0.35, 0.6, 0.2, 0.5, 0.3])
    absent = runs_at([[0.4, 0.0]])
    alone = np.delete(theta, [6, 8])
    single = replace(absent, ratios=np.array([[0.4]]))
    np.testing.assert_allclose(law.log_loss(theta, absent), law.log_loss(alone, single), rtol=1e-13)
    assert np.array_equal(law.gradient(theta, absent)[1][0, [6, 8]], [0.0, 0.0])
    at_floor = replace(absent, ratios=np.array([[0.4, 1e-8]]))
    slope = law.ratio_gradient(theta, absent)[0, 1]
    assert slope == pytest.approx(law.ratio_gradient(theta, at_floor)[0, 1], rel=1e-2)
    assert slope < -100.0


def test_starts_ignore_runs_that_say_nothing():
    """A run without the family, however wrong its loss, does not move the starting points."""
    law = get_law("fernandes")
    rng = np.random.default_rng(3)
    own = np.r_[rng.uniform(0.1, 0.9, 20), 0.0]
    at = runs_at(np.stack([own, 1 - own], axis=1).tolist())
    observed = law.log_loss(np.array([0.3, 0.6, 0.4, 0.5, 0.7, 1.0]), at)
    spoiled = observed.copy()
    spoiled[-1] = 9.0
    assert np.array_equal(law.starts(at, observed), law.starts(at, spoiled))
