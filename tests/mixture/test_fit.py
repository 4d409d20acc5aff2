"""`fit`: recovery, status in words, tables of results, prediction, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.fit import fit
from apportion.mixture.laws import LAWS, get_law
from apportion.mixture.laws.base import LOG_ZERO
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable
from mixture.synthetic import synthetic_runs, synthetic_theta

WIDE = {"params": [5e4, 4e5, 3e6], "tokens": [4e5, 4e6, 4e7]}


@pytest.fixture(scope="module")
def fitted() -> Fit:
    runs, _ = synthetic_runs("family", families=3, runs=60, noise=0.01, seed=1, **WIDE)
    return fit(runs, bootstrap=40, seed=3)


@pytest.mark.parametrize("law", [name for name in LAWS if name != "atlas"])
def test_every_law_recovers_its_own_losses(law: str) -> None:
    sizes = {
        "params": [1e6] if "params" in get_law(law).fixed else WIDE["params"],
        "tokens": [1e9] if "tokens" in get_law(law).fixed else WIDE["tokens"],
    }
    runs, theta = synthetic_runs(law, families=3, runs=60, noise=0.0, seed=2, **sizes)
    found = fit(runs, law)
    fresh, _ = synthetic_runs(law, families=3, runs=9, noise=0.0, seed=77, theta=theta, **sizes)
    for row in range(len(fresh)):
        predicted = found.predict(fresh.params[row], fresh.tokens[row], fresh.ratios[row])
        np.testing.assert_allclose(predicted["loss"], fresh.losses[row], rtol=2e-3)


def test_the_atlas_law_uses_the_unique_tokens_of_the_table() -> None:
    unique = np.array([1e6, 3e5, 1e7])
    runs, _ = synthetic_runs("atlas", families=3, runs=60, noise=0.0, seed=2, unique=unique, **WIDE)
    assert fit(runs, "atlas").quality()["mean_relative_error"].max() < 2e-3


def test_parameters_are_recovered_where_the_design_determines_them() -> None:
    runs, theta = synthetic_runs("family", families=2, runs=150, noise=0.002, seed=4, **WIDE)
    found = fit(runs)
    assert found.status.ok, str(found.status)
    assert found.parameters["determined"].all()
    np.testing.assert_allclose(found.theta[:, 5], theta[:, 5], atol=0.003)
    np.testing.assert_allclose(found.theta[:, 3:5], theta[:, 3:5], atol=0.06)


def test_objective_residuals_and_quality_agree(fitted: Fit) -> None:
    residual = fitted.residuals()
    quality = fitted.quality().set_index("family")
    for k, target in enumerate(fitted.targets):
        seen = fitted.runs.losses[:, k]
        predicted = np.array(
            [
                float(fitted.predict(n, d, p)["loss"][k])
                for n, d, p in zip(
                    fitted.runs.params, fitted.runs.tokens, fitted.runs.ratios, strict=True
                )
            ]
        )
        np.testing.assert_allclose(residual[:, k], np.log(predicted / seen), atol=1e-12)
        error = float(np.abs(predicted / seen - 1).mean())
        assert quality.loc[target, "mean_relative_error"] == pytest.approx(error, rel=1e-9)
        r2 = 1 - ((predicted - seen) ** 2).sum() / ((seen - seen.mean()) ** 2).sum()
        assert quality.loc[target, "r2"] == pytest.approx(r2, rel=1e-9)


def test_the_same_seed_gives_the_same_intervals(fitted: Fit) -> None:
    again = fit(fitted.runs, bootstrap=40, seed=3)
    other = fit(fitted.runs, bootstrap=40, seed=4)
    assert fitted.samples is not None
    assert again.samples is not None
    np.testing.assert_array_equal(fitted.samples, again.samples)
    assert (other.samples != fitted.samples).any()


def test_intervals_hold_the_point_and_widen_outside_the_runs(fitted: Fit) -> None:
    inside = fitted.predict(4e5, 4e6, [1 / 3] * 3)
    outside = fitted.predict(4e8, 4e10, [1 / 3] * 3)
    for frame in (inside, outside):
        assert (frame["low"] < frame["loss"]).all()
        assert (frame["loss"] < frame["high"]).all()
    width_in = (inside["high"] - inside["low"]) / inside["loss"]
    width_out = (outside["high"] - outside["low"]) / outside["loss"]
    assert (width_out > 2 * width_in).all()


def test_order_of_families_and_runs_does_not_matter() -> None:
    runs, _ = synthetic_runs("transfer", families=3, runs=40, noise=0.01, seed=6, **WIDE)
    order = np.random.default_rng(0).permutation(40)
    columns = [2, 0, 1]
    shuffled = RunTable.of(
        runs.params[order],
        runs.tokens[order],
        runs.ratios[order][:, columns],
        runs.losses[order][:, columns],
        families=[runs.families[c] for c in columns],
    )
    for law in ("family", "transfer"):
        first, second = fit(runs, law), fit(shuffled, law)
        for target in runs.families:
            one = first.objective[first.targets.index(target)]
            two = second.objective[second.targets.index(target)]
            assert one == pytest.approx(two, rel=1e-6)


def test_a_value_on_a_bound_is_not_determined() -> None:
    theta = synthetic_theta("transfer", 3, seed=1)
    theta[:, 5:] = 0.0  # no family teaches another: noise puts some taus on the bound
    runs, _ = synthetic_runs("transfer", families=3, runs=80, noise=0.01, theta=theta, **WIDE)
    found = fit(runs, "transfer")
    table = found.parameters
    tau = table[table["parameter"].str.startswith("tau")]
    stuck = (tau["value"] < 1e-9).to_numpy()
    assert 0 < stuck.sum() < len(tau)
    assert not tau.loc[stuck, "determined"].any()
    assert tau.loc[~stuck, "determined"].all()
    (note,) = [note for note in found.status.notes if note.startswith("on a bound of the law")]
    first = tau[stuck].iloc[0]
    assert f"{first['parameter']} of {first['family']} (0)" in note
    assert not found.status.ok
    assert "not all parameters determined" in found.status.text


def test_one_size_is_said_and_its_exponent_is_not_offered() -> None:
    runs, _ = synthetic_runs("family", families=2, runs=40, seed=7, params=[1e6], tokens=[4e5, 4e7])
    found = fit(runs)
    assert not found.status.ok
    assert "one N" in str(found.status)
    table = found.parameters.set_index(["family", "parameter"])
    assert not table.loc[("f0", "alpha"), "determined"]
    assert not table.loc[("f0", "A"), "determined"]
    assert table.loc[("f0", "gamma"), "determined"]


def test_less_than_a_decade_is_said() -> None:
    runs, _ = synthetic_runs(
        "family", families=2, runs=40, seed=7, params=[1e6, 2e6, 3e6], tokens=WIDE["tokens"]
    )
    assert "a decade is the least" in str(fit(runs).status)


def test_zero_ratios_are_named_not_dropped_silently() -> None:
    runs, _ = synthetic_runs("family", families=3, runs=40, seed=8, **WIDE)
    ratios = runs.ratios.copy()
    ratios[[3, 9], 1] = 0.0
    ratios /= ratios.sum(axis=1, keepdims=True)
    table = RunTable.of(runs.params, runs.tokens, ratios, runs.losses, families=runs.families)
    found = fit(table)
    assert found.used[1].sum() == 38
    assert "2 of 40 runs say nothing about f1" in str(found.status)
    assert "run3, run9" in str(found.status)
    assert np.isnan(found.residuals()[3, 1])


def test_bits_per_byte_follow_from_bytes_per_token(fitted: Fit) -> None:
    from dataclasses import replace

    runs = replace(fitted.runs, bytes_per_token=np.full(fitted.runs.losses.shape, 2.5))
    frame = fit(runs).predict(4e5, 4e6, [1 / 3] * 3)
    np.testing.assert_allclose(frame["bits_per_byte"], frame["loss"] / 2.5 / np.log(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runs: fit(runs, "famly"), "expected a law out of"),
        (lambda runs: fit(runs.take([0, 1, 2])), "at least 6 runs"),
        (lambda runs: fit(runs, "mixing"), "no term for"),
        (lambda runs: fit(runs, bootstrap=3), "at least 20"),
        (lambda runs: fit(runs, level=90), "between 0 and 1"),
        (lambda runs: fit(runs, bootstrap=20, seed=-1), "a seed from 0 up, got -1"),
    ],
)
def test_refusals(fitted: Fit, call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(fitted.runs)


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ([0.5, 0.5], "expected 3 ratios"),
        ([0.5, 0.5, 0.5], "sum of 1.5"),
        ([1.5, -0.5, 0.0], "between 0 and 1, got f0=1.5, f1=-0.5"),
        ({"f0": 0.5, "nowhere": 0.5}, "expected a family out of f0, f1, f2"),
        ([float("nan"), 0.5, 0.5], "got f0=nan"),
    ],
)
def test_prediction_refuses_ratios_that_are_none(fitted: Fit, ratios, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fitted.predict(1e6, 1e7, ratios)


def test_parameters_carry_the_names_of_families_and_stay_within_their_bounds() -> None:
    runs, _ = synthetic_runs("transfer", families=3, runs=40, noise=0.02, seed=9, **WIDE)
    table = fit(runs, "transfer", bootstrap=20).parameters
    taus = table[(table["family"] == "f1") & table["parameter"].str.startswith("tau")]
    assert list(taus["parameter"]) == ["tau_f0", "tau_f2"]
    assert list(taus["meaning"]) == ["worth of a token of f0", "worth of a token of f2"]
    assert (table["low"] >= 0).all()
    taus = table[table["parameter"].str.startswith("tau")]
    assert (taus["high"] <= 1).all()


def test_a_vanished_term_is_shown_as_zero() -> None:
    _, theta = synthetic_runs("family", families=1, runs=50, noise=0.0, seed=9, **WIDE)
    theta[:, 0] = -30.0
    bare, _ = synthetic_runs("family", families=1, runs=50, noise=0.0, seed=9, theta=theta, **WIDE)
    found = fit(bare)
    table = found.parameters.set_index("parameter")
    assert table.loc["E", "value"] < 1e-4
    if "is zero for f0" in str(found.status):
        assert table.loc["E", "value"] == 0.0


def test_what_stands_on_a_bound_or_may_is_not_determined(fitted: Fit) -> None:
    assert fitted.samples is not None
    theta, samples = fitted.theta.copy(), fitted.samples.copy()
    theta[0, 0] = samples[:, 0, 0] = LOG_ZERO
    samples[: len(samples) // 2, 1, 0] = LOG_ZERO
    table = replace(fitted, theta=theta, samples=samples).parameters
    table = table.set_index(["family", "parameter"])
    assert table.loc[("f0", "E"), ["value", "bound", "determined"]].tolist() == [
        0.0,
        "lower",
        False,
    ]
    assert table.loc[("f1", "E"), ["low", "bound", "determined"]].tolist() == [0.0, "", False]
    assert table.loc[("f2", "E"), "determined"]


def test_as_many_runs_as_parameters_test_nothing() -> None:
    runs, _ = synthetic_runs("family", families=2, runs=7, seed=3, **WIDE)
    for count, said in ((6, True), (7, False)):
        status = fit(runs.take(range(count))).status
        assert (
            any("no more runs than the 6 parameters for f0, f1" in n for n in status.notes) == said
        )
        assert ("not to be trusted" in status.text) == said
        assert (len(set(status.undetermined)) == 12) == said


def test_a_family_without_a_share_gets_no_number(fitted: Fit) -> None:
    frame = fitted.predict(4e5, 4e6, {"f0": 0.4, "f1": 0.6}).set_index("family")
    assert np.isnan(frame.loc["f2", ["loss", "low", "high"]].to_numpy(float)).all()
    assert np.isfinite(frame.loc[["f0", "f1"], ["loss", "low", "high"]].to_numpy(float)).all()
    assert "f2 gets nothing" in " ".join(frame.attrs["notes"])


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (("3G", "40M"), "1e+03 times the largest"),
        (("4M", "4k"), "is a suffix such as M or B missing"),
        (("400k", "4M"), ""),
    ],
)
def test_predictions_far_from_the_runs_say_so(fitted: Fit, size, said: str) -> None:
    notes = " ".join(fitted.predict(*size, [1 / 3] * 3).attrs["notes"])
    assert said in notes
    if not said:
        assert "N =" not in notes
        assert "D =" not in notes


def test_a_law_without_sizes_says_that_it_answers_for_those_of_the_runs() -> None:
    runs, _ = synthetic_runs("mixing", families=2, runs=20, seed=1, params=[1e6], tokens=[1e9])
    notes = " ".join(fit(runs, "mixing").predict("100M", "1B", [0.5, 0.5]).attrs["notes"])
    assert "no term in N" in notes


@pytest.mark.parametrize("amount", ["nan", "much", -1.0, float("nan")])
def test_prediction_refuses_sizes_that_are_none(fitted: Fit, amount) -> None:
    with pytest.raises(InputError, match="number of parameters"):
        fitted.predict(amount, 1e7, [1 / 3] * 3)


def test_prediction_refuses_sizes_that_no_model_has(fitted: Fit) -> None:
    with pytest.raises(InputError, match=r"parameters of at most 1e\+15 .* got '1e30'"):
        fitted.predict("1e30", 1e7, [1 / 3] * 3)
    with pytest.raises(InputError, match=r"tokens of at most 1e\+18"):
        fitted.predict(1e6, 1e19, [1 / 3] * 3)
    with pytest.raises(InputError, match=r"parameters of at most 1e\+15"):
        fitted.optimize(1e30, 1e7)


def test_a_parameter_on_its_bound_is_on_it_exactly() -> None:
    theta = synthetic_theta("transfer", 3, seed=2)
    symbols = [p.symbol for p in get_law("transfer").parameters(3)]
    theta[:, symbols.index("tau_1")] = 0.0
    runs, _ = synthetic_runs("transfer", 3, 60, noise=0.0, seed=2, theta=theta, **WIDE)
    found = fit(runs, "transfer")
    near = found.theta.copy()
    near[0, symbols.index("tau_1")] = 6.7e-18
    near[1, symbols.index("tau_1")] = 0.02
    near[1, symbols.index("tau_2")] = 1.0 - 1e-15
    table = replace(found, theta=near).parameters.set_index(["family", "parameter"])
    assert table.loc[("f0", "tau_f1"), ["value", "bound"]].tolist() == [0.0, "lower"]
    assert table.loc[("f1", "tau_f0"), ["value", "bound"]].tolist() == [0.02, ""]
    assert table.loc[("f1", "tau_f2"), ["value", "bound"]].tolist() == [1.0, "upper"]


def test_what_one_size_or_one_mixture_leaves_open() -> None:
    one_n, _ = synthetic_runs(
        "family", families=2, runs=40, seed=7, params=[1e6], tokens=[4e5, 4e7]
    )
    table = fit(one_n).parameters.set_index(["family", "parameter"])["determined"]
    assert not table[("f0", "E")]
    one_mix, _ = synthetic_runs(
        "family", families=2, runs=40, seed=7, ratios=np.full((40, 2), 0.5), **WIDE
    )
    table = fit(one_mix).parameters.set_index(["family", "parameter"])["determined"]
    assert not table[[("f0", name) for name in ("E", "A", "B", "gamma")]].any()


def test_a_family_that_never_has_a_share_is_named() -> None:
    runs, _ = synthetic_runs("family", families=3, runs=20, seed=8, **WIDE)
    ratios = runs.ratios.copy()
    ratios[:, 1] = 0.0
    ratios /= ratios.sum(axis=1, keepdims=True)
    table = RunTable.of(runs.params, runs.tokens, ratios, runs.losses, families=runs.families)
    with pytest.raises(InputError, match="f1: the ratio is above 0 in 0 of 20 runs"):
        fit(table)
