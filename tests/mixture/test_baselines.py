"""Mixtures without runs, against published values and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InputError
from apportion.mixture.proposal.baselines import (
    baselines,
    proportional,
    temperature,
    uniform,
    unimax,
    within,
)

SIZES = st.lists(st.floats(1e3, 1e12), min_size=1, max_size=12).map(np.array)


def test_unimax_gives_the_published_example():
    # Characters of Swedish, Persian, Estonian, Icelandic and Faroese with a budget of 250e9 and
    # four epochs, as the package unimax_sampling documents them.
    sizes = np.array([179955884499, 184595788282, 42541080893, 10027573389, 549707867], float)
    expected = [
        0.27692116663466665,
        0.27692116663466665,
        0.2769211666346667,
        0.160441174224,
        0.008795325872,
    ]
    np.testing.assert_allclose(unimax(sizes, 250e9, 4.0), expected, rtol=1e-11)


@given(SIZES, st.floats(1e3, 1e13), st.floats(0.1, 20))
def test_unimax_is_uniform_below_the_epoch_limit(sizes, tokens, epochs):
    ratios = unimax(sizes, tokens, epochs)
    assert ratios.sum() == pytest.approx(1.0, rel=1e-12)
    given_ = ratios * min(tokens, epochs * sizes.sum())
    assert (given_ <= epochs * sizes * (1 + 1e-9)).all()
    capped = given_ >= epochs * sizes * (1 - 1e-9)
    if not capped.all():
        level = given_[~capped]
        np.testing.assert_allclose(level, level[0], rtol=1e-9)
        # Whoever is at the limit has no more than the level of the others.
        assert (given_[capped] <= level[0] * (1 + 1e-9)).all()


def test_unimax_without_limits_is_uniform():
    sizes = np.array([1e3, np.inf, 1e9])
    np.testing.assert_allclose(unimax(sizes, 100.0, 4.0), uniform(3))


def test_unimax_with_too_little_text_is_proportional():
    sizes = np.array([1.0, 3.0])
    np.testing.assert_allclose(unimax(sizes, 100.0, 4.0), [0.25, 0.75])


@given(SIZES, st.floats(0, 2))
def test_temperature_keeps_ratios_of_powers(sizes, alpha):
    ratios = temperature(sizes, alpha)
    assert ratios.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(ratios / ratios[0], (sizes / sizes[0]) ** alpha, rtol=1e-9)


def test_temperature_spans_uniform_to_proportional():
    sizes = np.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(temperature(sizes, 0.0), uniform(3))
    np.testing.assert_allclose(temperature(sizes, 1.0), proportional(sizes))
    np.testing.assert_allclose(proportional(sizes), [0.125, 0.25, 0.625])
    np.testing.assert_allclose(temperature(np.array([1.0, 1024.0]), 0.3), [1 / 9, 8 / 9])


def test_within_splits_a_family():
    sizes = {"fr": 1.0e9, "ca": 1.0e7}
    split = within(0.4, sizes, "temperature", alpha=0.5)
    assert split == pytest.approx({"fr": 0.4 * 10 / 11, "ca": 0.4 / 11})
    assert within(0.4, sizes, "uniform") == pytest.approx({"fr": 0.2, "ca": 0.2})
    assert sum(within(0.4, sizes, "proportional").values()) == pytest.approx(0.4)
    # 0.4 of 1e9 tokens: 4e8 for the family; Catalan may be read twice.
    capped = within(0.4, sizes, "unimax", tokens=1e9, epochs=2)
    assert capped == pytest.approx({"fr": 0.38, "ca": 0.02})
    assert within(0.0, sizes, "unimax", tokens=1e9) == pytest.approx({"fr": 0.0, "ca": 0.0})


def test_only_what_can_be_computed_is_offered():
    assert list(baselines(("a", "b"), None, 1e9)) == ["uniform"]
    some = baselines(("a", "b"), np.array([1e9, np.inf]), 1e9)
    assert list(some) == ["uniform", "UniMax, 4 epochs"]
    every = baselines(("a", "b"), np.array([1e9, 2e9]), 1e9, alpha=0.5, epochs=2.0)
    assert list(every) == ["uniform", "proportional", "temperature 0.5", "UniMax, 2 epochs"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uniform(0), "at least one source, got 0"),
        (lambda: proportional(np.array([1.0, 0.0])), r"positive, finite .* got \[1.0, 0.0\]"),
        (lambda: proportional(np.array([])), "positive, finite"),
        (lambda: temperature(np.array([1.0]), -0.3), "alpha >= 0 such as 0.3, got -0.3"),
        (lambda: unimax(np.array([1.0, -1.0]), 1.0), r"positive number .* got \[1.0, -1.0\]"),
        (lambda: unimax(np.array([1.0]), 0.0), "positive tokens and epochs, got 0.0 and 4.0"),
        (lambda: within(0.5, {}), "expected tokens per language"),
        (lambda: within(1.5, {"a": 1.0}), "between 0 and 1, got 1.5"),
        (lambda: within(0.5, {"a": 1.0}, "unimax"), "expected tokens=… .* for UniMax"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_unknown_method_is_refused_with_the_list():
    from jaxtyping import TypeCheckError

    # The import hook of the tests refuses it earlier than the function does for users.
    with pytest.raises((InputError, TypeCheckError)):
        within(0.5, {"a": 1.0}, "softmax")
