"""Bounds: every wish, every refusal, and the largest feasible D."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from apportion.errors import InputError
from apportion.mixture.proposal.constraints import Box, box, largest_tokens

NAMES = ("a", "b", "c")


def a_box(tokens=1e9, *, floors=None, caps=None, fixed=None, supply=None, max_epochs=None):
    return box(
        NAMES,
        tokens,
        floors=floors or {},
        caps=caps or {},
        fixed=fixed or {},
        supply=None if supply is None else np.array(supply, dtype=float),
        max_epochs=max_epochs,
    )


def test_bounds_come_together():
    room = a_box(
        floors={"a": 0.1}, caps={"b": 0.5}, supply=[np.inf, 5e8, 1e8], max_epochs=2.0, tokens=1e9
    )
    np.testing.assert_allclose(room.lower, [0.1, 0, 0])
    np.testing.assert_allclose(room.upper, [1, 0.5, 0.2])
    assert room.binding(np.array([0.3, 0.5, 0.2])) == ["", "cap", "supply"]
    assert room.binding(np.array([0.1, 0.2, 0.0])) == ["floor", "", "zero"]
    assert room.holds(np.array([0.4, 0.4, 0.2]))
    assert not room.holds(np.array([0.05, 0.75, 0.2]))


def test_fixed_holds_from_both_sides():
    room = a_box(fixed={"c": 0.25})
    assert room.lower[2] == room.upper[2] == 0.25
    assert room.binding(np.array([0.5, 0.25, 0.25]))[2] == "fixed"


def test_sums_of_one_in_floating_point_are_met():
    room = a_box(fixed={"a": 0.1, "b": 0.7, "c": 0.2})
    assert room.lower.sum() <= 1.0
    assert room.upper.sum() >= 1.0 - 1e-15


def test_free_is_the_simplex():
    room = Box.free(2)
    assert room.lower.tolist() == [0, 0]
    assert room.upper.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"floors": {"x": 0.1}}, "family out of a, b, c as floor; got 'x'"),
        ({"caps": {"x": 0.1}}, "family out of a, b, c as cap; got 'x'"),
        ({"fixed": {"x": 0.1}}, "family out of a, b, c as fixed; got 'x'"),
        ({"floors": {"a": -0.1}}, "floor between 0 and 1 for a, got -0.1"),
        ({"caps": {"a": 1.5}}, "cap between 0 and 1 for a, got 1.5"),
        ({"caps": {"a": float("nan")}}, "cap between 0 and 1 for a, got nan"),
        (
            {"floors": {"a": 0.5}, "caps": {"a": 0.4}},
            r"floor of a \(0.5\) is above its cap \(0.4\); lower the floor or raise the cap",
        ),
        (
            {"fixed": {"a": 0.5}, "floors": {"a": 0.4}},
            "a is fixed at 0.5 and has a floor or cap as well: keep one",
        ),
        (
            {"floors": {"a": 0.6, "b": 0.6}},
            r"sum to 1.2, more than 1 \(a=0.6, b=0.6\); lower them",
        ),
        (
            {"caps": {"a": 0.1, "b": 0.1, "c": 0.1}},
            r"sum to 0.3, less than 1 \(a=0.1, b=0.1, c=0.1\); raise a cap",
        ),
        ({"max_epochs": 4.0}, r'max_epochs needs the tokens .*give supply=\{"a"'),
        (
            {"max_epochs": 0.0, "supply": [1, 1, 1]},
            "expected max_epochs=4, or another above 0; got 0.0",
        ),
        (
            {"floors": {"a": 0.5}, "supply": [1e8, 1e12, 1e12], "max_epochs": 2.0},
            r"a must have 0.5 of the tokens, but its supply allows 0.2 at D = 1B; .* 400M at most",
        ),
        (
            {"supply": [1e8, 2e8, 1e8], "max_epochs": 2.0},
            r"covers 0.8 of D = 1B .* largest feasible D is 800M \(8e\+08 tokens\): lower D, raise "
            "max_epochs, or give repetition=True",
        ),
    ],
)
def test_refusals(wishes, message):
    with pytest.raises(InputError, match=message):
        a_box(**wishes)


def test_largest_feasible_tokens_against_a_root_finder():
    rng = np.random.default_rng(0)
    checked = 0
    for _ in range(300):
        count = int(rng.integers(1, 8))
        upper, limit = rng.uniform(0, 1, count), rng.uniform(0.1, 10, count)
        limit[rng.random(count) < 0.2] = np.inf
        if upper.sum() < 1:
            continue
        most = largest_tokens(upper, limit)
        if upper[np.isinf(limit)].sum() >= 1:
            assert np.isinf(most)
            continue
        root = brentq(lambda d, u=upper, n=limit: np.minimum(u, n / d).sum() - 1, 1e-9, 1e9)
        assert most == pytest.approx(root, rel=1e-9)
        checked += 1
    assert checked > 100


def test_the_named_largest_budget_is_feasible_and_no_larger_one():
    wishes = {"caps": {"a": 0.3}, "supply": [1e9, 1e8, 3e8], "max_epochs": 3.0}
    # a is held by its cap, so b and c must carry 0.7 D with 1.2e9 tokens.
    most = 1.2e9 / 0.7
    a_box(tokens=most, **wishes)
    with pytest.raises(InputError, match=r"largest feasible D is 1\.714B"):
        a_box(tokens=most * 1.001, **wishes)


def test_floors_that_leave_nothing_for_the_others_are_refused():
    with pytest.raises(InputError, match="b, c would get nothing"):
        box(
            ("a", "b", "c"), 1e9, floors={"a": 1.0}, caps={}, fixed={}, supply=None, max_epochs=None
        )
    room = box(
        ("a", "b"), 1e9, floors={"a": 1.0}, caps={"b": 0.0}, fixed={}, supply=None, max_epochs=None
    )
    assert room.upper[1] == 0
