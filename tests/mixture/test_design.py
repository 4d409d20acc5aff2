"""Designs: within the budget, better than chance on the score and on a known truth."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError
from apportion.mixture.candidates import candidate_mixtures
from apportion.mixture.design import design
from apportion.mixture.fit import fit
from apportion.mixture.identify import standard_errors
from apportion.mixture.laws import get_law
from apportion.mixture.runs import RunTable
from mixture.synthetic import synthetic_runs

SIZES = {"small": 5e4, "middle": 2e5, "large": 8e5}
TOKENS = [4e5, 8e5, 1.6e6]
BUDGET = 6 * 2e5 * 8e5 * 20
NAMES = ("a", "b", "c")


def ratios_of(plan: pd.DataFrame, names: tuple[str, ...] = NAMES) -> np.ndarray:
    return plan[[f"ratio_{name}" for name in names]].to_numpy(dtype=float)


def exponent_errors(plan: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """Root of the mean variance of gamma, alpha and beta by linearisation at a known truth."""
    law = get_law("family")
    theta = np.tile([np.log(1.5), np.log(0.5), np.log(0.06), 0.3, 0.3, 0.12], (3, 1))
    count = len(plan)
    table = RunTable.of(
        plan["params"].to_numpy(dtype=float),
        plan["tokens"].to_numpy(dtype=float),
        ratios_of(plan),
        np.ones((count, 3)),
        NAMES,
    )
    logs = [law.log_loss(theta[k], table.conditions(f)) for k, f in enumerate(NAMES)]
    noise = np.random.default_rng(seed).standard_normal((count, 3))
    noise *= np.sqrt(np.pi / 2) * 0.01 * (count - 6) / np.abs(noise).sum(axis=0)
    losses = np.exp(np.stack(logs, axis=1) + noise)
    table = RunTable.of(table.params, table.tokens, table.ratios, losses, NAMES)
    return standard_errors(law, table, theta, np.ones((3, count), dtype=bool))[:, 3:].mean(axis=0)


def random_plan(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, float]] = []
    left = BUDGET
    for _ in range(500):
        n, d = rng.choice(list(SIZES.values())), rng.choice(TOKENS)
        if 6 * n * d <= left:
            left -= 6 * n * d
            ratios = 0.03 + 0.91 * rng.dirichlet(np.ones(3))
            rows.append(
                {"params": n, "tokens": d}
                | dict(zip(("ratio_a", "ratio_b", "ratio_c"), ratios, strict=True))
            )
    return pd.DataFrame(rows)


def test_plan_keeps_budget_and_limits():
    plan = design(BUDGET, SIZES, TOKENS, families=NAMES, max_runs=12, seed=3)
    assert list(plan.columns) == [
        *("run", "shape", "params", "tokens", "seed"),
        *("ratio_a", "ratio_b", "ratio_c", "flops"),
    ]
    assert len(plan) <= 12
    assert plan["flops"].sum() <= BUDGET * (1 + 1e-9)
    np.testing.assert_allclose(plan["flops"], 6 * plan["params"] * plan["tokens"])
    np.testing.assert_allclose(ratios_of(plan).sum(axis=1), 1.0, atol=1e-9)
    assert plan["run"].is_unique
    assert plan["seed"].isin([3, 4]).all()
    keys = ["shape", "tokens", "seed", "ratio_a", "ratio_b", "ratio_c"]
    assert not plan.duplicated(keys).any()
    assert plan["params"].nunique() > 1  # alpha needs sizes
    assert plan["tokens"].nunique() > 1


def test_counts_are_whole_numbers_in_the_plan():
    plan = design(BUDGET, [50_000], [400_000], families=NAMES, max_runs=3)
    lines = plan.to_csv(index=False).splitlines()
    assert [line.split(",")[1:3] for line in lines[1:]] == [["50000", "400000"]] * 3
    assert [line.split(",")[-1] for line in lines[1:]] == ["120000000000"] * 3
    halves = design(1e13, [50_000.5], [4e5], families=NAMES, max_runs=2)
    assert halves["params"].tolist() == [50_000.5] * 2


def test_sizes_without_names_give_no_shape():
    assert "shape" not in design(BUDGET, [5e4, 2e5], TOKENS, families=NAMES, max_runs=5).columns


def test_same_input_same_plan():
    one, two = (design(BUDGET, SIZES, TOKENS, families=NAMES, max_runs=8) for _ in range(2))
    pd.testing.assert_frame_equal(one, two)


def test_better_determined_than_random_plans_of_equal_cost():
    designed = exponent_errors(design(BUDGET, SIZES, TOKENS, families=NAMES))
    chance = np.array([exponent_errors(random_plan(seed)) for seed in range(8)])
    assert (designed < np.median(chance, axis=0)).all()
    assert designed.prod() < chance.prod(axis=1).min()


def test_existing_runs_count():
    """Runs at one size only: the design buys other sizes rather than more of it."""
    runs, _ = synthetic_runs(runs=60, families=3, seed=0, params=(5e4,), tokens=(4e5,))
    fresh = design(BUDGET, SIZES, TOKENS, families=runs.families, max_runs=10)
    after = design(BUDGET, SIZES, TOKENS, existing=runs, max_runs=10)

    def cheap(plan: pd.DataFrame) -> float:
        return float(((plan["params"] == 5e4) & (plan["tokens"] == 4e5)).mean())

    assert cheap(after) < cheap(fresh) or cheap(after) == 0


def test_a_candidate_that_was_trained_gets_another_seed():
    mixtures = np.full((1, 3), 1 / 3)
    runs = RunTable.of(
        np.full(2, 5e4), np.full(2, 4e5), np.full((2, 3), 1 / 3), np.ones((2, 3)), NAMES
    )
    plan = design(6 * 5e4 * 4e5, [5e4], [4e5], existing=runs, mixtures=mixtures)
    assert plan["seed"].tolist() == [2]


@pytest.mark.parametrize("law", ["family", "transfer"])
def test_design_for_a_pilot_fit(law: str):
    runs, _ = synthetic_runs(runs=40, families=3, seed=1)
    plan = design(BUDGET / 4, SIZES, TOKENS, fit=fit(runs, law), max_runs=6)
    assert 0 < len(plan) <= 6
    assert {f"ratio_{f}" for f in runs.families} <= set(plan.columns)


def test_one_family():
    plan = design(BUDGET, SIZES, TOKENS, families=["only"], max_runs=6)
    assert (plan["ratio_only"] == 1).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, []),
        ({"max_runs": 5}, ["5 runs for a law of 6 parameters per family: the fit is refused"]),
        ({"max_runs": 6}, ["6 runs for a law of 6 parameters .* nothing is left to judge"]),
        ({"sizes": [5e4]}, ["all runs have one N"]),
        ({"sizes": [5e4], "tokens": [4e5]}, ["one N", "one D"]),
        ({"families": ["only"]}, ["there is one family"]),
    ],
)
def test_a_plan_that_will_not_do_says_so(options: dict, said: list[str]):
    given = {"flops": BUDGET, "sizes": SIZES, "tokens": TOKENS, "families": NAMES} | options
    notes = design(given.pop("flops"), given.pop("sizes"), given.pop("tokens"), **given).attrs[
        "notes"
    ]
    assert len(notes) == len(said)
    assert all(re.search(each, note) for each, note in zip(said, notes, strict=True))


def test_existing_runs_make_up_what_the_plan_lacks():
    runs, _ = synthetic_runs(runs=10, families=3, seed=0, params=(5e4,), tokens=(4e5, 8e5))
    (note,) = design(BUDGET, [5e4], TOKENS, existing=runs, max_runs=3).attrs["notes"]
    assert "all runs with the 10 runs that exist have one N" in note
    assert design(BUDGET, [2e5], TOKENS, existing=runs, max_runs=3).attrs["notes"] == []


def test_candidates_are_mixtures():
    for families in (2, 3, 5, 7):
        rows = candidate_mixtures(families)
        np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=5e-4)
        assert (rows >= 0.03 - 1e-4).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"families": ()}, "families"),
        ({"flops": 1.0}, "cheapest run"),
        ({"sizes": []}, "at least one size"),
        ({"tokens": [-1.0]}, "above 0"),
        ({"mixtures": np.array([[0.5, 0.4, 0.0]])}, "sum to 1"),
        ({"mixtures": np.array([[0.5, 0.5]])}, "3 ratios each"),
        ({"lowest": 0.4}, "above 0 and below 1/3"),
        ({"lowest": 0.0}, r"above 0 and below 1/3 .* lowest=0\.03; got 0"),
        ({"lowest": 0.0, "families": ("a",)}, r"for 1 family"),
        ({"families": ("a", "", "b")}, "a name for every family, got a, nothing, b"),
        ({"families": ("a", " ")}, "a name for every family"),
        ({"tokens": [1.0]}, r"a tenth as many tokens as parameters .* from 80000 up"),
        ({"tokens": [1e6, 7e4]}, r"got 70000 beside 800000 parameters"),
        ({"max_runs": 0}, "max_runs of at least 1, got 0"),
        ({"repeats": -2}, "repeats of at least 1, got -2"),
        ({"noise": 0.0}, r"noise, .* above 0 such as noise=0\.01; got 0"),
        ({"noise": np.inf}, "got inf"),
        ({"seed": -1}, "seed of at least 0, got -1"),
        ({"sizes": [1e16]}, r"sizes up to 1e\+15 parameters"),
        ({"tokens": [1e19]}, r"1e\+18 tokens, got up to .* 1e\+19"),
    ],
)
def test_bad_requests(options: dict, message: str):
    given = {"flops": BUDGET, "sizes": SIZES, "tokens": TOKENS, "families": NAMES} | options
    with pytest.raises(InputError, match=message):
        design(given.pop("flops"), given.pop("sizes"), given.pop("tokens"), **given)


def test_a_choice_that_is_given_twice_counts_once():
    mixtures = np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]])
    plans = [
        design(1e15, [5e4] * k, [4e5, 8e5] * k, families=NAMES, mixtures=np.tile(mixtures, (k, 1)))
        for k in (1, 3)
    ]
    pd.testing.assert_frame_equal(*plans)
    assert len(plans[0]) == 2 * 2 * 2  # budgets, mixtures, repeats


def test_a_family_named_twice_is_refused():
    with pytest.raises(InputError, match="more than once"):
        design(1e15, [5e4], [1e6], families=["a", "b", "a"])
