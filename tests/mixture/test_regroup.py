"""Groupings: merged tables are right, planted groups come back, and none is made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.diagnose import diagnose
from apportion.mixture.diagnosis.regroup import find_grouping, judge_grouping, merge_families
from mixture.crossed import grid, grouped, own_power, squares, table
from mixture.synthetic import synthetic_runs

SIZES = [(2e5, 4e5), (8e5, 1.6e6)]


def groups_of(names: dict[str, str]) -> set[frozenset[str]]:
    return {frozenset(f for f in names if names[f] == g) for g in names.values()}


def test_merged_table():
    runs, _ = synthetic_runs(runs=20, families=4, seed=0)
    runs = replace(
        runs,
        bytes_per_token=np.full(runs.losses.shape, [2.0, 4.0, 3.0, 1.0]),
        unique_tokens=np.array([1e6, 2e6, 3e6, np.inf]),
    )
    merged = merge_families(runs, {"f0": "x", "f2": "x"})
    assert merged.families == merged.targets == ("x", "f1", "f3")
    np.testing.assert_allclose(merged.ratios[:, 0], runs.ratios[:, 0] + runs.ratios[:, 2])
    np.testing.assert_allclose(merged.losses[:, 0], runs.losses[:, [0, 2]].mean(axis=1))
    np.testing.assert_allclose(merged.losses[:, 1:], runs.losses[:, [1, 3]])
    assert merged.bytes_per_token is not None
    np.testing.assert_allclose(merged.bytes_per_token[0], [2.5, 4.0, 1.0])
    assert merged.unique_tokens is not None
    assert merged.unique_tokens.tolist() == [4e6, 2e6, np.inf]
    weighted = merge_families(runs, {"f0": "x", "f2": "x"}, weights={"f0": 3.0})
    np.testing.assert_allclose(weighted.losses[:, 0], runs.losses[:, [0, 2]] @ [0.75, 0.25])


def test_merge_into_an_existing_family():
    runs, _ = synthetic_runs(runs=20, families=3, seed=0)
    merged = merge_families(runs, {"f2": "f0"})
    assert merged.families == ("f0", "f1")
    np.testing.assert_allclose(merged.ratios.sum(axis=1), 1.0)


def test_merge_with_families_that_have_no_loss():
    runs, _ = synthetic_runs(runs=20, families=3, seed=0)
    partly = replace(runs, targets=("f0", "f1"), losses=runs.losses[:, :2])
    merged = merge_families(partly, {"f1": "x", "f2": "x"})
    assert merged.targets == ("f0", "x")
    np.testing.assert_allclose(merged.losses, partly.losses)


@pytest.mark.parametrize(
    ("groups", "weights"),
    [
        ({"nobody": "x"}, {}),
        ({"f0": "x"}, {"f0": -1.0}),
        ({"f0": "x", "f1": "x"}, {"f0": 0.0, "f1": 0.0}),
    ],
)
def test_bad_merges(groups: dict[str, str], weights: dict[str, float]):
    runs, _ = synthetic_runs(runs=20, families=3, seed=0)
    with pytest.raises(InputError, match="expected"):
        merge_families(runs, groups, weights)


@pytest.mark.parametrize("seed", range(3))
def test_planted_groups_are_recovered(seed: int):
    runs = table(grid(SIZES, squares()), grouped([0, 1, 0, 1, 2]), seed=seed)
    found = find_grouping(runs)
    assert found.better
    assert groups_of(found.groups) == {frozenset(g) for g in (("f0", "f2"), ("f1", "f3"), ("f4",))}
    assert found.spread < 0.3 * found.spread_before


@pytest.mark.parametrize("seed", range(4))
def test_no_groups_are_made_up(seed: int):
    runs = table(grid(SIZES, squares()), own_power(), seed=seed)
    assert len(set(find_grouping(runs).groups.values())) == 5


def test_greedy_search_above_six_families():
    groups = [0, 0, 1, 2, 2, 3, 4]
    runs = table(grid(SIZES, squares(7)), grouped(groups), seed=1)
    found = groups_of(find_grouping(runs).groups)
    singles = [frozenset({f}) for f in ("f2", "f5", "f6")]
    assert found == {frozenset({"f0", "f1"}), frozenset({"f3", "f4"}), *singles}


def test_a_wrong_grouping_is_worse():
    runs = table(grid(SIZES, squares()), grouped([0, 0, 1, 2, 3]), seed=0)
    right = judge_grouping(runs, {"f0": "x", "f1": "x"})
    wrong = judge_grouping(runs, {"f0": "x", "f4": "x"})
    assert right.better
    assert not wrong.better
    assert wrong.spread > right.spread


def test_diagnosis_names_and_tests_the_merge():
    runs = table(grid(SIZES, squares(), seeds=2), grouped([0, 0, 1, 2, 3]), seed=0)
    report = diagnose(runs, group_by={"f3": "y", "f4": "y"})
    assert set(report.hypothesis["family"][report.hypothesis["verdict"] == "fails"]) == {"f0", "f1"}
    given, found = report.merges.to_dict("records")
    assert (given["source"], found["source"]) == ("given", "search")
    assert given["better"] is False
    assert found["better"] is True
    assert found["groups"] == "f0 + f1 | f2 | f3 | f4"
    assert found["large_before"] > 0
    assert found["large"] == 0
    assert "group as f0 + f1 | f2 | f3 | f4" in str(report)


def test_transfer_law_is_suggested_where_it_is_the_truth():
    share = np.eye(4) + 0.4 * np.eye(4)[[1, 0, 3, 2]]

    def effect(ratios: np.ndarray) -> np.ndarray:
        return -0.15 * np.log(ratios @ share)

    mixtures = squares(5)[:, :4] / squares(5)[:, :4].sum(axis=1, keepdims=True)
    report = diagnose(
        table(grid([(2e5, 4e5), (2e5, 4e6), (2e6, 4e6)], mixtures), effect, noise=0.005)
    )
    assert report.holds == "fails"
    means = report.laws.groupby("law")["error"].mean()
    assert means["transfer"] < means["family"]
    assert 'use law="transfer"' in str(report)
