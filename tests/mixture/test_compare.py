"""Comparing laws: the true law wins, held-out runs are the right ones, nothing leaks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from apportion.errors import InputError
from apportion.mixture.compare import AVERAGE, MEAN_LOSS, compare
from apportion.mixture.comparison.holdout import matches, splits
from apportion.mixture.comparison.regressors import Linear, Nearest, RegMix
from apportion.mixture.comparison.scores import explained, mixture_rank, rank_correlation
from apportion.mixture.comparison.verdict import Candidate, judge
from apportion.mixture.laws import get_law
from apportion.mixture.runs import RunTable

FAMILIES = ("romance", "slavic", "indic")


def table(law: str, seed: int = 0, noise: float = 1e-3, mixtures: int = 8) -> RunTable:
    """Runs of 4 sizes x 2 budgets x mixtures, with losses that follow a law."""
    generator = np.random.default_rng(seed)
    sizes = np.array([[n, d] for n in (1e6, 1e7, 1e8, 1e9) for d in (1e9, 1e10)])
    shares = generator.dirichlet(np.ones(len(FAMILIES)), mixtures).clip(0.02)
    shares /= shares.sum(axis=1, keepdims=True)
    params, tokens = np.repeat(sizes, mixtures, axis=0).T
    ratios = np.tile(shares, (len(sizes), 1))
    form = get_law(law)
    truth = {
        "family": [np.log(1.8), np.log(1.1), np.log(0.9), 0.3, 0.35, 0.12],
        "transfer": [np.log(1.8), np.log(1.1), np.log(0.4), 0.3, 0.35, 0.3, 0.05],
    }[law]
    blank = RunTable.of(params, tokens, ratios, np.ones_like(ratios), FAMILIES)
    losses = np.stack(
        [np.exp(form.log_loss(np.array(truth), blank.conditions(name))) for name in FAMILIES],
        axis=-1,
    )
    losses *= np.exp(noise * generator.standard_normal(losses.shape))
    return replace(blank, losses=losses)


@pytest.fixture(scope="module")
def runs() -> RunTable:
    return table("family")


def regmix_like(rows: int = 120) -> RunTable:
    """One N and D, many zero ratios."""
    generator = np.random.default_rng(3)
    ratios = generator.dirichlet(0.4 * np.ones(3), rows)
    ratios[ratios < 0.05] = 0.0
    ratios /= ratios.sum(axis=1, keepdims=True)
    mixed = ratios @ np.array([[1.0, 0.2, 0.1], [0.2, 1.0, 0.1], [0.1, 0.1, 1.0]])
    losses = 2.0 + 0.5 * (mixed + 0.01) ** -0.3
    losses *= np.exp(1e-3 * generator.standard_normal(losses.shape))
    return RunTable.of(np.full(rows, 1e6), np.full(rows, 1e9), ratios, losses, FAMILIES)


# --- compare ---------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["family", "transfer"])
def test_the_law_that_made_the_runs_wins_beyond_chance(law: str) -> None:
    found = compare(table(law), ["family", "transfer", "chinchilla"], holdout="params>=1e9")
    assert found.verdict.best == law
    assert found.verdict.significant is True
    assert f"Use {law}: mean relative error 0." in str(found.verdict)
    assert "on 16 held-out runs" in found.verdict.text
    assert (found.fitted, found.held_out) == (48, 16)
    average = found.table[found.table["target"] == AVERAGE].set_index("law")
    assert average["mean_relative_error"].idxmin() == law
    assert average.loc[law, "mean_relative_error"] < 0.005
    assert average.loc[law, "r2"] > 0.99
    assert average.loc[law, "rank"] > 0.95
    assert average.loc[law, "seconds"] > 0


def test_figures_are_those_of_the_predictions(runs: RunTable) -> None:
    found = compare(runs, ["family"], holdout="largest-tokens", baselines=False)
    assert list(found.table["target"]) == [*FAMILIES, AVERAGE, MEAN_LOSS]
    assert found.verdict.significant is None
    held = runs.take(runs.tokens == 1e10)
    wide = found.predictions.pivot(index="run", columns="target", values="predicted")
    predicted = wide.loc[list(held.run), list(FAMILIES)].to_numpy(float)
    by_target = found.table.set_index("target")
    error = np.abs(predicted / held.losses - 1).mean(axis=0)
    np.testing.assert_allclose(by_target.loc[list(FAMILIES), "mean_relative_error"], error)
    assert by_target.loc[AVERAGE, "mean_relative_error"] == pytest.approx(error.mean())
    mean = predicted.mean(axis=1), held.losses.mean(axis=1)
    ranks = [
        spearmanr(*(side[held.params == size] for side in mean)).statistic
        for size in (1e6, 1e7, 1e8, 1e9)
    ]
    assert by_target.loc[MEAN_LOSS, "rank"] == pytest.approx(np.mean(ranks))
    # The fit saw the other runs only: with wild losses held out, it predicts the same.
    wild = replace(runs, losses=np.where(runs.tokens[:, None] == 1e10, 9.0, runs.losses))
    again = compare(wild, ["family"], holdout="largest-tokens", baselines=False)
    np.testing.assert_array_equal(again.predictions["predicted"], found.predictions["predicted"])


def test_folds_predict_every_run_once(runs: RunTable) -> None:
    found = compare(runs, ["chinchilla"], holdout="folds:3", baselines=False)
    assert sorted(found.predictions["run"]) == sorted(np.repeat(runs.run, len(FAMILIES)))
    assert found.fitted == pytest.approx(128 / 3)
    # Blind to the mixture: all of a cell alike within one fold, so no order is left in a split.
    alike = compare(runs, ["chinchilla"], holdout="params>=1e9", baselines=False)
    assert alike.table["rank"].isna().all()


def test_a_law_that_cannot_be_fitted_is_a_row_with_its_reason(runs: RunTable) -> None:
    found = compare(runs, ["family", "mixing", "atlas"], holdout="params>=1e9", baselines=False)
    reason = found.table[found.table["target"] == ""].set_index("law")["status"]
    assert "no term for params" in reason["mixing"]
    assert "unique tokens" in reason["atlas"]
    assert found.verdict.best == "family"
    few = runs.take(np.arange(6))
    nothing = compare(few, ["family", "additive"], holdout="folds:2")
    assert nothing.verdict.best is None
    assert "No law could be judged" in str(nothing)
    assert (nothing.table.loc[nothing.table["law"] == "family", "status"]).str.len().min() > 20


def test_one_size_and_zero_ratios() -> None:
    """A sweep at one N and D: zero ratios are said, levels at another N are not promised."""
    small = regmix_like()
    found = compare(small, ["family", "mixing", "transfer"], holdout="unseen-mixtures:0.25")
    assert found.verdict.best == "transfer"
    assert "family was left out of the choice: it predicts" in found.verdict.text
    # Every law that was weighed can use all of them, so there is nothing to say.
    assert "This rests on" not in found.verdict.text
    # The table keeps to a few words; what they mean stands below it.
    lines = str(found).splitlines()
    (row,) = [line for line in lines if line.split()[0] == "family"]
    assert row.endswith("losses")
    assert any(line.startswith("- family: predicts ") and "a ratio of 0" in line for line in lines)
    status = found.table.set_index("law")["status"]
    assert status["family"].str.contains("says nothing at a ratio of 0").all()
    larger = replace(small, params=np.full(len(small), 1e9), losses=small.losses - 1.0)
    moved = compare(small, ["mixing", "transfer"], test=larger)
    assert "order only" in moved.table.set_index("law")["status"]["transfer"].iloc[0]
    assert moved.verdict.text.startswith(
        "No law beats the baselines: the best, transfer, reaches rank"
    )
    assert moved.table.loc[moved.table["law"] == "mixing", "mean_relative_error"].min() > 0.5


def test_given_test_runs_may_have_their_columns_in_another_order(runs: RunTable) -> None:
    small, large = runs.take(runs.params < 1e9), runs.take(runs.params >= 1e9)
    turned = replace(
        large,
        families=FAMILIES[::-1],
        ratios=large.ratios[:, ::-1],
        targets=(FAMILIES[1], FAMILIES[0], FAMILIES[2]),
        losses=large.losses[:, [1, 0, 2]],
    )
    straight = compare(small, ["family"], test=large)
    other = compare(small, ["family"], test=turned)
    np.testing.assert_array_equal(straight.predictions["predicted"], other.predictions["predicted"])
    assert straight.verdict == other.verdict


def test_bad_requests(runs: RunTable) -> None:
    small = runs.take(runs.params < 1e9)
    with pytest.raises(InputError, match="holdout or test, not both"):
        compare(small, ["family"], holdout="folds:5", test=runs.take(runs.params >= 1e9))
    with pytest.raises(InputError, match="16 of them are in the fitted table too"):
        compare(runs, ["family"], test=runs.take(runs.params >= 1e9))
    with pytest.raises(InputError, match="same families as the fitted runs"):
        compare(small, ["family"], test=replace(runs, families=("a", "b", "c")))
    for laws in (["family", "transfer", "family"], [get_law("family"), "family"]):
        with pytest.raises(InputError, match="expected every law once, got family more than once"):
            compare(runs, laws)
    for laws in ("family", []):
        with pytest.raises(InputError, match=r'a list of laws, such as \["family", "transfer"\]'):
            compare(runs, laws)
    with pytest.raises(InputError, match="expected a law out of"):
        compare(runs, ["familiy"])


def test_a_holdout_of_nothing_and_a_table_of_one_run(runs: RunTable) -> None:
    with pytest.raises(InputError, match=r"holdout '': expected <column> <op> <value>"):
        compare(runs, ["chinchilla"], holdout="")
    with pytest.raises(InputError, match=r"two runs at least that differ .* got 1"):
        compare(runs.take([0]), ["chinchilla"])
    with pytest.raises(InputError, match="such as 'folds:3'"):
        splits(runs.take([0, 1, 2]), "folds:4")


def test_to_dict_is_json(runs: RunTable) -> None:
    found = compare(runs, ["chinchilla", "mixing"], holdout="params>=1e9", baselines=False)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["best"] == "chinchilla"
    assert told["table"][0]["rank"] is None
    assert told["held_out"] == 16


# --- holdout ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params>=1e9", lambda r: r.params >= 1e9),
        (" params >= 1B ", lambda r: r.params >= 1e9),
        ("tokens<10B", lambda r: r.tokens < 1e10),
        ("ratio_romance>0.5", lambda r: r.ratios[:, 0] > 0.5),
        ("params>=100M and tokens!=1e9", lambda r: (r.params >= 1e8) & (r.tokens != 1e9)),
        (
            "params=1e9 or params=10M and seed==1",
            lambda r: (r.params == 1e9) | (r.params == 1e7) & (r.seed == 1),
        ),
        ("site=='north'", lambda r: r.extra["site"].to_numpy() == "north"),
        ("site!=north and step<=3", lambda r: r.extra["step"].to_numpy() <= 3),
        ("run==run5", lambda r: np.array(r.run) == "run5"),
    ],
)
def test_conditions(runs: RunTable, condition: str, expected) -> None:
    count = len(runs)
    extra = pd.DataFrame(
        {
            "site": ["north" if k % 3 else "south" for k in range(count)],
            "step": np.arange(count) % 5,
        }
    )
    labelled = replace(runs, seed=np.arange(count) % 2, extra=extra)
    wanted = expected(labelled)
    if condition.startswith("site!="):
        wanted &= extra["site"].to_numpy() != "north"
    np.testing.assert_array_equal(matches(labelled, condition), wanted)
    (only,) = splits(labelled, condition)
    np.testing.assert_array_equal(only.held_out, np.flatnonzero(wanted))
    np.testing.assert_array_equal(only.fitted, np.flatnonzero(~wanted))


@pytest.mark.parametrize(
    ("holdout", "message"),
    [
        ("params", "expected <column> <op> <value>"),
        ("", "expected <column> <op> <value>"),
        ("params>=", "expected <column> <op> <value>"),
        ("params>=1e9 and", "expected <column> <op> <value>"),
        ("params>=1e9 or ", "expected <column> <op> <value>"),
        ("1e6<params<1e9", "expected <column> <op> <value>"),
        ("params=>1e9", "expected <column> <op> <value>"),
        ("size>=1e9", "expected a column out of run, params, tokens, ratio_romance"),
        ("loss_romance>2", "expected a column out of"),
        ("__import__('os').system('true')>0", "expected a column out of"),
        ("params>=large", "expected a number to compare params with.*got 'large'"),
        ("params>=nothing()", "expected a number"),
        ("run>=run5", "only == and != can compare"),
        ("params>=1e12", "holds out no run"),
        ("params>=1", "holds out all 64 runs"),
        ("folds", "expected folds:<k>"),
        ("folds:1", "expected folds:<k>"),
        ("folds:99", "k from 2 to 64"),
        ("folds:x", "expected folds:<k>"),
        ("unseen-mixtures:0", "share between 0 and 1"),
        ("unseen-mixtures:many", "share between 0 and 1"),
    ],
)
def test_bad_holdouts(runs: RunTable, holdout: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        splits(runs, holdout)


def test_named_holdouts(runs: RunTable) -> None:
    for name, values in (("largest-params", runs.params), ("largest-tokens", runs.tokens)):
        (only,) = splits(runs, name)
        np.testing.assert_array_equal(only.held_out, np.flatnonzero(values == values.max()))
    (only,) = splits(runs, "unseen-mixtures", seed=1)
    groups = runs.mixtures()
    assert not set(groups[only.held_out]) & set(groups[only.fitted])
    assert len(set(groups[only.held_out])) == 2  # a fifth of eight mixtures
    (half,) = splits(runs, "unseen-mixtures:0.5")
    assert len(half.held_out) == 32


def test_folds_keep_seeds_together_and_depend_on_their_seed(runs: RunTable) -> None:
    doubled = runs.take(np.repeat(np.arange(len(runs)), 2))
    found = splits(doubled, "folds:4", seed=5)
    assert len(found) == 4
    seen = np.concatenate([each.held_out for each in found])
    np.testing.assert_array_equal(np.sort(seen), np.arange(128))
    for each in found:
        assert not set(each.held_out // 2) & set(each.fitted // 2)
        assert len(each.held_out) == 32
    same, other = splits(doubled, "folds:4", seed=5), splits(doubled, "folds:4", seed=6)
    np.testing.assert_array_equal(found[0].held_out, same[0].held_out)
    assert not np.array_equal(found[0].held_out, other[0].held_out)


# --- scores and verdict ----------------------------------------------------------------------


def test_rank_correlation_with_ties_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    left = generator.integers(0, 6, (20, 15)).astype(float)
    right = left + generator.integers(0, 6, (20, 15))
    expected = [spearmanr(a, b).statistic for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(rank_correlation(left, right), expected, rtol=1e-12)
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5.0)))


def test_order_is_judged_within_cells() -> None:
    """Right across sizes and wrong within each: the sizes must not hide it."""
    cells = np.repeat([0, 1, 2], [4, 4, 2])
    mixtures = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    observed = np.array([1.0, 2, 3, 4, 11, 12, 13, 14, 21, 22])
    predicted = np.array([4.0, 3, 2, 1, 14, 13, 12, 11, 21, 22])
    assert spearmanr(observed, predicted).statistic > 0.7
    assert mixture_rank(predicted, observed, cells, mixtures) == pytest.approx(-1.0)
    predicted[0] = np.nan  # left out; three mixtures remain in its cell
    assert mixture_rank(predicted, observed, cells, mixtures) == pytest.approx(-1.0)
    assert np.isnan(mixture_rank(predicted[8:], observed[8:], cells[8:], mixtures[8:]))


def test_explained() -> None:
    observed = np.array([1.0, 2.0, 3.0])
    assert explained(observed, observed) == 1.0
    assert explained(np.full(3, 2.0), observed) == 0.0
    assert np.isnan(explained(np.array([1.0, np.nan, np.nan]), observed))


def candidates(errors: dict[str, np.ndarray], baseline: str = "nearest") -> list[Candidate]:
    return [
        Candidate(name, name == baseline, 3 if name == "small" else 9, 2.0 * (1.0 + error[:, None]))
        for name, error in errors.items()
    ]


def told(errors: dict[str, np.ndarray]):
    count = len(next(iter(errors.values())))
    rows = np.arange(count)
    return judge(candidates(errors), np.full((count, 1), 2.0), np.zeros(count, dtype=int), rows)


def test_the_verdict_says_on_how_much_it_rests() -> None:
    """Two laws with a hole each, in other places: only what both predict decides."""
    generator = np.random.default_rng(0)
    hard = generator.uniform(0.01, 0.1, 40)
    predicted = 2.0 * (1.0 + np.stack([hard, hard, hard]))[..., None].repeat(2, axis=-1)
    predicted[0, :3, 0] = np.nan
    predicted[1, 2:4, 1] = np.nan
    predicted[0, 3:] *= 1.01
    observed, rows = np.full((40, 2), 2.0), np.arange(40)
    sides = [Candidate(n, n == "nearest", 3, p) for n, p in zip(
        ("one", "two", "nearest"), predicted, strict=True)]  # fmt: skip
    found = judge(sides, observed, np.zeros(40, dtype=int), rows)
    assert (
        "This rests on the 75 losses that all of these predict, out of 80 held-out losses (40 "
        "runs); each predicts: one 77, two 78." in found.text
    )
    ordered = observed + 0.01 * rows[:, None]
    by_rank = judge(sides, ordered, np.zeros(40, dtype=int), rows, rank_only=True)
    assert "This rests on the 36 runs that all of these predict" in by_rank.text
    whole = judge([*sides[2:], Candidate("three", False, 3, predicted[2])], observed,
                  np.zeros(40, dtype=int), rows)  # fmt: skip
    assert "This rests on" not in whole.text


def test_the_verdict_says_how_sure_it_is() -> None:
    generator = np.random.default_rng(1)
    hard = generator.uniform(0.01, 0.1, 40)  # what makes a run hard is common to all laws
    clear = told({"large": hard, "small": hard + 0.004, "nearest": hard + 0.05})
    assert (clear.best, clear.significant) == ("large", True)
    assert "The lead over small" in clear.text
    assert "The lead over the best baseline, nearest" in clear.text
    noise = 0.01 * generator.standard_normal(40)
    noise += 1e-4 - noise.mean()
    close = told({"large": hard, "small": hard + noise, "nearest": hard})
    assert (close.best, close.significant) == ("large", False)
    assert "small has fewer parameters and may serve as well" in close.text
    few = told({"large": hard[:4], "small": hard[:4] + 0.004})
    assert few.significant is False
    assert "4 held-out runs are too few" in few.text
    assert clear.text.startswith("Use large: mean relative error")
    assert clear.beats_baselines is True
    assert few.beats_baselines is None
    beaten = told({"large": hard, "small": hard, "nearest": hard / 3})
    assert beaten.text.startswith("No law beats the baselines: the best, large, reaches mean")
    assert "The best baseline, nearest (" in beaten.text
    assert "these runs support none of the laws" in beaten.text
    assert beaten.beats_baselines is False
    alone = told({"large": hard, "nearest": hard / 3})
    assert (alone.significant, alone.beats_baselines) == (None, False)
    wild = told({"large": hard + 0.4, "nearest": hard + 0.6})
    assert wild.text.startswith("No law is good enough: the best, large, reaches mean")
    assert wild.beats_baselines is True


# --- baselines -------------------------------------------------------------------------------


def test_nearest_takes_the_nearest_size_first(runs: RunTable) -> None:
    small, large = runs.take(runs.params < 1e9), runs.take(runs.params >= 1e9)
    predicted = Nearest().fit(small).predict(large)
    # Same mixture and D at the largest fitted N.
    np.testing.assert_array_equal(predicted, runs.take(runs.params == 1e8).losses)


def test_linear_is_exact_on_log_linear_losses_and_ignores_what_never_varied() -> None:
    generator = np.random.default_rng(0)
    ratios = generator.dirichlet(np.ones(3), 40)
    params = np.exp(generator.uniform(14, 20, 40))
    losses = np.exp(ratios @ generator.uniform(0, 1, (3, 3)) - 0.05 * np.log(params)[:, None])
    runs = RunTable.of(params, np.full(40, 1e9), ratios, losses, FAMILIES)
    fitted = Linear().fit(runs.take(np.arange(20)))
    rest = runs.take(np.arange(20, 40))
    np.testing.assert_allclose(fitted.predict(rest), rest.losses, rtol=1e-9)
    moved = replace(rest, tokens=1e3 * rest.tokens)
    np.testing.assert_allclose(fitted.predict(moved), rest.losses, rtol=1e-9)
    assert fitted.parameters == 4  # a level, log N and two free ratios
    with pytest.raises(InputError, match="more runs than the 4 coefficients"):
        Linear().fit(runs.take(np.arange(4)))


def test_without_lightgbm_its_row_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, runs: RunTable
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    found = compare(runs, ["family"], holdout="params>=1e9")
    (status,) = found.table.loc[found.table["law"] == RegMix.name, "status"]
    assert "not installed" in status
    assert "apportion[bench]" in status
    assert found.verdict.best == "family"


def test_regmix_regressor_learns_the_order_of_mixtures() -> None:
    pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    runs = regmix_like(300)
    fitted = RegMix().fit(runs.take(np.arange(240)))
    rest = runs.take(np.arange(240, 300))
    predicted = fitted.predict(rest)
    for k in range(3):
        assert rank_correlation(predicted[:, k], rest.losses[:, k]) > 0.9
    with pytest.raises(InputError, match="at least 48 runs"):
        RegMix().fit(runs.take(np.arange(30)))


# --- public tables ---------------------------------------------------------------------------

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "mlfoundations"


@pytest.mark.skipif(
    not PUBLIC.is_dir(), reason=f"the published mlfoundations table is not at {PUBLIC}"
)
def test_published_models_are_extrapolated_better_than_by_the_nearest() -> None:
    """104 published models, N and D only: the chinchilla law against baselines, largest out."""
    frame = pd.read_csv(PUBLIC / "mlfoundations_scaling_losses.csv")
    frame = frame[frame["train_dataset"] == "rpj"]
    wide = frame.pivot_table(
        index=["name", "params_no_embed", "tokens"], columns="val_data", values="loss"
    ).dropna()
    loss = wide.to_numpy()[:, :1]
    params, tokens = (wide.index.get_level_values(k).to_numpy(float) for k in (1, 2))
    runs = RunTable.of(params, tokens, np.ones((len(wide), 1)), loss, ("text",))
    found = compare(runs, ["chinchilla"], holdout="params>=1e9")
    average = found.table[found.table["target"] == AVERAGE].set_index("law")["mean_relative_error"]
    assert average["chinchilla"] < 0.05
    assert average["chinchilla"] < average["nearest mixture"]
