"""What is said beside a proposal or a prediction: seeds, weak fits, sizes, wrong intervals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from apportion.mixture import fit as fit_law
from apportion.mixture.optimize import optimize
from apportion.mixture.proposal.gains import another_seed
from apportion.mixture.proposal.objective import LossModel, Objective
from apportion.mixture.proposal.optimum import GAIN, SMALL
from apportion.mixture.result import Fit, Status
from mixture.synthetic import family_fit, synthetic_runs

N, D = 1e6, 1e7
THIRDS = [1 / 3, 1 / 3, 1 / 3]


def repeated(fit: Fit, noise: float) -> Fit:
    """The fit with every run trained again, another seed moving all its losses together."""
    rows = np.repeat(np.arange(len(fit.runs)), 2)
    runs = fit.runs.take(rows)
    moved = noise * np.random.default_rng(0).standard_normal((len(runs), 1))
    names = tuple(f"run{row}" for row in range(len(runs)))
    seed = np.arange(len(runs)) % 2
    runs = replace(runs, run=names, seed=seed, losses=runs.losses * np.exp(moved))
    return replace(fit, runs=runs, used=fit.used[:, rows])


@pytest.mark.parametrize("spec", ["normalized", "total", "worst", "target:f1"])
def test_another_seed_is_the_spread_of_the_difference_of_two_runs(spec):
    plain = family_fit([0.1, 0.2, 0.3])
    fit = repeated(plain, 0.01)
    goal = Objective.parse(spec, fit.targets)
    model = LossModel.of(fit, N, D, None, fit.theta[None])
    logs = np.log(fit.runs.losses[:, 0])
    difference = np.sqrt(np.mean((logs[::2] - logs[1::2]) ** 2))
    found = another_seed(fit.runs, goal, model, np.array(THIRDS))
    assert found == pytest.approx(difference, rel=1e-9)
    assert found == pytest.approx(np.sqrt(2) * 0.01, rel=0.2)
    assert np.isnan(another_seed(plain.runs, goal, model, np.array(THIRDS)))


def test_a_gain_below_what_another_seed_changes_is_not_called_significant():
    fit = family_fit([0.15, 0.17, 0.19], samples=100, spread=0.001)
    clear = optimize(fit, N, D).gain
    assert clear.verdict == GAIN
    assert np.isnan(clear.another_seed)
    assert clear.significant
    quiet = optimize(repeated(fit, 0.1 * clear.value), N, D).gain
    assert quiet.verdict == GAIN
    assert quiet.significant
    best = optimize(repeated(fit, 2 * clear.value), N, D)
    assert best.gain.low > 0
    assert best.gain.verdict == SMALL
    assert not best.gain.significant
    assert set(best.comparison["verdict"][1:]) == {SMALL}
    assert str(best.gain).endswith(f"another seed changes ({best.gain.another_seed:.2%})")
    assert best.to_dict()["gain"]["another_seed"] == best.gain.another_seed
    json.dumps(optimize(fit, N, D).to_dict(), allow_nan=False)


def test_a_fit_that_is_not_to_be_trusted_says_so_wherever_it_is_used():
    runs, _ = synthetic_runs(families=3, runs=40, noise=0.002, params=(1e6,), tokens=(1e7,))
    fit = fit_law(runs)
    expected = fit.status.notes[:2]
    assert all("nothing follows for another" in note for note in expected)
    for notes in (
        fit.predict(4e6, 1e7, THIRDS).attrs["notes"],
        fit.optimize(4e6, 1e7, force=True).notes,
        fit.optimize(4e6, 1e7, force=True).to_dict()["notes"],
    ):
        assert "about the fit: family: fitted, but not to be trusted" in notes
        assert set(expected) <= set(notes)
    sound = family_fit([0.1, 0.2, 0.3])
    assert not any("about the fit" in note for note in optimize(sound, N, D).notes)


@pytest.mark.parametrize("size", [(1, 1), (999, 1e6), (1e6, 9e4)])
def test_sizes_that_nobody_trains_are_said(size):
    fit = family_fit([0.1, 0.2, 0.3])
    for notes in (fit.predict(*size, THIRDS).attrs["notes"], optimize(fit, *size).notes):
        assert any("is no run that anyone trains" in note for note in notes)
    assert not any("no run that anyone" in note for note in optimize(fit, 1e3, 100).notes)


def test_huge_losses_are_not_written_out():
    fit = family_fit([0.1, 0.2, 0.3], samples=30)
    theta, samples = fit.theta.copy(), fit.samples.copy()
    theta[0, 1], samples[:, 0, 1] = 10.0, 38.0
    text = str(optimize(replace(fit, theta=theta, samples=samples), N, D))
    assert "e16" in text
    assert "0000000" not in text


def test_an_interval_that_leaves_out_its_own_value_is_said():
    fit = family_fit([0.1, 0.2, 0.3], samples=20)
    samples = fit.samples.copy()
    samples[:, 1, 5] += 0.3
    away = replace(fit, samples=samples, status=Status(True, "made by hand"))
    best = optimize(away, N, D)
    told = [note for note in best.notes if "leaves out the value itself: 20 refits" in note]
    assert any(note.startswith("the interval of the ratio of f") for note in told)
    assert any(note.startswith("the interval of the loss of f1 ") for note in told)
    assert "bootstrap=1000" in told[0]
    notes = away.predict(N, D, THIRDS).attrs["notes"]
    assert any("the interval of the loss of f1 leaves out" in note for note in notes)
    for sound in (fit, replace(fit, samples=None)):
        assert not any("leaves out" in note for note in optimize(sound, N, D).notes)
