"""`apportion plan mixture`: its examples run, its figures are those of `allocate`."""

from __future__ import annotations

import shlex

import pytest

from apportion import mixture as mx
from apportion.cli.output import jsonable
from apportion.cli.plan_mixture import EXAMPLES
from mixture.synthetic import synthetic_runs


@pytest.fixture
def fitted(here):
    runs, _ = synthetic_runs(families=3, runs=90, seed=3)
    fit = mx.fit(runs, "family", bootstrap=20)
    fit.save("fit.json")
    return fit


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_run(apportion, fitted, line):
    done = apportion(*shlex.split(line)[1:])
    assert done.code == 0, done.err
    assert "best: N = " in done.out


def test_json_is_what_python_gives(apportion, fitted):
    done = apportion("plan", "mixture", "fit.json", "--flops", "1e14", "--params", "200k",
                     "--params", "400k", "--json")  # fmt: skip
    assert done.code == 0, done.err
    expected = mx.allocate(mx.load("fit.json"), flops=1e14, params=["200k", "400k"])
    assert done.json == jsonable(expected.to_dict())
    assert [row["params"] for row in done.json["options"]] == list(expected.table["params"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "expected a budget: --flops"),
        (("--hours", "2"), "--flops-per-second"),
        (("--flops", "many"), "a number of FLOPs"),
        (("--flops", "1e14", "--params", "1T"), "--params"),
    ],
)
def test_budgets_that_are_none(apportion, fitted, given, said):
    done = apportion("plan", "mixture", "fit.json", *given)
    assert done.code == 1
    assert said in done.err
