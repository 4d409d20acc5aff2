"""Model sizes for a budget: the best one is where the law says, and every choice is paid for."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from apportion.errors import InputError
from apportion.mixture import allocate, optimize
from apportion.mixture import fit as fit_law
from mixture.synthetic import synthetic_runs

FLOPS = 1e14


@pytest.fixture(scope="module")
def fit():
    runs, _ = synthetic_runs(families=3, runs=90, noise=0.01, seed=5)
    return fit_law(runs, "family", bootstrap=60)


def mean_loss(fit, params, tokens, ratios):
    return fit.predict(params, tokens, ratios)["loss"].mean()


def test_the_best_size_is_where_the_predicted_loss_is_least(fit):
    # Under the family law the best ratios are the same for every N and D.
    ratios = optimize(fit, 1e6, 1e7, refits=0).ratios
    least = minimize_scalar(
        lambda x: mean_loss(fit, math.exp(x), FLOPS / 6 / math.exp(x), ratios),
        bounds=(math.log(1e4), math.log(1e7)),
        method="bounded",
    )
    sizes = math.exp(least.x) * np.array([0.25, 0.5, 1.0, 1.5, 2.0])
    found = allocate(fit, flops=FLOPS, params=list(sizes))
    table = found.table
    assert table["params"].iloc[0] == pytest.approx(sizes[2])
    assert table["loss"].is_monotonic_increasing
    assert np.allclose(table["flops"], FLOPS)
    assert table["verdict"].iloc[0] == "best"
    for row, shares in zip(table.to_dict("records"), found.ratios, strict=True):
        assert row["loss"] == pytest.approx(mean_loss(fit, row["params"], row["tokens"], shares))
        assert row["low"] < row["loss"] < row["high"]
        assert row["tokens_per_param"] == pytest.approx(row["tokens"] / row["params"])


def test_sizes_far_from_the_best_are_worse_and_near_ones_as_good(fit):
    best = allocate(fit, flops=FLOPS).table["params"].iloc[0]
    table = allocate(fit, flops=FLOPS, params=[best, best * 1.01, best / 6]).table
    assert (table["verdict"][table["params"] < best / 2] == "worse").all()
    assert sorted(table["verdict"])[:2] == ["as good", "best"]


def test_tokens_are_a_ceiling_and_alone_a_budget(fit):
    table = allocate(fit, flops=FLOPS, tokens="4M").table
    assert (table["tokens"] <= 4e6).all()
    assert (table["flops"] <= FLOPS * (1 + 1e-9)).all()
    alone = allocate(fit, tokens="4M", params=["100k", "400k"]).table
    assert (alone["tokens"] == 4e6).all()
    # With the tokens given, a larger model is better.
    assert alone["params"].iloc[0] == 4e5


def test_families_that_the_objective_leaves_out_do_not_count(fit):
    found = allocate(fit, flops=FLOPS, objective="target:f1", params=["400k", "1M"])
    for row, shares in zip(found.table.to_dict("records"), found.ratios, strict=True):
        # The others get nothing, where the law would say an infinite loss.
        assert shares["f1"] == pytest.approx(1)
        losses = fit.predict(row["params"], row["tokens"], shares).set_index("family")["loss"]
        assert row["loss"] == pytest.approx(losses["f1"])
    weighted = allocate(fit, flops=FLOPS, objective={"f0": 3.0, "f2": 1.0}, params=["400k"])
    row, shares = weighted.table.iloc[0], weighted.ratios[0]
    losses = fit.predict(row["params"], row["tokens"], shares).set_index("family")["loss"]
    assert row["loss"] == pytest.approx((3 * losses["f0"] + losses["f2"]) / 4)


def test_a_supply_counts_where_the_law_knows_repetition():
    runs, _ = synthetic_runs("family+repetition", families=2, runs=60, seed=2, unique=[1e6, 1e6])
    fit = fit_law(runs, "family+repetition")
    scarce = {"f0": 2e5, "f1": 1e9}
    found = allocate(fit, flops=FLOPS, params=["400k"], supply=scarce)
    row = found.table.iloc[0]
    expected = fit.predict(row["params"], row["tokens"], found.ratios[0], supply=scarce)
    assert row["loss"] == pytest.approx(expected["loss"].mean())
    other = fit.predict(row["params"], row["tokens"], found.ratios[0])["loss"].mean()
    assert row["loss"] != pytest.approx(other, rel=1e-3)


def test_hours_are_flops_of_a_known_rate(fit):
    found = allocate(fit, hours=2, flops_per_second=FLOPS / 7200)
    assert np.allclose(found.table["hours"], 2)
    expected = allocate(fit, flops=FLOPS).table
    assert np.allclose(found.table["loss"], expected["loss"])
    both = allocate(fit, flops=FLOPS / 2, hours=2, flops_per_second=FLOPS / 7200).table
    assert np.allclose(both["hours"], 1)


def test_without_a_bootstrap_there_is_no_interval_and_no_verdict():
    runs, _ = synthetic_runs(families=2, runs=60, seed=1)
    found = allocate(fit_law(runs, "family"), flops=FLOPS)
    assert found.table["low"].isna().all()
    assert set(found.table["verdict"]) == {"best", "no interval"}
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["options"][0]["low"] is None
    assert sum(told["options"][0]["ratios"].values()) == pytest.approx(1)


def test_what_a_budget_does_not_pay_for_is_said(fit):
    found = allocate(fit, flops=FLOPS, params=["200k", "50M"])
    assert list(found.table["params"]) == [2e5]
    assert any("left out" in note and "5e+07" in note for note in found.notes)
    assert any("times the largest" in note for note in allocate(fit, flops=1e17).notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"expected a budget: flops=1e20"),
        ({"flops": 0}, "expected flops above 0, got 0"),
        ({"hours": 3}, "FLOPs a second.*beside hours"),
        ({"hours": 3, "flops_per_second": -1.0}, "expected flops_per_second above 0"),
        ({"flops": 1e14, "params": ["1T"]}, "2 tokens a parameter"),
        ({"tokens": "none"}, "expected a number of tokens"),
        ({"flops": 1e14, "supply": {"nobody": 1e6}}, "nobody"),
    ],
)
def test_budgets_that_are_none(fit, given, said):
    with pytest.raises(InputError, match=said):
        allocate(fit, **given)
