"""Wrong input: exit code 1, one message that names what is wrong and the corrected form."""

from __future__ import annotations

import json
import sys

import pytest

import apportion as package
from apportion.mixture import parse_supply

SIZE = ("--params", "2M", "--tokens", "20M")
RATIOS = ("--ratios", "romance=.3,germanic=.3,slavic=.4")


def refused(done, *said):
    """One message on stderr, no traceback, and nothing on stdout."""
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    for text in said:
        assert text in done.err
    return done.err


def test_no_such_file(apportion):
    refused(apportion("mixture", "fit", "nowhere.csv"), "nowhere.csv")
    refused(apportion("mixture", "predict", "nowhere.json", *SIZE, *RATIOS), "nowhere.json")
    refused(apportion("mixture", "count", "nowhere"), "nowhere")
    refused(apportion("mixture", "design", "--flops", "1e14", "--params", "1M", "--tokens", "1M",
                      "--fit", "nowhere.json"), "nowhere.json")  # fmt: skip


def test_a_file_of_something_else(apportion, here):
    (here / "image.csv").write_bytes(bytes(range(256)))
    refused(apportion("mixture", "fit", "image.csv"), "image.csv")
    refused(apportion("mixture", "predict", "runs.csv", *SIZE, *RATIOS), "runs.csv", "line 1")
    refused(apportion("mixture", "predict", "supply.json", *SIZE, *RATIOS), "supply.json",
            "apportion mixture fit")  # fmt: skip


def test_a_wrong_cell_is_named(apportion, here):
    lines = (here / "runs.csv").read_text(encoding="utf-8").splitlines()
    cells = lines[3].split(",")
    cells[lines[0].split(",").index("loss_slavic")] = "nan"
    (here / "hole.csv").write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]))
    message = refused(apportion("mixture", "fit", "hole.csv"), "hole.csv", "loss_slavic")
    assert "line 4" in message


