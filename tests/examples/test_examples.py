"""The examples run and say what they promise; the demo's parts, on less than the demo takes."""

from __future__ import annotations

import importlib.util
import json
import shlex
import warnings
from pathlib import Path

import pandas as pd
import pytest

import apportion.mixture as mx
from apportion.mixture.data import multilingual_supply, multilingual_sweep
from mixture.synthetic import synthetic_runs

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ("fit_and_optimize", "sweep_own_text", "export_to_trainers")


def script(name: str):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_are_short(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert script(name).__doc__


def test_fit_and_optimize(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs, _ = synthetic_runs(families=3, runs=40, noise=0.002, seed=5, params=(1e5, 5e5, 2e6))
    mx.write_runs(runs, "runs.csv")
    script("fit_and_optimize").main("runs.csv", bootstrap=20)
    shown = capsys.readouterr().out
    fit = mx.load("fit.json")
    best = fit.optimize(8 * 2e6, 8 * float(runs.tokens.max()), force=True)
    assert str(best) in shown
    assert fit.status.text in shown


def test_export_to_trainers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = script("export_to_trainers")
    module.main()
    written = {path.stem for path in (tmp_path / "trainers").iterdir()}
    assert written == set(mx.TRAINERS)
    assert "refused" not in capsys.readouterr().out
    (tmp_path / "r.json").write_text(json.dumps({"ratios": {"a": 1.0, "b": 0.0}}))
    module.main("r.json", "other")
    assert "refused" in capsys.readouterr().out


def test_sweep_own_text(tmp_path, capsys):
    pytest.importorskip("torch")
    from apportion.mixture.sweep import default_plan
    from sweeptext import FAMILIES, RECIPE, SHAPE, TINY, write_text

    write_text(tmp_path / "text")
    plan = default_plan(list(FAMILIES), (SHAPE, "24x1x2x24"), (640, 1280), repeats=2)
    script("sweep_own_text").main(tmp_path / "text", tmp_path / "runs.csv", plan, TINY, RECIPE)
    shown = capsys.readouterr().out
    runs = mx.read_runs(tmp_path / "runs.csv")
    assert len(runs) == len(plan)
    assert str(runs) in shown
    assert "Hypothesis 1" in shown


def test_the_packaged_runs_are_those_of_the_benchmark():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs, supply = multilingual_sweep(), multilingual_supply()
    assert set(supply) == set(runs.families)
    assert len(runs) >= 50
    measured = pd.read_csv(ROOT / "benchmarks/multilingual_sweep/tables/fit.csv").set_index("run")
    frame = runs.to_frame().set_index("run")
    shared = [name for name in frame.columns if name.startswith(("loss_", "ratio_"))]
    rows = measured.loc[list(frame.index), shared]
    pd.testing.assert_frame_equal(frame[shared], rows, check_exact=False, rtol=1e-6)


def test_the_demo_has_text_and_a_plan_that_it_can_feed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from apportion.mixture.sweep import read_plan

    demo = script("demo")
    demo.write_text(tmp_path / "text")
    demo.write_plan(tmp_path / "plan.csv")
    plan = read_plan(tmp_path / "plan.csv")
    assert [run.run for run in plan] == list(demo.MIXTURES)
    supply = mx.count(tmp_path / "text", bytes_per_token=4)
    for run in plan:
        for family, ratio in run.ratios.items():
            assert ratio * run.tokens < 0.8 * supply[family]


def test_the_demo_prints_what_it_runs(monkeypatch, capsys):
    demo, ran = script("demo"), []
    monkeypatch.setattr(demo, "run", lambda words: ran.append(words) or 0)
    demo.step("title", "apportion mixture fit 'a b.csv'", "apportion --help")
    shown = capsys.readouterr().out
    assert ran == [["mixture", "fit", "a b.csv"], ["--help"]]
    assert [shlex.split(line)[2:] for line in shown.splitlines() if line.startswith("$ ")] == ran
    monkeypatch.setattr(demo, "run", lambda words: 1)
    with pytest.raises(SystemExit, match="1"):
        demo.step("title", "apportion --help")


def test_the_demo_trains_side_by_side(monkeypatch, capsys):
    demo = script("demo_finetune")
    for name, value in (("STEPS", 2), ("BATCH", 1), ("LENGTH", 96), ("ANSWER", 16)):
        monkeypatch.setattr(demo, name, value)
    found = demo.main()
    losses = [side["losses"] for side in found.values()]
    assert all(each[0] == pytest.approx(losses[0][0], rel=1e-5) for each in losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # checkpointing is exact
    stored = [side["stored"] for side in found.values()]
    assert stored[0] > stored[1] > stored[3] > stored[2] > 0
    assert "keep=0.25" in capsys.readouterr().out
