"""The repetition term against its published constants and its own limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.laws import Conditions, get_law, with_repetition
from apportion.mixture.laws.base import effective_tokens
from apportion.mixture.laws.repetition import (
    PUBLISHED_ALPHA,
    PUBLISHED_BETA,
    PUBLISHED_LOG_A,
    PUBLISHED_LOG_B,
    PUBLISHED_LOG_E,
    RD,
    RN,
)

PUBLISHED = np.array(
    [
        PUBLISHED_LOG_E,
        PUBLISHED_LOG_A - PUBLISHED_ALPHA * np.log(1e6),
        PUBLISHED_LOG_B - PUBLISHED_BETA * np.log(1e9),
        PUBLISHED_ALPHA,
        PUBLISHED_BETA,
    ]
)


@pytest.mark.parametrize(
    ("params", "tokens", "loss"),
    [(6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)],
)
def test_published_losses(params, tokens, loss):
    law = get_law(f"chinchilla+repetition(rn={RN})")
    at = Conditions(
        np.array([params]), np.array([tokens]), np.ones((1, 1)), unique=np.array([25e9])
    )
    assert np.exp(law.log_loss(PUBLISHED, at)) == pytest.approx(loss, rel=1e-9)
    without_excess = get_law("chinchilla+repetition")
    assert np.exp(without_excess.log_loss(PUBLISHED, at)) < loss - 1e-3


def test_effective_tokens_is_identity_within_one_epoch():
    tokens = np.array([0.0, 1.0, 5.0, 10.0])
    value, slope = effective_tokens(tokens, np.full(4, 10.0), RD)
    assert np.array_equal(value, tokens)
    assert np.array_equal(slope, np.ones(4))


def test_effective_tokens_saturates():
    """Endless repetition is worth rd further epochs; slopes are those of the curve."""
    value, _ = effective_tokens(np.array([1e9]), np.array([2.0]), 3.0)
    assert value == pytest.approx(2.0 + 2.0 * 3.0)
    tokens, unique, h = np.array([2.5, 7.0, 40.0]), np.full(3, 2.0), 1e-5
    slope = effective_tokens(tokens, unique, 3.0)[1]
    above = effective_tokens(tokens + h, unique, 3.0)[0]
    below = effective_tokens(tokens - h, unique, 3.0)[0]
    np.testing.assert_allclose(slope, (above - below) / (2 * h), rtol=1e-7)


def test_effective_tokens_without_supply_or_without_limit():
    value, slope = effective_tokens(np.array([5.0, 5.0]), np.array([0.0, np.inf]), RD)
    assert value.tolist() == [0.0, 5.0]
    assert slope.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["family", "chinchilla", "additive", "bimix", "transfer"])
def test_enough_unique_tokens_change_nothing(name):
    """Values agree, and slopes along the simplex: across it D' grows and D does not."""
    inner, law = get_law(name), get_law(f"{name}+repetition")
    rng = np.random.default_rng(0)
    families, runs = 3, 6
    at = Conditions(
        10 ** rng.uniform(7, 9, runs),
        10 ** rng.uniform(9, 10, runs),
        rng.dirichlet(np.ones(families), runs),
        unique=np.full(families, np.inf),
    )
    theta = rng.uniform(0.1, 0.5, len(law.parameters(families)))
    plain = replace(at, unique=None)
    expected = inner.log_loss(theta, plain)
    np.testing.assert_allclose(law.log_loss(theta, at), expected, rtol=1e-12)
    assert np.array_equal(law.log_loss(theta, plain), expected)
    np.testing.assert_allclose(
        law.size_gradient(theta, at), inner.size_gradient(theta, plain), rtol=1e-12, atol=1e-14
    )
    assert np.array_equal(law.size_gradient(theta, plain), inner.size_gradient(theta, plain))
    found, wanted = law.ratio_gradient(theta, at), inner.ratio_gradient(theta, plain)
    along = found - found[:, :1], wanted - wanted[:, :1]
    np.testing.assert_allclose(*along, rtol=1e-10, atol=1e-12)
    assert np.array_equal(law.ratio_gradient(theta, plain), wanted)


def test_scarce_family_gains_less_from_a_larger_ratio():
    """The point of the wrapper: beyond its supply, raising a family's ratio helps it less."""
    law = get_law("transfer+repetition")
    theta = np.array([0.5, 0.5, 0.5, 0.3, 0.3, 0.1])
    ratios = np.array([[0.2, 0.8], [0.6, 0.4]])
    plenty = Conditions(np.full(2, 1e8), np.full(2, 1e10), ratios, np.array([np.inf, np.inf]))
    scarce = replace(plenty, unique=np.array([2e8, np.inf]))
    gain_plenty = -np.diff(law.log_loss(theta, plenty))[0]
    gain_scarce = -np.diff(law.log_loss(theta, scarce))[0]
    assert 0 < gain_scarce < 0.5 * gain_plenty