@pytest.mark.parametrize("target", ["missing/fit.json", "text", "/dev/null", "/proc/fit.json"])
@pytest.mark.parametrize("arguments", [
    ["fit", "runs.csv"],
    ["optimize", "fit.json", *SIZE],
    ["design", "--flops", "1e14", "--params", "1M", "--tokens", "1M", "--families", "a,b"],
    ["export", "ratios.json", "--to", "nemo", "--path", "romance=x"],
    ["report", "fit.json", *SIZE],
    ["count", "text"],
    ["sweep", "--data", "text"],
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    apportion, here, monkeypatch, arguments, target
):
    if arguments[0] == "sweep":
        pytest.importorskip("torch")
        monkeypatch.setattr("apportion.mixture.sweep.sweep", None)
    for work in ("fit", "optimize", "design", "export", "load", "count"):
        monkeypatch.setattr(f"apportion.mixture.{work}", None)
    refused(apportion("mixture", *arguments, "-o", target), target, "cannot write")
    refused(apportion("mixture", *arguments, "-o", target, "--json"), target)
    assert (here / "text").is_dir()


def test_a_fit_of_another_version(apportion, here):
    content = json.loads((here / "fit.json").read_text())
    (here / "new.json").write_text(json.dumps(content | {"format": 2, "apportion": "9.9"}))
    refused(apportion("mixture", "predict", "new.json", *SIZE, *RATIOS), "new.json", "9.9",
            package.__version__, "fit the runs again")  # fmt: skip


def test_a_fit_edited_by_hand(apportion, here):
    content = json.loads((here / "fit.json").read_text())
    content["theta"][1][0] += 0.1
    (here / "edited.json").write_text(json.dumps(content))
    refused(apportion("mixture", "optimize", "edited.json", *SIZE), "edited.json", "germanic")
    content.pop("theta")
    (here / "cut.json").write_text(json.dumps(content))
    refused(apportion("mixture", "optimize", "cut.json", *SIZE), "cut.json", "theta")


def test_an_unknown_law(apportion):
    refused(apportion("mixture", "fit", "runs.csv", "--law", "familly"), "familly", "chinchilla")


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ("romance=.3,germanic=.3,slavic=.3", "0.9"),
        ("romance=.3,germanic=.3,slavic=-.4", "slavic=-0.4"),
        ("romance=.3,germanic=.3,basque=.4", "basque"),
        ("romance=.3,romance=.3,slavic=.4", "twice"),
        ("romance=.3,slavic", "'slavic'"),
        ("romance=a third", "a third"),
        ("romance=nan,slavic=1", "nan"),
        ("romance=30%,slavic=70%", "got '30%'; write 0.3"),
        ("romance=%,slavic=1", "got '%'"),
        ("romance=1.2,germanic=-.4,slavic=.2", "romance=1.2, germanic=-0.4"),
        ("", "ratios as romance=0.3,slavic=0.7 or the name of a JSON or CSV file; got nothing"),
        ("binary.csv", "binary.csv: expected ratios as CSV in UTF-8"),
        ("zeros.csv", "zeros.csv: expected ratios as "),
        ("binary.json", "binary.json: expected UTF-8 JSON"),
        (
            "fit.json",
            "this is a fit; make ratios from it with `apportion mixture optimize fit.json",
        ),
        ("counted.json", "this is a supply, which counts tokens; it goes with --supply"),
        ("nothing.json", "nothing.json"),
        ("runs.csv", "ratio_<family>"),
    ],
)
def test_ratios(apportion, here, ratios, said):
    (here / "binary.csv").write_bytes(bytes(range(128, 256)))
    (here / "binary.json").write_bytes(bytes(range(128, 256)))
    (here / "zeros.csv").write_bytes(bytes(64))
    parse_supply("supply.json").save(here / "counted.json")
    refused(apportion("mixture", "predict", "fit.json", *SIZE, "--ratios", ratios), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["optimize", "fit.json", "--params", "lots", "--tokens", "1B"], "lots"),
        (["optimize", "fit.json", *SIZE, "--objective", "best"], "normalized"),
        (["optimize", "fit.json", *SIZE, "--floor", "romance"], "--floor"),
        (["optimize", "fit.json", *SIZE, "--floor", "romance=10%"], "write 0.1"),
        (["optimize", "fit.json", *SIZE, "--floor", "romance=.7,slavic=.7"], "1.4"),
        (["optimize", "fit.json", *SIZE, "--max-epochs", "4"], "--supply"),
        (["optimize", "fit.json", *SIZE, "--beside", "romance=1"], "NAME:RATIOS"),
        (["optimize", "fit.json", *SIZE, "--beside", ":romance=1"], "NAME:RATIOS"),
        (["optimize", "fit.json", *SIZE, "--beside", "a:romance=1", "--beside", "a:slavic=1"],
         "'a' is given twice"),
        *((["optimize", "fit.json", *SIZE, "--beside", f"{name}:romance=1"], f"got {name}")
          for name in ("proposed", "uniform", "unconstrained")),
        (["optimize", "fit.json", *SIZE, "--max-epochs", "1", "--supply",
          "romance=1M,germanic=1M,slavic=1M"], "largest feasible D is 3M"),
        (["fit", "runs.csv", "--vocabulary", "1000"], "--width"),
        (["fit", "runs.csv", "--params", "1M"], "leave one out"),
        (["fit", "runs.csv", "--bootstrap", "3"], "20"),
        (["fit", "mixtures.csv", "losses.csv"], "--params"),
        (["diagnose", "runs.csv", "--request", "1B:50B"], "PARAMS:TOKENS:RATIOS"),
        (["diagnose", "runs.csv", "--group-by", "romance"], "--group-by"),
        (["compare", "runs.csv", "--holdout", "params>=1e99"], "1e99"),
        (["compare", "runs.csv", "--law", "none"], "none"),
        (["design", "--flops", "1e14", "--tokens", "1M", "--families", "a,b"], "--params"),
        (["export", "ratios.json", "--to", "torch", "--path", "romance=x"], "megatron"),
        (["export", "ratios.json", "--to", "megatron", "--path", "romance"], "FAMILY=PATH"),
        (["export", "ratios.json", "--to", "megatron", "--path", "romance=x"], "germanic"),
        (["export", "fit.json", "--to", "megatron", "--path", "romance=x"], "this is a fit"),
        (["export", "ratios.json", "--to", "megatron", "--path", "romance=a", "--path",
          "germanic=b", "--path", "slavic=c", "--path", "slavik=d"], "got one of slavik"),
        (["export", "ratios.json", "--to", "nemo", "--path", "romance=x", "--seed", "3"],
         "leave --seed out"),
        (["export", "ratios.json", "--to", "mosaicml", "--path", "romance=x", "--seed", "-1"],
         "a seed from 0 up, got -1"),
        (["report", "fit.json", "-o", "page.html", "--params", "1B"], "--tokens"),
        (["count", "text", "--bytes-per-token", "0"], "positive"),
        *(([verb, "runs.csv", "--seed", "-1"], "a seed from 0 up, got -1")
          for verb in ("fit", "diagnose", "compare")),
        (["predict", "fit.json", "--params", "1e30", "--tokens", "1B", *RATIOS], "at most 1e+15"),
        (["optimize", "fit.json", "--params", "1B", "--tokens", "1e30"], "at most 1e+18"),
        (["diagnose", "runs.csv", "--request", "1e30:1B:romance=1"], "at most 1e+15"),
        (["design", "--flops", "1e40", "--params", "1e30", "--tokens", "1M", "--families", "a,b"],
         "at most 1e+15"),
        (["export", "ratios.json", "--to", "olmo-core", "--path", "romance=x", "--tokens", "1e30"],
         "at most 1e+18"),
    ],
)  # fmt: skip
def test_requests(apportion, arguments, said):
    refused(apportion("mixture", *arguments), said)


def test_a_missing_extra_is_named(apportion, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("apportion.mixture.sweep")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(apportion("mixture", "sweep", "--data", "text", "--out", "x.csv"), "'torch'",
            "pip install 'apportion[sweep]'")  # fmt: skip
