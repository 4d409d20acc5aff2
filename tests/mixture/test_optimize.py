"""Optimal ratios: exact, the same by every route, with honest gains and clear refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from apportion.errors import InputError, WeakFitError
from apportion.mixture import fit as fit_law
from apportion.mixture.laws import get_law
from apportion.mixture.optimize import optimize
from apportion.mixture.proposal.constraints import Box
from apportion.mixture.proposal.gains import best_gain, compare_mixtures, relative_gain, verdict
from apportion.mixture.proposal.interior import Problem, interior
from apportion.mixture.proposal.kkt import best_sum, best_worst, kkt_residual
from apportion.mixture.proposal.objective import LossModel, Objective
from apportion.mixture.proposal.optimum import GAIN, NO_GAIN, UNKNOWN, WORSE
from apportion.mixture.proposal.polish import polish
from apportion.mixture.proposal.solve import best_mixture, best_mixtures
from mixture.synthetic import family_fit, synthetic_runs, synthetic_theta

N, D = 1e9, 1e10
LAWS = ["additive", "transfer", "mixing", "fernandes", "atlas", "family+repetition"]


def names(count):
    return tuple(f"f{k}" for k in range(count))


def a_model(law="family", families=4, seed=0, theta=None, unique=None):
    theta = synthetic_theta(law, families, seed) if theta is None else theta
    theta = theta if theta.ndim == 3 else theta[None]
    law = get_law(law)
    return LossModel(law, names(families), tuple(range(families)), N, D, unique, theta)


def some_box(rng, count):
    lower = np.where(rng.random(count) < 0.5, rng.dirichlet(np.ones(count)) * 0.6, 0.0)
    upper = np.where(rng.random(count) < 0.4, np.minimum(1.0, lower + 0.3), 1.0)
    if count > 2 and rng.random() < 0.4:
        lower[0] = upper[0] = max(lower[0], 0.05)  # fixed
    if upper.sum() < 1.0:
        upper = np.maximum(lower, 1.0)
    return Box(lower, upper, ("",) * count, ("",) * count)


# --- the solvers -----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["normalized", "total", "worst"])
def test_closed_form_meets_kkt_on_random_problems(spec):
    rng = np.random.default_rng(1)
    for seed in range(40):
        count = int(rng.integers(1, 13))
        model, room = a_model(families=count, seed=seed), some_box(rng, count)
        ratios, residual = best_mixture(Objective.parse(spec, names(count)), model, room)
        assert residual < 1e-8
        assert abs(ratios.sum() - 1.0) < 1e-12
        assert (ratios >= room.lower).all()
        assert (ratios <= room.upper).all()


@pytest.mark.parametrize("spec", ["normalized", "total"])
def test_closed_form_agrees_with_slsqp(spec):
    rng = np.random.default_rng(2)
    for seed in range(10):
        count = int(rng.integers(2, 9))
        model, room = a_model(families=count, seed=seed), some_box(rng, count)
        goal = Objective.parse(spec, names(count))
        ratios, _ = best_mixture(goal, model, room)
        found = scipy_best(goal, model, room, [Problem.of(goal, model, room.lower, room.upper)])
        assert goal.value(model, ratios[None])[0] <= found * (1 + 1e-10)


@pytest.mark.parametrize("spec", ["normalized", "total", "worst"])
def test_interior_point_agrees_with_the_closed_form(spec):
    rng = np.random.default_rng(3)
    for seed in range(4):
        count = int(rng.integers(2, 7))
        model, room = a_model(families=count, seed=seed), some_box(rng, count)
        goal = Objective.parse(spec, names(count))
        exact, _ = best_mixture(goal, model, room)
        problem = Problem.of(goal, model, room.lower, room.upper)
        ratios, residual = polish(*interior(problem, problem.centre[None]))
        assert residual[0] < 1e-8
        if spec != "worst":
            np.testing.assert_allclose(ratios[0], exact, atol=1e-9)
        assert goal.value(model, ratios)[0] == pytest.approx(
            goal.value(model, exact[None])[0], rel=1e-9
        )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("spec", ["normalized", "total"])
def test_other_laws_meet_kkt_and_scipy_finds_nothing_better(law, spec):
    rng = np.random.default_rng(4)
    for seed in range(2):
        count = int(rng.integers(2, 6))
        unique = rng.uniform(2e8, 5e9, count)
        model, room = a_model(law, count, seed, unique=unique), some_box(rng, count)
        goal = Objective.parse(spec, names(count))
        ratios, residual = best_mixture(goal, model, room)
        assert residual < 1e-8
        assert abs(ratios.sum() - 1.0) < 1e-12
        problem = Problem.of(goal, model, room.lower, room.upper)
        found = scipy_best(goal, model, room, [problem])
        assert goal.value(model, ratios[None])[0] <= found * (1 + 1e-9)


@pytest.mark.parametrize("law", ["mixing", "transfer"])
def test_worst_under_other_laws(law):
    count, seed = 4, 0
    model, room = a_model(law, count, seed), Box.free(count)
    goal = Objective.parse("worst", names(count))
    ratios, residual = best_mixture(goal, model, room)
    assert residual < 1e-8
    value = goal.value(model, ratios[None])[0]
    tries = np.random.default_rng(0).dirichlet(np.ones(count), 4000)
    assert value <= goal.value(model, tries).min() * (1 + 1e-12)


def scipy_best(goal, model, room, problems):
    """The best of a few SLSQP runs."""
    (problem,) = problems
    rng, best = np.random.default_rng(0), np.inf
    starts = best_sum(
        rng.dirichlet(np.ones(len(room.lower)), 4),
        np.ones((4, len(room.lower))),
        room.lower,
        room.upper,
    )

    def value(shares):
        return float(goal.value(model, np.maximum(shares, 1e-12)[None])[0])

    def slope(shares):
        shares = np.maximum(shares, 1e-12)[None]
        return problem.slopes(shares, problem.values(shares)).sum(axis=(0, 1))

    for start in 0.7 * starts + 0.3 * problem.centre:
        result = minimize(
            value,
            start,
            jac=slope,
            method="SLSQP",
            bounds=list(
                zip(np.maximum(room.lower, 1e-10), np.maximum(room.upper, 1e-10), strict=True)
            ),
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1.0},
            options={"ftol": 1e-14, "maxiter": 200},
        )
        if abs(result.x.sum() - 1.0) < 1e-9:
            best = min(best, result.fun)
    return best


def test_slopes_are_in_table_order():
    model = a_model("transfer", 3)
    ratios, h = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]), 1e-6
    slopes = model.slopes(ratios)
    for family in range(3):
        step = h * np.eye(3)[family]
        numeric = (model.log_loss(ratios + step) - model.log_loss(ratios - step)) / (2 * h)
        np.testing.assert_allclose(slopes[:, :, family], numeric, rtol=1e-5, atol=1e-8)


def test_kkt_residual_sees_a_wrong_answer_and_ignores_units():
    model, room = a_model(families=4), Box.free(4)
    goal = Objective.parse("normalized", names(4))
    problem = Problem.of(goal, model, room.lower, room.upper)
    best, _ = best_mixture(goal, model, room)
    wrong = best[None] + 0.01 * np.array([[1.0, -1.0, 0.0, 0.0]])

    def residual(ratios, unit=1.0):
        slopes = unit * problem.slopes(ratios, problem.values(ratios))
        return kkt_residual(slopes, ratios, room.lower, room.upper)[0]

    assert residual(best[None]) < 1e-12
    assert residual(wrong) > 1e-3
    assert residual(wrong, unit=1e6) == pytest.approx(residual(wrong))


def test_bootstrap_samples_are_optimised_like_single_problems():
    rng = np.random.default_rng(0)
    for law in ("family", "mixing"):
        theta = synthetic_theta(law, 3)
        drawn = theta + 0.02 * rng.standard_normal((5, *theta.shape))
        model = a_model(law, 3, theta=drawn)
        goal, room = Objective.parse("normalized", names(3)), Box.free(3)
        near, _ = best_mixture(goal, model.take(np.array([0])), room)
        together = np.concatenate(list(best_mixtures(goal, model, room, near)))
        for k in range(5):
            alone, _ = best_mixture(goal, model.take(np.array([k])), room)
            np.testing.assert_allclose(together[k], alone, atol=1e-7)


# --- properties of the optimum ---------------------------------------------------------------


def test_formula_of_the_interior_point():
    # Two families with equal weights: p1 / p2 = (gamma1 / lambda)^(1/(1+gamma1)) / ..., checked
    # through the equality of slopes gamma p^(-gamma-1) that defines lambda.
    gamma = np.array([[0.1, 0.3]])
    (ratios,) = best_sum(np.ones((1, 2)), gamma, np.zeros(2), np.ones(2))
    slope = gamma[0] * ratios ** (-gamma[0] - 1)
    assert slope[0] == pytest.approx(slope[1], rel=1e-12)


def test_equal_families_share_equally_and_more_weight_means_more_share():
    even = optimize(family_fit([0.1, 0.1, 0.1]), N, D).ratios
    assert list(even.values()) == pytest.approx([1 / 3] * 3)
    tilted = optimize(
        family_fit([0.1, 0.1, 0.1]), N, D, objective={"f0": 2, "f1": 1, "f2": 1}
    ).ratios
    assert tilted["f0"] > 1 / 3 > tilted["f1"] == pytest.approx(tilted["f2"])


def test_normalized_optimum_does_not_depend_on_size_and_total_does():
    fit = family_fit([0.1, 0.2, 0.15])
    for objective, same in (("normalized", True), ("total", False)):
        small = optimize(fit, 1e5, 5e5, objective=objective).ratios["f0"]
        large = optimize(fit, 7e5, 1.5e6, objective=objective).ratios["f0"]
        assert (small == pytest.approx(large, rel=1e-12)) is same


def test_objective_rises_as_bounds_tighten():
    fit, values = family_fit([0.1, 0.2, 0.15, 0.05]), []
    for floor in (0.0, 0.1, 0.2, 0.24):
        best = optimize(fit, N, D, floors=dict.fromkeys(fit.families, floor))
        assert best.kkt < 1e-8
        values.append(best.value)
    assert values == sorted(values)
    assert values[-1] > values[0]


def test_worst_levels_the_normalized_losses():
    gamma = np.array([[0.1, 0.2, 0.3]])
    (ratios,) = best_worst(gamma, np.ones(3), np.zeros(3), np.ones(3))
    losses = ratios ** -gamma[0]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-12)
    # With the largest held down, the others share the rest at one level.
    (held,) = best_worst(gamma, np.ones(3), np.zeros(3), np.array([1, 1, 0.2]))
    losses = held ** -gamma[0]
    assert held[2] == 0.2
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[2] > losses[0]


def test_one_target_takes_everything_but_the_floors():
    fit = family_fit([0.1, 0.2, 0.15])
    best = optimize(fit, N, D, objective="target:f1")
    assert best.ratios == {"f0": 0.0, "f1": 1.0, "f2": 0.0}
    assert any("f0, f2: no tokens at all" in note for note in best.notes)
    assert np.isnan(best.table.loc[0, "loss"])
    floored = optimize(fit, N, D, objective="target:f1", floors={"f0": 0.1}, caps={"f1": 0.7})
    assert floored.ratios["f1"] == pytest.approx(0.7)
    assert floored.ratios["f0"] >= 0.1
    assert sum(floored.ratios.values()) == pytest.approx(1.0)
    json.dumps(best.to_dict(), allow_nan=False)


@pytest.mark.parametrize("repetition", [False, True])
@pytest.mark.parametrize("samples", [0, 50])
def test_gamma_below_zero_is_refused_and_when_forced_gets_its_floor(repetition, samples):
    fit = family_fit([0.1, -0.1, 0.2], samples=samples, spread=0.001)
    more = {"supply": dict.fromkeys(fit.families, 1e13), "repetition": repetition}
    with pytest.raises(WeakFitError, match=r"gamma of f1 is -0\.1 .*do not show that it gains"):
        optimize(fit, N, D, **more)
    best = optimize(fit, N, D, floors={"f1": 0.05}, force=True, refits=5, **more)
    assert best.ratios["f1"] == pytest.approx(0.05)
    assert best.kkt < 1e-8
    assert any(note.startswith("weak: gamma of f1 is -0.1") for note in best.notes)
    (note,) = [note for note in best.notes if "f1 does not gain from its ratio" in note]
    assert "gets its floor (0.05)" in note
    if not repetition:
        bare = optimize(fit, N, D, force=True)
        assert bare.ratios["f1"] == 0.0
        assert np.isfinite(bare.value)


def test_where_no_family_gains_nothing_is_proposed():
    fit = family_fit([-0.1, -0.2, 0.0], samples=50, spread=0.001)
    with pytest.raises(WeakFitError, match=r"gamma of f0 .*gamma of f1 .*gamma of f2"):
        optimize(fit, N, D)
    forced = optimize(fit, N, D, force=True)
    assert list(forced.ratios.values()) == pytest.approx([1 / 3] * 3)
    # No floor holds these shares, so none is claimed.
    said = [note for note in forced.notes if "does not gain from its ratio" in note]
    assert len(said) == 3
    assert all("what the others leave over" in note and "floor (" not in note for note in said)


def test_a_gamma_on_the_bound_of_the_law_supports_nothing():
    fit = family_fit([0.1, 3.0, 0.2], samples=50, spread=0.0)
    with pytest.raises(WeakFitError, match="gamma of f1 is 3, the largest that the law allows"):
        optimize(fit, N, D)


def test_a_law_without_gamma_whose_losses_ignore_the_mixture_supports_nothing():
    runs, _ = synthetic_runs("transfer", families=3, runs=40)
    fit = fit_law(runs, "transfer")
    flat = replace(fit, theta=np.where(np.arange(fit.theta.shape[1]) == 2, -30.0, fit.theta))
    with pytest.raises(WeakFitError, match="no loss depends on the mixture"):
        optimize(flat, 1e5, 5e5)


def test_what_no_family_gains_from_goes_where_there_is_room():
    (ratios,) = best_sum(
        np.ones((1, 3)), np.array([[0.1, -0.1, 0.2]]), np.zeros(3), np.array([0.3, 1.0, 0.3])
    )
    np.testing.assert_allclose(ratios, [0.3, 0.4, 0.3])


def test_single_family():
    best = optimize(family_fit([0.1]), N, D)
    assert best.ratios == {"f0": 1.0}
    assert best.kkt == 0.0
    assert any("one family, so nothing to share out: its ratio is 1" in n for n in best.notes)
    # Nothing is asked of gamma where there is no choice.
    assert optimize(family_fit([-0.1]), N, D).ratios == {"f0": 1.0}


def test_bounds_that_leave_one_mixture_are_said():
    best = optimize(family_fit([0.1, 0.2]), N, D, fixed={"f0": 0.4, "f1": 0.6})
    assert any("the bounds leave one mixture only" in note for note in best.notes)


# --- supply and repetition -------------------------------------------------------------------


def test_supply_caps_bind_and_are_shown():
    fit = family_fit([0.1, 0.2, 0.3], samples=40)
    best = optimize(fit, N, D, supply={"f2": 5e8}, max_epochs=4)
    assert best.ratios["f2"] == pytest.approx(0.2)
    row = best.table.set_index("family").loc["f2"]
    assert row["held_by"] == "supply"
    assert row["epochs"] == pytest.approx(4.0)
    assert row["unconstrained"] > 0.2
    assert best.kkt < 1e-8
    assert "unconstrained" in best.comparison["mixture"].tolist()
    cost = best.comparison.set_index("mixture").loc["unconstrained"]
    assert cost["gain"] < 0
    assert not cost["feasible"]
    assert best.supply == {"f2": 5e8}
    # Families that the supply does not name have no limit, which is no number of passes.
    assert any("does not name f0, f1: counted as unlimited" in note for note in best.notes)
    assert best.table.set_index("family").loc[["f0", "f1"], "epochs"].isna().all()
    assert str(best).count("unlimited") == 3
    whole = optimize(fit, N, D, supply=dict.fromkeys(fit.families, 1e12))
    assert not any("unlimited" in note for note in whole.notes)
    assert "unlimited" not in str(whole)


def test_supply_without_a_limit_warns_of_epochs():
    best = optimize(family_fit([0.1, 0.2]), N, "10B", supply="f0=1B,f1=1T")
    assert any("f0 would be read" in note and "max_epochs" in note for note in best.notes)


def test_too_little_text_names_the_largest_budget():
    with pytest.raises(InputError, match=r"largest feasible D is 8B .*repetition=True"):
        optimize(family_fit([0.1, 0.2]), N, D, supply={"f0": 1e9, "f1": 1e9}, max_epochs=4)


def test_repetition_is_discounted_instead_of_capped():
    fit = family_fit([0.1, 0.2, 0.3])
    plain = optimize(fit, N, D)
    supply = {"f0": 1e12, "f1": 1e12, "f2": 1e9}
    soft = optimize(
        fit, N, D, supply=supply, repetition=True, mixtures={"plain": list(plain.ratios.values())}
    )
    assert soft.law == "family+repetition"
    assert soft.kkt < 1e-8
    assert soft.comparison.set_index("mixture").loc["plain", "gain"] > 0
    assert any("f2 would be read" in note and "discounted" in note for note in soft.notes)
    both = optimize(fit, N, D, supply=supply, repetition=True, max_epochs=2)
    assert both.ratios["f2"] == pytest.approx(0.2)
    assert both.kkt < 1e-8
    plenty = optimize(fit, N, D, supply=dict.fromkeys(fit.families, 1e13), repetition=True)
    assert plenty.ratios == pytest.approx(plain.ratios, abs=1e-8)
    with pytest.raises(InputError, match=r'repetition needs the unique tokens .*supply=\{"f0"'):
        optimize(fit, N, D, repetition=True)


@pytest.mark.parametrize("law", ["family", "bimix", "transfer", "additive"])
def test_a_scarce_family_is_not_read_over_and_over(law):
    """A hundredth of the budget: passes that teach next to nothing must not be proposed."""
    unique = np.array([1e8, np.inf, np.inf])
    model = a_model(f"{law}+repetition", 3, seed=2, unique=unique)
    goal, room = Objective.parse("normalized", names(3)), Box.free(3)
    ratios, residual = best_mixture(goal, model, room)
    assert residual < 1e-8
    passes = ratios[0] * D / unique[0]
    # Two decay lengths: a token of a later pass is worth less than e^-2 of a new one.
    assert 1 < passes < 1 + 2 * 15.387756
    # With next to no worth in a repeat one pass is the end.
    once = replace(model, law=get_law(f"{law}+repetition(rd=0.05)"))
    ratios, _ = best_mixture(goal, once, room)
    assert ratios[0] * D / unique[0] < 1.5


def test_progress_is_shown_on_stderr(capsys):
    runs, _ = synthetic_runs("mixing", families=3, runs=60, noise=0.002, params=[1e6], tokens=[1e7])
    fit_law(runs, "mixing", bootstrap=20).optimize(1e6, 1e7, refits=2, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "optimising bootstrap samples" in shown.err


def test_a_discounting_law_without_supply_says_what_it_does():
    fit = replace(family_fit([0.1, 0.2]), law=get_law("family+repetition"))
    assert any("tokens are not discounted" in note for note in optimize(fit, N, D).notes)
    runs = replace(fit.runs, unique_tokens=np.array([1e9, 1e12]))
    known = optimize(replace(fit, runs=runs), N, D)
    assert any("unique tokens of the runs" in note for note in known.notes)


# --- gains -----------------------------------------------------------------------------------


def test_baselines_stand_beside_the_proposal():
    fit = family_fit([0.1, 0.2, 0.3], samples=60)
    best = optimize(
        fit, N, D, sizes={"f0": 1e9, "f1": 1e10, "f2": 1e11}, mixtures={"ours": [0.2, 0.3, 0.5]}
    )
    rows = best.comparison.set_index("mixture")
    assert list(rows.index) == [
        "proposed",
        "uniform",
        "proportional",
        "temperature 0.3",
        "UniMax, 4 epochs",
        "ours",
    ]
    gamma = np.array([0.1, 0.2, 0.3])
    assert rows.loc["uniform", "objective"] == pytest.approx((3**gamma).sum(), rel=1e-12)
    expected = 1 - best.value / rows.loc["ours", "objective"]
    assert rows.loc["ours", "gain"] == pytest.approx(expected, rel=1e-12)
    assert (rows["gain"].iloc[1:] >= 0).all()
    assert best.mixtures["ours"] == pytest.approx({"f0": 0.2, "f1": 0.3, "f2": 0.5})
    best_rival = rows.iloc[1:]["objective"].idxmin()
    assert best.gain.over == best_rival


def test_gain_interval_is_that_of_the_samples():
    fit = family_fit([0.1, 0.2, 0.3], samples=200, spread=0.02)
    best = optimize(fit, N, D)
    ratios = np.array(list(best.ratios.values()))
    drawn = fit.samples[..., 5]
    ours, theirs = (ratios**-drawn).sum(axis=1), (3.0**drawn).sum(axis=1)
    low, high = fit.interval((1 - ours / theirs)[:, None])
    assert best.gain.low == pytest.approx(low[0], rel=1e-9)
    assert best.gain.high == pytest.approx(high[0], rel=1e-9)
    table = best.table
    assert (table["low"] < table["ratio"]).all()
    assert (table["ratio"] < table["high"]).all()


def test_gain_that_noise_can_explain_is_called_so():
    noisy = optimize(family_fit([0.15, 0.16, 0.15], samples=300, spread=0.02), N, D)
    assert noisy.gain.value > 0
    assert noisy.gain.low < 0
    assert noisy.gain.verdict == NO_GAIN
    assert not noisy.gain.significant
    clear = optimize(family_fit([0.05, 0.3, 0.6], samples=300, spread=0.005), N, D)
    assert clear.gain.low > 0
    assert clear.gain.verdict == GAIN
    assert clear.gain.significant
    unknown = optimize(family_fit([0.05, 0.3, 0.6]), N, D)
    assert unknown.gain.verdict == UNKNOWN
    assert any("no intervals" in note for note in unknown.notes)


def test_verdicts():
    assert verdict(0.01, 0.02) == GAIN
    assert verdict(-0.01, 0.02) == NO_GAIN
    assert verdict(-0.02, -0.01) == WORSE
    assert verdict(float("nan"), 0.1) == UNKNOWN
    infinite = relative_gain(np.array([1.0]), np.array([np.inf]))
    assert infinite[0] == 1.0


def test_a_baseline_that_breaks_a_bound_is_not_the_rival():
    fit = family_fit([0.1, 0.2, 0.3])
    goal, model = Objective.parse("normalized", fit.targets), a_model(theta=fit.theta, families=3)
    room = Box(np.array([0.4, 0, 0]), np.ones(3), ("floor", "", ""), ("", "", ""))
    named = {
        "proposed": np.array([0.4, 0.25, 0.35]),
        "uniform": np.full(3, 1 / 3),
        "ours": np.array([0.5, 0.2, 0.3]),
    }
    rows = compare_mixtures(fit, goal, model, None, room, named)
    assert rows["feasible"].tolist() == [True, False, True]
    assert best_gain(rows).over == "ours"


# --- real fits, text and JSON ----------------------------------------------------------------


def test_from_runs_to_ratios_and_back_to_json():
    runs, theta = synthetic_runs(families=3, runs=60, noise=0.005)
    fit = fit_law(runs, bootstrap=40)
    best = fit.optimize(1e6, 2e6, supply={"f0": 1e6, "f1": 1e6, "f2": 1e6}, max_epochs=4)
    truth = best_sum(np.ones((1, 3)), theta[None, :, 5], np.zeros(3), np.ones(3))[0]
    np.testing.assert_allclose(list(best.ratios.values()), truth, atol=0.03)
    stored = json.loads(json.dumps(best.to_dict(), allow_nan=False))
    assert stored["ratios"] == best.ratios
    assert [row["family"] for row in stored["table"]] == ["f0", "f1", "f2"]
    assert stored["comparison"][0]["gain"] is None
    text = str(best)
    for word in ("Optimal ratios for N = 1M, D = 2M", "uniform", "KKT residual", "gain:"):
        assert word in text
    assert any("N = 1M is 1.25 times the largest" in note for note in best.notes)


def test_other_law_from_runs():
    runs, _ = synthetic_runs("mixing", families=3, runs=60, noise=0.002, params=[1e6], tokens=[1e7])
    fit = fit_law(runs, "mixing", bootstrap=20)
    best = fit.optimize(1e6, 1e7, floors=dict.fromkeys(fit.families, 0.05), refits=10)
    assert best.kkt < 1e-8
    assert best.table["low"].notna().all()


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("mean", "objective out of normalized, total, worst, target:FAMILY.*got 'mean'"),
        ("target:x", "family out of f0, f1, f2; got 'x'"),
        ({"x": 1.0}, "family out of f0, f1, f2; got 'x'"),
        ({"f0": -1.0}, "weight >= 0 for f0, got -1.0"),
        ({"f0": 0.0}, "at least one weight above 0"),
    ],
)
def test_objectives_that_make_no_sense(objective, message):
    with pytest.raises(InputError, match=message):
        optimize(family_fit([0.1, 0.2, 0.3]), N, D, objective=objective)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floors": {"f0": 0.6, "f1": 0.6}}, "sum to 1.2, more than 1"),
        ({"floors": {"f0": 0.6}, "caps": {"f0": 0.5}}, "floor of f0"),
        ({"caps": {"x": 0.5}}, "family out of f0, f1, f2 as cap; got 'x'"),
        ({"supply": {"x": 1e9}}, "family out of f0, f1, f2; got 'x'"),
        ({"supply": {"f0": -1.0}}, "number of tokens for 'f0'"),
        ({"max_epochs": 4}, "max_epochs needs"),
        ({"caps": {"f0": 0.0}}, "counts the loss of f0, which is infinite at ratio 0"),
        ({"mixtures": {"ours": {"f0": 0.5}}}, "sum of 0.5"),
        ({"mixtures": {"ours": [0.7, 0.7, -0.4]}}, "between 0 and 1, got f2=-0.4"),
        ({"mixtures": {"proposed": [0.2, 0.3, 0.5]}}, "expected other names .*got proposed"),
        ({"mixtures": {"uniform": [0.2, 0.3, 0.5]}}, "expected other names .*got uniform"),
        ({"temperature": -1.0, "sizes": {"f0": 1, "f1": 1, "f2": 1}}, "alpha >= 0"),
    ],
)
def test_requests_that_cannot_be_met(options, message):
    with pytest.raises(InputError, match=message):
        optimize(family_fit([0.1, 0.2, 0.3]), N, D, **options)


def test_sizes_are_checked():
    with pytest.raises(InputError, match=r"number of parameters .* got 'many'"):
        optimize(family_fit([0.1, 0.2]), "many", D)
    with pytest.raises(InputError, match="number of tokens"):
        optimize(family_fit([0.1, 0.2]), N, -1.0)


def test_a_law_without_ratios_has_no_optimum():
    runs, _ = synthetic_runs("chinchilla", families=2, runs=40)
    with pytest.raises(InputError, match="chinchilla law has no term in the sampling ratios"):
        fit_law(runs, "chinchilla").optimize(1e6, 1e6)


def test_weak_gamma_is_refused_unless_forced():
    weak = family_fit([0.01, 0.2, 0.3], samples=200, spread=0.02)
    with pytest.raises(WeakFitError, match=r"gamma of f0 is 0.01 \(-0.0\d+ to 0.0\d+ at 90%\)"):
        optimize(weak, N, D)
    forced = optimize(weak, N, D, force=True)
    assert any(note.startswith("weak: gamma of f0") for note in forced.notes)
    # Nothing is needed of a family whose ratio is given, or whose loss is not counted.
    optimize(weak, N, D, fixed={"f0": 0.2})
    optimize(weak, N, D, objective={"f1": 1, "f2": 1})


def test_weak_gamma_is_seen_without_a_bootstrap():
    runs, _ = synthetic_runs(families=2, runs=12, noise=0.3, seed=3)
    fit = fit_law(runs)
    flat = replace(fit, theta=np.where(np.arange(6) == 5, 0.01, fit.theta))
    with pytest.raises(WeakFitError, match="gamma of"):
        optimize(flat, 1e5, 5e5)


def test_total_needs_exponents_beyond_the_runs_only():
    runs, _ = synthetic_runs(families=2, runs=60, noise=0.005, tokens=[8e5])
    fit = fit_law(runs)
    fit.optimize(2e5, 8e5, objective="total")
    with pytest.raises(WeakFitError, match="another D rests on beta"):
        fit.optimize(2e5, 8e7, objective="total")
    fit.optimize(2e5, 8e7, objective="normalized")


def test_one_mixture_supports_nothing():
    runs, _ = synthetic_runs(families=2, runs=40, ratios=np.full((40, 2), 0.5))
    fit = fit_law(runs)
    with pytest.raises(WeakFitError, match="all runs have one mixture"):
        fit.optimize(1e5, 5e5)
