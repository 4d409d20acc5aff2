"""Diagnosis: calibrated without cross-effects, powerful with them, honest about what it lacks."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.compare import compare
from apportion.mixture.diagnose import Diagnosis, diagnose
from apportion.mixture.diagnosis.crosseffect import cross_effects
from apportion.mixture.diagnosis.exponents import unusable_runs
from apportion.mixture.diagnosis.extrapolate import extrapolation, hull_distance
from apportion.mixture.diagnosis.findings import Section
from apportion.mixture.diagnosis.gamma import gamma_report
from apportion.mixture.diagnosis.noise import own_ratio_cells, seed_noise, within_cell_spread
from apportion.mixture.diagnosis.regression import contrasts, holm
from apportion.mixture.fit import fit
from apportion.mixture.runs import RunTable
from mixture.crossed import grid, own_power, squares, table
from mixture.synthetic import synthetic_runs

SIZES = [(5e4, 4e5), (2e5, 4e5), (2e5, 1.6e6), (8e5, 1.6e6)]
ONE_SIZE = [(2e5, 8e5)]


def verdicts(report: Diagnosis) -> dict[str, str]:
    return dict(zip(report.hypothesis["family"], report.hypothesis["verdict"], strict=True))


def words(report: Diagnosis, start: str) -> str:
    return next(str(s) for s in report.sections if s.title.startswith(start))


# Regressions


def test_holm_on_a_case_done_by_hand():
    corrected = holm(np.array([0.01, np.nan, 0.04, 0.03]))
    np.testing.assert_allclose(corrected, [0.03, np.nan, 0.06, 0.06])


def test_contrast_agrees_with_least_squares():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(40, 2)), np.c_[np.ones(40), rng.normal(size=(40, 2))]
    y = x @ [0.5, -0.2] + z @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=40)
    found = contrasts(y, z, x, np.array([[1.0, 0.0], [1.0, -1.0]]), np.arange(40))
    whole, squares_left, *_ = np.linalg.lstsq(np.c_[x, z], y, rcond=None)
    np.testing.assert_allclose(found.estimate, [whole[0], whole[0] - whole[1]], rtol=1e-9)
    assert found.sigma == pytest.approx(np.sqrt(squares_left[0] / 35))
    assert found.residual_freedom == 35
    # Singleton clusters: close to the classical standard error, and its degrees of freedom.
    inverse = np.linalg.inv(np.c_[x, z].T @ np.c_[x, z])
    assert found.error[0] == pytest.approx(found.sigma * np.sqrt(inverse[0, 0]), rel=0.35)
    assert 8 < found.freedom[0] <= 35


def test_contrast_that_the_design_never_varies_is_unknown():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=20), np.zeros(20)]
    y = rng.normal(size=20)
    found = contrasts(y, np.ones((20, 1)), x, np.eye(2), np.arange(20))
    assert np.isfinite(found.p[0])
    assert np.isnan(found.estimate[1])
    assert np.isnan(found.p[1])


def test_clustered_errors_keep_their_level_with_few_clusters():
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(10), 6)
    rejected = plain = 0
    for _ in range(400):
        x = rng.normal(size=10)[clusters][:, None]
        y = rng.normal(size=10)[clusters] + 0.3 * rng.normal(size=60)
        one = np.ones((60, 1))
        rejected += int(contrasts(y, one, x, np.eye(1), clusters).p[0] < 0.05)
        plain += int(contrasts(y, one, x, np.eye(1), np.arange(60)).p[0] < 0.05)
    assert rejected / 400 < 0.09
    assert plain / 400 > 0.3  # what happens without clusters


# Noise and cells


def test_seed_noise_from_repeats():
    runs = table(grid(SIZES, squares(), seeds=2), own_power(), noise=0.02)
    noise = seed_noise(runs)
    assert noise is not None
    assert (noise.freedom == len(runs) // 2).all()
    np.testing.assert_allclose(noise.sd, 0.02, rtol=0.3)


def test_the_same_seed_twice_is_no_repeat():
    runs = table(grid(ONE_SIZE, squares(), seeds=1), own_power())
    double = runs.take([*range(len(runs)), 0, 1])
    assert seed_noise(double) is None


def test_repeats_that_agree_to_the_last_digit_measure_no_noise():
    runs = table(grid(SIZES, squares(), seeds=2), own_power(), noise=0.0)
    assert seed_noise(runs) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diagnose(runs)
    assert set(found.hypothesis["noise_source"]) == {"residuals"}


def test_losses_that_never_vary_are_refused_by_every_verb_that_fits():
    runs = table(grid(SIZES, squares(), seeds=1), own_power())
    losses = runs.losses.copy()
    losses[:, 1] = 3.25
    flat = replace(runs, losses=losses)
    for verb in (diagnose, fit, compare):
        with pytest.raises(InputError, match=r"one loss in all \d+ for f1 \(3\.25 for f1\)"):
            verb(flat)


def test_cells_need_two_mixtures_at_one_own_ratio():
    ratios = np.array([[0.2, 0.3, 0.5], [0.202, 0.5, 0.298], [0.25, 0.4, 0.35], [0.2, 0.3, 0.5]])
    runs = RunTable.of(np.full(4, 1e6), np.full(4, 1e7), ratios, np.ones((4, 3)), "abc")
    assert own_ratio_cells(runs, "a").tolist() == [0, 0, -1, 0]
    assert own_ratio_cells(runs, "b").tolist() == [-1, -1, -1, -1]  # one mixture, twice


@pytest.mark.parametrize("planted", [False, True])
def test_spread_within_cells_against_repeats(planted: bool):
    def effect(ratios: np.ndarray) -> np.ndarray:
        logs = own_power()(ratios)
        if planted:
            logs[:, 2] -= 0.15 * ratios[:, 4]
        return logs

    runs = table(grid(ONE_SIZE, squares(), seeds=2), effect, seed=3)
    noise = seed_noise(runs)
    assert noise is not None
    frame = within_cell_spread(runs, -fit(runs).residuals(), noise).set_index("family")
    assert (frame["cells"] > 0).all()
    assert (frame.loc["f2", "p_holm"] < 1e-3) == planted
    assert (frame.drop("f2")["p_holm"] > 0.05).all()


# Cross-effects


def test_false_positives_are_rare_over_many_tables():
    families_wrong = raw = 0
    for seed in range(12):
        runs, _ = synthetic_runs(runs=40, families=4, seed=seed)
        pairs = cross_effects(runs, fit(runs), None, 0.05).pairs
        families_wrong += int((pairs["p_holm"] < 0.05).any())
        raw += int((pairs["p"] < 0.05).sum())
    assert families_wrong <= 2  # 12 tables at 5 %: more than 2 has a chance of 2 %
    assert raw / (12 * 12) < 0.11


def test_planted_effect_is_found_with_its_size():
    # Moving .1 to f1, a third from each of the others, at fixed own ratio: exp(-.4 * .1).
    runs, _ = synthetic_runs(runs=80, seed=5, cross={(0, 1): 0.4})
    pairs = cross_effects(runs, fit(runs), None, 0.05).pairs
    row = pairs[(pairs["family"] == "f0") & (pairs["other"] == "f1")].iloc[0]
    truth = -0.04 * float(np.exp(np.log(runs.losses[:, 0]).mean()))
    assert row["verdict"] == "large"
    assert row["low"] < truth < row["high"]
    assert not pairs[~pairs["family"].isin(["f0"])]["verdict"].isin(["large", "small"]).any()
    # The effects of a family are contrasts: they sum to 0.
    assert pairs[pairs["family"] == "f0"]["effect"].sum() == pytest.approx(0, abs=1e-9)


def test_exact_cells_are_used_where_the_design_has_them():
    def bent(ratios: np.ndarray) -> np.ndarray:  # no power of p: the law does not fit
        return 0.1 * np.cos(9 * np.log(ratios))

    runs = table(grid(ONE_SIZE, squares(), seeds=2), bent, seed=1)
    found = cross_effects(runs, fit(runs), seed_noise(runs), 0.05)
    assert (found.families["method"] == "cells").all()
    assert not found.pairs["verdict"].isin(["large", "small"]).any()


def test_significant_but_small_is_told_apart_from_large():
    def effect(ratios: np.ndarray) -> np.ndarray:
        logs = own_power()(ratios)
        logs[:, 0] -= 0.04 * ratios[:, 1]  # .004 in log loss for .1: below the noise of .01
        logs[:, 2] -= 0.3 * ratios[:, 1]
        return logs

    runs = table(grid(SIZES, squares(), seeds=2), effect, seed=2)
    pairs = cross_effects(runs, fit(runs), seed_noise(runs), 0.05).pairs
    pick = {(r["family"], r["other"]): r["verdict"] for r in pairs.to_dict("records")}
    assert pick["f0", "f1"] == "small"
    assert pick["f2", "f1"] == "large"


# Gamma


def test_constant_gamma_stays_constant():
    wrong = 0
    for seed in range(40):
        runs = table(grid(SIZES, squares()[::2]), own_power(), seed=seed)
        tests = gamma_report(runs, 0.05).tests
        np.testing.assert_allclose(tests["gamma"], 0.12, atol=0.01)
        drifts = ["p_constant_holm", "p_params_holm", "p_tokens_holm"]
        wrong += int((tests[drifts] < 0.05).to_numpy().any())
    assert wrong <= 6


def test_gamma_that_drifts_with_n_is_detected():
    params, tokens, ratios, seeds = grid(SIZES, squares()[::2])
    slope = 0.12 + 0.03 * np.log(params / 2e5)
    runs = table((params, tokens, ratios, seeds), lambda p: -slope[:, None] * np.log(p))
    found = gamma_report(runs, 0.05)
    assert (found.tests["p_params_holm"] < 1e-3).all()
    assert (found.tests["p_tokens_holm"] > 0.01).all()
    np.testing.assert_allclose(found.tests["per_log_params"], 0.03, atol=0.01)
    cells = found.cells
    truth = 0.12 + 0.03 * np.log(cells["params"] / 2e5)
    assert ((cells["low"] < truth) & (truth < cells["high"])).mean() > 0.8


def test_collapsed_gamma_is_called():
    """As on public runs of five domains: two follow the others' shares and not their own."""

    def effect(ratios: np.ndarray) -> np.ndarray:
        logs = -0.12 * np.log(ratios)
        logs[:, 3] = -0.25 * ratios[:, 0] + 0.002 * np.log(ratios[:, 3])
        logs[:, 4] = -0.25 * ratios[:, 1]
        return logs

    runs = table(grid([(7e7, 3e10), (4e8, 3e10)], squares()), effect, noise=0.003, seed=4)
    report = diagnose(runs)
    assert verdicts(report)["f3"] == verdicts(report)["f4"] == "fails"
    gamma = words(report, "Is gamma")
    assert gamma.count("COLLAPSED") == 2
    assert "the split of the rest decides it" in gamma
    assert report.holds == "fails"
    assert "FAILS for f3, f4" in str(report)