LAWS_OF_RATIOS = ["family", "bimix", "additive", "additive-pooled", "transfer"]


def scarce_first(name, share):
    """Log loss of a family with 1/100 of the tokens, at shares of it from 0 to 1, others alike."""
    law, families = get_law(f"{name}+repetition"), 3
    rng = np.random.default_rng(5)
    theta = np.clip(rng.uniform(0.1, 0.5, len(law.parameters(families))), 0.05, 0.5)
    rest = (1.0 - share)[:, None] * np.array([0.5, 0.5])
    ratios = np.column_stack([share, rest])
    at = Conditions(
        np.full(len(share), 1e8),
        np.full(len(share), 1e10),
        ratios,
        unique=np.array([1e8, np.inf, np.inf]),
    )
    return law, theta, at


@pytest.mark.parametrize("name", LAWS_OF_RATIOS)
def test_worthless_repeats_never_help_the_family(name):
    """With rd = 0.01 even the second pass teaches nothing: more of it must not lower the loss."""
    _, theta, at = scarce_first(name, np.linspace(0.02, 0.9, 50))
    law = with_repetition(get_law(name), rd=0.01)
    assert (np.diff(law.log_loss(theta, at)) >= -1e-12).all()


@pytest.mark.parametrize("name", ["family", "bimix"])
def test_repeating_others_does_not_change_a_family_under_hypothesis_1(name):
    """Its own tokens and D are given; whether the rest is new or read for the 90th time is not."""
    law, theta, at = scarce_first(name, np.array([0.3]))
    repeated = replace(at, unique=np.array([1e8, 1e7, 1e7]))
    assert law.log_loss(theta, at) == pytest.approx(law.log_loss(theta, repeated), rel=1e-14)
    cross = law.ratio_gradient(theta, repeated)[0, 1:]
    assert np.array_equal(cross, np.zeros(2))


@pytest.mark.parametrize("name", LAWS_OF_RATIOS)
def test_counted_shares_are_those_of_all_tokens(name):
    law, _, at = scarce_first(name, np.array([0.005, 0.4]))
    seen = law.counted(at)
    assert np.array_equal(seen.tokens, at.tokens)
    assert seen.ratios[0].sum() == pytest.approx(1.0)
    # 40 passes: 1 + rd (1 - exp(-39 / rd)) of the supply count.
    worth = 1e8 * (1 + RD * (1 - np.exp(-39 / RD)))
    np.testing.assert_allclose(seen.ratios[1], [worth / 1e10, 0.3, 0.3], rtol=1e-12)


def test_blind_laws_keep_the_published_form():
    law = get_law("chinchilla+repetition")
    at = Conditions(
        np.array([1e8]), np.array([1e10]), np.array([[0.4, 0.6]]), np.array([1e8, np.inf])
    )
    worth = 1e8 * (1 + RD * (1 - np.exp(-39 / RD)))
    assert law.counted(at).tokens == pytest.approx(worth + 6e9, rel=1e-12)
    assert "D'_j" in law.formula
    assert "p_j = D'_j / D" in get_law("family+repetition").formula


def test_family_without_any_unique_tokens_is_not_usable_alone():
    law = get_law("family+repetition")
    at = Conditions(
        np.full(2, 1e8),
        np.full(2, 1e10),
        np.array([[1.0, 0.0], [0.5, 0.5]]),
        np.array([0.0, 1e9]),
    )
    assert law.usable(at).tolist() == [False, False]
    assert np.isfinite(law.log_loss(np.full(6, 0.2), at)).all()


def test_constants_are_part_of_the_name():
    assert get_law("family+repetition").name == "family+repetition"
    assert get_law(f"family+repetition(rd={RD})").name == "family+repetition"
    law = with_repetition(get_law("family"), rd=12.5, rn=1e-3)
    assert law.name == "family+repetition(rd=12.5,rn=0.001)"
    assert get_law(law.name) == law
    assert law != get_law("family+repetition")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixing+repetition", "'mixing', which has no term in D"),
        ("fernandes+repetition", "'fernandes', which has no term in D"),
        ("atlas+repetition", "'atlas', which handles repetition"),
        ("family+repetition(rd=0)", "rd and rn above 0, got rd=0.0"),
        ("family+repetition+repetition", "got 'family\\+repetition\\+repetition'"),
        ("family+repetition()x", "expected a law out of"),
    ],
)
def test_what_cannot_be_wrapped_says_why(name, message):
    with pytest.raises(InputError, match=message):
        get_law(name)
