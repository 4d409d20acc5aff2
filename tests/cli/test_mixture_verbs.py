"""Every verb gives the numbers of the function that it stands for."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import apportion.mixture as mx
from apportion.cli.output import jsonable

RATIOS = {"romance": 0.3, "germanic": 0.3, "slavic": 0.4}
WRITTEN = ",".join(f"{name}={share}" for name, share in RATIOS.items())
SIZE = ("--params", "2M", "--tokens", "20M")


def same(table, told):
    """Rows as the command line tells them, against those of the API, bit by bit."""
    expected = table.to_dict("records")
    assert len(told) == len(expected) > 0
    for mine, theirs in zip(told, expected, strict=True):
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            empty = isinstance(value, float) and not math.isfinite(value)
            assert mine[name] == (None if empty else value), name


def test_fit(apportion, here):
    done = apportion("mixture", "fit", "runs.csv", "--bootstrap", "25", "--seed", "4", "--level",
                     "0.8", "-o", "mine.json", "--json")  # fmt: skip
    assert done.code == 0, done.err
    fit = mx.fit(mx.read_runs("runs.csv"), bootstrap=25, seed=4, level=0.8)
    told = done.json
    same(fit.parameters, told["parameters"])
    same(fit.quality(), told["quality"])
    assert told["status"] == fit.status.text
    assert told["ok"] is fit.status.ok
    assert told["wrote"] == ["mine.json"]
    np.testing.assert_array_equal(mx.load("mine.json").samples, fit.samples)


def test_fit_shows_what_json_tells(apportion):
    shown = apportion("mixture", "fit", "runs.csv", "--bootstrap", "25").out
    fit = mx.fit(mx.read_runs("runs.csv"), bootstrap=25)
    assert fit.status.text in shown
    for row in fit.parameters.to_dict("records"):
        line = next(
            line.split() for line in shown.splitlines()
            if line.split()[:2] == [row["family"], row["parameter"]]
        )  # fmt: skip
        assert float(line[2]) == pytest.approx(row["value"], rel=1e-3)
        assert float(line[3]) == pytest.approx(row["low"], rel=1e-3)
        assert float(line[4]) == pytest.approx(row["high"], rel=1e-3)


def test_fit_says_what_it_does_not_test_and_marks_bounds(apportion, monkeypatch):
    real = mx.fit

    def on_bounds(*arguments, **options):
        found = real(*arguments, **options)
        theta = found.theta.copy()
        theta[0, 4], theta[0, 5] = 6.7e-18, -1.0
        return replace(found, theta=theta, status=replace(found.status, undetermined=()))

    monkeypatch.setattr(mx, "fit", on_bounds)
    done = apportion("mixture", "fit", "runs.csv", "--bootstrap", "20")
    assert done.code == 0, done.err
    assert "hypothesis 1" in done.err
    assert "apportion mixture diagnose RUNS" in done.err
    lines = [line.split() for line in done.out.splitlines()]
    shown = {line[1]: line[2:4] for line in lines if line[:1] == ["romance"]}
    assert shown["beta"] == ["0", "(bound)"]
    assert shown["gamma"] == ["-1.000", "(bound)"]
    assert shown["E"][1] != "(bound)"


def test_fit_says_that_an_interval_leaves_out_its_parameter(apportion, monkeypatch):
    real = mx.fit

    def away(*arguments, **options):
        found = real(*arguments, **options)
        samples = found.samples.copy()
        samples[:, 1, 5] += 1.0
        return replace(found, samples=samples)

    ask = ("mixture", "fit", "runs.csv", "--bootstrap", "20", "--json")
    assert not any("leaves out" in note for note in apportion(*ask).json["notes"])
    monkeypatch.setattr(mx, "fit", away)
    done = apportion(*ask)
    said = "the interval of gamma of germanic leaves out the value itself: 20 refits are too few"
    assert any(note.startswith(said) for note in done.json["notes"])
    assert f"note: {said}" in done.err


def test_fit_reads_other_layouts(apportion):
    done = apportion("mixture", "fit", "mixtures.csv", "losses.csv", "--format", "regmix",
                     "--params", "1M", "--tokens", "1B", "--law", "mixing", "--json")  # fmt: skip
    assert done.code == 0, done.err
    runs = mx.read_runs("mixtures.csv", "losses.csv", format="regmix", params=1e6, tokens=1e9)
    same(mx.fit(runs, "mixing").parameters, done.json["parameters"])


def test_fit_takes_totals_and_other_columns(apportion, here):
    frame = pd.read_csv("runs.csv")
    frame["hidden"] = np.where(frame["params"] < 4e5, 64, 128)
    frame["all"] = frame.pop("params") + 1000 * frame["hidden"]
    frame.to_csv("totals.csv", index=False)
    done = apportion("mixture", "fit", "totals.csv", "--params-column", "all", "--vocabulary", "1k",
                     "--width", "hidden", "--json")  # fmt: skip
    assert done.code == 0, done.err
    same(mx.fit(mx.read_runs("runs.csv")).parameters, done.json["parameters"])
    frame["all"] += 1000 * frame["hidden"]
    frame.to_csv("untied.csv", index=False)
    untied = apportion("mixture", "fit", "untied.csv", "--params-column", "all", "--vocabulary",
                       "1000", "--width", "hidden", "--untied", "--json")  # fmt: skip
    assert untied.json["parameters"] == done.json["parameters"]


def test_fit_keeps_the_last_step(apportion, here):
    frame = pd.read_csv("runs.csv")
    early = frame.assign(step=100, loss_romance=frame["loss_romance"] * 1.3)
    pd.concat([early, frame.assign(step=200)]).to_csv("steps.csv", index=False)
    done = apportion("mixture", "fit", "steps.csv", "--last-step", "--json")
    assert done.code == 0, done.err
    same(mx.fit(mx.read_runs("runs.csv")).parameters, done.json["parameters"])
    assert apportion("mixture", "fit", "steps.csv", "--json").json["runs"] == 120


def test_predict(apportion, here):
    done = apportion("mixture", "predict", "fit.json", *SIZE, "--ratios", WRITTEN, "--json")
    assert done.code == 0, done.err
    table = mx.load("fit.json").predict(2e6, 2e7, RATIOS)
    told = done.json
    same(table, told.pop("losses"))
    notes = [f"note: {note}" for note in told["notes"]]
    assert notes == done.err.splitlines()
    asked = {"law": "family", "params": 2e6, "tokens": 2e7, "level": 0.9, "ratios": RATIOS}
    assert told == asked | {"notes": table.attrs["notes"]}
    far = apportion("mixture", "predict", "fit.json", "--params", "2B", *SIZE[2:], "--ratios",
                    WRITTEN, "--json")  # fmt: skip
    assert any("times the largest in the runs" in note for note in far.json["notes"])


def test_a_supply_that_a_prediction_cannot_use_is_said(apportion, here):
    ask = ("mixture", "predict", "fit.json", *SIZE, "--ratios", WRITTEN, "--supply", "romance=1M")
    done = apportion(*ask)
    assert done.code == 0, done.err
    assert "the family law does not count repetition" in done.err
    assert "fit with --law family+repetition" in done.err
    mx.fit(mx.read_runs("runs.csv"), "family+repetition").save("discounted.json")
    done = apportion(*ask[:2], "discounted.json", *ask[3:])
    assert "does not count repetition" not in done.err
    assert "does not name germanic, slavic: counted as unlimited" in done.err
    plain = mx.load("discounted.json").predict(2e6, 2e7, RATIOS)
    scarce = mx.load("discounted.json").predict(2e6, 2e7, RATIOS, supply={"romance": 1e6})
    assert scarce["loss"][0] > plain["loss"][0]
    assert scarce["loss"][1] == pytest.approx(plain["loss"][1], rel=1e-12)


@pytest.mark.parametrize("form", ["object", "optimum", "two columns", "one row"])
def test_ratios_from_a_file(apportion, here, form):
    path = here / ("r.json" if form in ("object", "optimum") else "r.csv")
    if path.suffix == ".json":
        path.write_text(json.dumps({"ratios": RATIOS} if form == "optimum" else RATIOS))
    elif form == "one row":
        pd.DataFrame([{f"ratio_{n}": v for n, v in RATIOS.items()}]).to_csv(path, index=False)
    else:
        pd.DataFrame({"family": list(RATIOS), "ratio": list(RATIOS.values())}).to_csv(
            path, index=False
        )
    done = apportion("mixture", "predict", "fit.json", *SIZE, "--ratios", path.name, "--json")
    assert done.code == 0, done.err
    same(mx.load("fit.json").predict(2e6, 2e7, RATIOS), done.json["losses"])


def test_optimize(apportion, here):
    done = apportion("mixture", "optimize", "fit.json", *SIZE, "--supply", "supply.json",
                     "--max-epochs", "4", "--objective", "normalized", "--floor",
                     "romance=0.05,slavic=.1", "--cap", "germanic=.5", "--beside",
                     f"ours:{WRITTEN}", "-o", "best.json", "--json")  # fmt: skip
    assert done.code == 0, done.err
    best = mx.load("fit.json").optimize(
        2e6,
        2e7,
        supply="supply.json",
        max_epochs=4,
        floors={"romance": 0.05, "slavic": 0.1},
        caps={"germanic": 0.5},
        mixtures={"ours": RATIOS},
    )
    told = done.json
    assert told.pop("wrote") == ["best.json"]
    assert told == jsonable(best.to_dict())
    assert told == json.loads((here / "best.json").read_text(encoding="utf-8"))
    assert sum(told["ratios"].values()) == pytest.approx(1)
    again = apportion("mixture", "predict", "fit.json", *SIZE, "--ratios", "best.json", "--json")
    losses = best.table.set_index("family")["loss"]
    assert [row["loss"] for row in again.json["losses"]] == pytest.approx(losses.tolist())


def test_optimize_weights_and_fixed_ratios(apportion, here):
    done = apportion("mixture", "optimize", "fit.json", *SIZE, "--objective",
                     "romance=2,slavic=1", "--fix", "germanic=.2", "--json")  # fmt: skip
    assert done.code == 0, done.err
    best = mx.load("fit.json").optimize(
        2e6, 2e7, objective={"romance": 2.0, "slavic": 1.0}, fixed={"germanic": 0.2}
    )
    assert done.json["ratios"] == best.ratios
    assert done.json["ratios"]["germanic"] == pytest.approx(0.2)


def test_diagnose(apportion, here):
    done = apportion("mixture", "diagnose", "runs.csv", "--fit", "fit.json", "--group-by",
                     "romance=west,germanic=west", "--request", f"2M:20M:{WRITTEN}",
                     "--alpha", "0.1", "--json")  # fmt: skip
    assert done.code == 0, done.err
    found = mx.diagnose(
        mx.read_runs("runs.csv"),
        fit=mx.load("fit.json"),
        group_by={"romance": "west", "germanic": "west"},
        requests=[(2e6, 2e7, RATIOS)],
        alpha=0.1,
    )
    assert done.json == found.to_dict()
    shown = apportion("mixture", "diagnose", "runs.csv")
    assert shown.out == str(mx.diagnose(mx.read_runs("runs.csv")))


def test_compare(apportion, here):
    done = apportion("mixture", "compare", "runs.csv", "--law", "family", "--law", "chinchilla",
                     "--holdout", "params>=2M", "--no-baselines", "--json")  # fmt: skip
    assert done.code == 0, done.err
    found = mx.compare(
        mx.read_runs("runs.csv"), ["family", "chinchilla"], holdout="params>=2M", baselines=False
    )
    told, expected = done.json, jsonable(found.to_dict())
    for table in (told["table"], expected["table"]):
        for row in table:
            row.pop("seconds")
    assert told == expected
    assert {row["law"] for row in told["table"]} == {"family", "chinchilla"}


def test_design(apportion, here):
    done = apportion("mixture", "design", "--flops", "1e14", "--params", "100k", "--params", "1M",
                     "--tokens", "2M", "--families", "romance,germanic,slavic", "-o", "plan.csv",
                     "--json")  # fmt: skip
    assert done.code == 0, done.err
    plan = mx.design(1e14, [1e5, 1e6], [2e6], families=["romance", "germanic", "slavic"])
    same(plan, done.json["plan"])
    assert plan["flops"].sum() <= 1e14
    pd.testing.assert_frame_equal(pd.read_csv("plan.csv"), plan, check_dtype=False)


def test_count(apportion, here):
    done = apportion("mixture", "count", "text", "--bytes-per-token", "alpha=2,beta=2,gamma=4",
                     "-o", "mine.json", "--json")  # fmt: skip
    assert done.code == 0, done.err
    supply = mx.count("text", bytes_per_token={"alpha": 2.0, "beta": 2.0, "gamma": 4.0})
    assert done.json["tokens"] == dict(supply)
    same(supply.to_frame(), done.json["texts"])
    assert dict(mx.parse_supply("mine.json")) == dict(supply)
    assert apportion("mixture", "count", "text", "--json").json["tokens"] == {}


def test_export(apportion, here):
    places = [f"--path={name}=/data/{name}" for name in RATIOS]
    done = apportion("mixture", "export", "ratios.json", "--to", "megatron", *places, "--json")
    assert done.code == 0, done.err
    ratios = json.loads((here / "ratios.json").read_text(encoding="utf-8"))["ratios"]
    expected = mx.export(ratios, "megatron", {name: f"/data/{name}" for name in ratios})
    assert done.json == {"to": "megatron", "text": expected}
    shown = apportion("mixture", "export", "ratios.json", "--to", "megatron", *places)
    assert shown.out == expected.rstrip("\n") + "\n"


def test_export_knows_the_optimum(apportion, here):
    limits = ("--supply", "supply.json", "--max-epochs", "1", "-o", "best.json")
    done = apportion("mixture", "optimize", "fit.json", "--params", "2M", "--tokens", "6e10",
                     *limits)  # fmt: skip
    assert done.code == 0, done.err
    places = [f"--path={name}={name}.bin" for name in RATIOS]
    rest = ("--to", "olmo-core", "--batch-tokens", "4M", "-o", "mix.py")
    done = apportion("mixture", "export", "best.json", *places, *rest)
    assert done.code == 0, done.err
    best = mx.load("fit.json").optimize(2e6, 6e10, supply="supply.json", max_epochs=1)
    expected = mx.export(
        best, "olmo-core", {name: f"{name}.bin" for name in RATIOS}, batch_tokens=4_000_000
    )
    assert (here / "mix.py").read_text(encoding="utf-8") == expected


def test_report(apportion, here):
    done = apportion("mixture", "report", "fit.json", *SIZE, "--no-diagnosis", "-o", "page.html")
    assert done.code == 0, done.err
    page = (here / "page.html").read_text(encoding="utf-8")
    best = mx.load("fit.json").optimize(2e6, 2e7)
    for family, ratio in best.ratios.items():
        assert family in page
        assert f"{ratio:.3f}" in page
    assert "wrote the page to page.html" in done.out