# The whole report


def test_report_on_sound_runs():
    runs = table(grid(SIZES, squares(), seeds=2), own_power(), seed=11)
    report = diagnose(runs)
    assert report.holds == "holds"
    assert set(verdicts(report).values()) == {"holds"}
    assert not len(report.merges)
    assert not len(report.laws)
    text = str(report)
    assert "holds, as far as these runs can tell" in text
    assert f"from {len(runs) // 2} repeated runs" in text
    assert "What to do" not in text


def test_details_stand_below_their_point_without_a_dash():
    section = Section("A question", "an answer", ("a point", "  its detail", "another"))
    assert str(section).splitlines() == [
        "A question: an answer",
        "  - a point",
        "      its detail",
        "  - another",
    ]


def test_report_without_repeats_says_so():
    runs, _ = synthetic_runs(runs=40, families=3, seed=1)
    report = diagnose(runs)
    assert (report.hypothesis["noise_source"] == "residuals").all()
    assert "no run was repeated with another seed" in str(report)
    assert report.spread["p"].isna().all()


def test_to_dict_is_json_without_nan():
    runs, _ = synthetic_runs(runs=40, families=3, seed=1)
    report = diagnose(runs, requests=[(1e6, 1e7, {"f0": 0.5, "f1": 0.5})])
    parsed = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert parsed["holds"] == report.holds
    assert len(parsed["pairs"]) == 6
    assert parsed["requests"][0]["params_factor"] == pytest.approx(1.25)
    assert [s["title"] for s in parsed["words"]] == [s.title for s in report.sections]


@pytest.mark.parametrize("families", [1, 2])
def test_too_few_families_for_a_split_of_the_rest(families: int):
    ratios = np.ones((40, 1)) if families == 1 else None
    runs, _ = synthetic_runs(runs=40, families=families, seed=2, ratios=ratios)
    report = diagnose(runs, regroup=True)
    assert set(verdicts(report).values()) == {"not testable"}
    assert "fewer than three families" in words(report, "Hypothesis 1")
    assert report.pairs["p"].isna().all()
    if families == 1:
        assert "cannot be tested" in words(report, "Is gamma")


def test_three_families_from_few_runs():
    runs, _ = synthetic_runs(runs=13, families=3, seed=4)
    report = diagnose(runs)
    assert set(verdicts(report).values()) <= {"holds", "unclear", "not testable"}


def test_runs_with_zero_ratios_are_named():
    runs, _ = synthetic_runs(runs=50, families=4, seed=6)
    ratios = runs.ratios.copy()
    ratios[:3, 0] = 0
    ratios /= ratios.sum(axis=1, keepdims=True)
    zeros = RunTable.of(runs.params, runs.tokens, ratios, runs.losses, runs.families)
    report = diagnose(zeros)
    row = report.unusable[report.unusable["law"] == "family"].iloc[0]
    assert (row["family"], row["count"], row["runs"]) == ("f0", 3, ["run0", "run1", "run2"])
    assert "transfer" not in set(report.unusable["law"])
    assert "run0, run1, run2" in words(report, "Which runs")
    assert not len(unusable_runs(runs))


def test_exponents_that_one_size_leaves_open():
    runs, _ = synthetic_runs(runs=60, families=3, seed=0, params=(2e5,), tokens=(4e5, 8e5))
    frame = diagnose(runs).exponents.set_index(["family", "parameter"])
    assert not frame.xs("alpha", level=1)["identified"].any()
    assert (frame.xs("alpha", level=1)["why"] == "all runs have one N").all()
    assert frame.xs("gamma", level=1)["identified"].all()
    assert "D spans a factor of 2 only" in frame.loc[("f0", "beta"), "why"]


def test_a_given_fit_is_judged():
    runs, _ = synthetic_runs(runs=60, families=3, seed=0)
    report = diagnose(runs, fit=fit(runs, "chinchilla"))
    assert set(report.exponents["parameter"]) == {"alpha", "beta"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, "between 0 and 1"),
        ({"group_by": {"klingon": "x"}}, "klingon"),
        ({"requests": [(1e6, 1e7, [0.5, 0.6, 0.0])]}, "sum to 1"),
        ({"requests": [(-1.0, 1e7, [0.5, 0.5, 0.0])]}, "number of parameters"),
        ({"requests": [(1e30, 1e7, [0.5, 0.5, 0.0])]}, r"parameters of at most 1e\+15"),
        ({"requests": [(1e6, 1e30, [0.5, 0.5, 0.0])]}, r"tokens of at most 1e\+18"),
        ({"seed": -1}, "a seed from 0 up"),
    ],
)
def test_bad_requests(options: dict, message: str):
    runs, _ = synthetic_runs(runs=30, families=3, seed=0)
    with pytest.raises(InputError, match=message):
        diagnose(runs, **options)


# Extrapolation


def test_hull_distance_on_a_triangle():
    corners = np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
    assert hull_distance(np.array([1, 1, 1]) / 3, corners) == pytest.approx(0, abs=1e-9)
    assert hull_distance(np.array([0.8, 0.1, 0.1]), corners) == pytest.approx(0.2)


def test_extrapolation_factors():
    runs, _ = synthetic_runs(runs=30, families=3, seed=0)
    inside = runs.ratios.mean(axis=0)
    frame = extrapolation(runs, [(2e5, 8e5, inside), (8e6, 2e5, inside), (2e5, 8e5, {"f0": 1.0})])
    np.testing.assert_allclose(frame["params_factor"], [1, 10, 1])
    np.testing.assert_allclose(frame["tokens_factor"], [1, 0.5, 1])
    assert frame["hull_distance"].iloc[0] == pytest.approx(0, abs=1e-9)
    assert frame["hull_distance"].iloc[2] > 0.05
    assert "10 times the largest fitted" in frame["words"].iloc[1]
    assert "outside what blends" in frame["words"].iloc[2]


def test_a_fit_of_other_runs_is_refused():
    runs, _ = synthetic_runs("family", families=2, runs=30, seed=1)
    with pytest.raises(InputError, match=r"a fit of these runs \(29\), got one of others \(30\)"):
        diagnose(runs.take(range(29)), fit=fit(runs))
