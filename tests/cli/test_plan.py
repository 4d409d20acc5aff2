"""`apportion plan`: the ways to train a tiny model, from its config alone."""

from __future__ import annotations

import re
import shlex

import pytest

pytest.importorskip("peft")

from apportion import models
from apportion.budget import parse_bytes
from apportion.cli.plan import COMMANDS
from apportion.finetune.plan import plan
from cli.conftest import words
from finetune.tiny import make

EXAMPLES = [
    pytest.param(name, line, id=f"{name}-{k}")
    for name, (_, lines) in COMMANDS.items()
    if name == "finetune"
    for k, line in enumerate(lines)
]
SMALL = ("--batch", "2", "--length", "32", "--rounds", "1")


@pytest.fixture
def model(here):
    """A folder with a config and no weights."""
    made = make("llama", num_hidden_layers=5, max_position_embeddings=1024)
    made.config.save_pretrained(here / "model")
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_json_and_its_examples_whole(apportion, name):
    assert name in apportion("plan", "--help").out
    done = apportion("plan", name, "--help")
    assert done.code == 0
    assert "--json" in done.out
    for line in COMMANDS[name][1]:
        assert line.startswith(f"apportion plan {name} ")
        assert f"  $ {line}\n" in done.out


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_the_examples_run(apportion, model, name, line):
    quick = re.sub(r"--length \d+", "--length 32", line).replace("--batch 8", "--batch 2")
    done = apportion(*shlex.split(quick)[1:], "--rounds", "1")
    assert done.code == 0, done.err
    assert "best: " in done.out


def test_the_table_shows_what_fits_and_names_the_rest(apportion, model):
    everything = apportion("plan", "finetune", "model", *SMALL, "--json").json
    peaks = {o["name"]: o["peak_bytes"] for o in everything["options"]}
    assert max(peaks, key=peaks.get) == "plain"
    memory = sorted(peaks.values())[-2]
    done = apportion("plan", "finetune", "model", *SMALL, "--memory", str(memory))
    assert done.code == 0, done.err
    table = words(done.out.split("more than that")[0])
    for item in ("weights", "optimizer", "gradients", "activations", "loss", "workspace"):
        assert item in table
    assert "gradient checkpointing" in table
    assert "plain" not in table
    assert "more than that: plain (" in done.out
    assert "One step of 2 samples of 32 tokens, 100% with loss, adapters of rank 16" in done.out


def test_json_is_the_plan_of_the_loaded_model(apportion, model):
    told = apportion("plan", "finetune", "model/config.json", *SMALL, "--full", "--json").json
    real = {o.name: o for o in plan(model, batch=2, length=32, rounds=1).options}
    assert told["trained"] == "all parameters"
    assert told["best"] in real
    assert {o["name"]: o["peak_bytes"] for o in told["options"]} == {
        name: o.peak_bytes for name, o in real.items()
    }


def test_adapters_are_counted_for_the_whole_decoder(apportion, model):
    told = apportion("plan", "finetune", "model", *SMALL, "--lora", "3", "--json").json
    adapted = models.adapted(model, 3, 16)
    trained = sum(p.numel() * 4 for p in adapted.parameters() if p.requires_grad)
    assert told["trained"] == "adapters of rank 3"
    assert {o["bytes"]["optimizer"] for o in told["options"]} == {2 * trained}


def test_trained_weights_stay_in_float32_and_frozen_ones_need_not(apportion, model):
    def weights(*more):
        told = apportion("plan", "finetune", "model", *SMALL, *more, "--json").json
        return told["options"][0]["bytes"]["weights"]

    assert weights("--dtype", "bfloat16") < 0.7 * weights("--dtype", "float32")
    assert weights("--dtype", "bfloat16", "--full") == weights("--dtype", "float32", "--full")


def test_a_budget_too_small_names_the_least_that_works(apportion, model):
    done = apportion("plan", "finetune", "model", *SMALL, "--memory", "1kB")
    assert (done.code, done.out) == (1, "")
    least = re.search(r"expected --memory of (\S+ \S+) at least", done.err)
    assert least is not None
    assert apportion("plan", "finetune", "model", *SMALL, "--memory", least[1]).code == 0
    assert parse_bytes(least[1]) > 100_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere"),
        (["runs.csv"], "runs.csv"),
        (["model", "--lora", "4", "--full"], "leave one out"),
        (["model", "--batch", "0"], "--batch of 1 at least"),
        (["model", "--length", "2000"], "--length of at most 1024"),
        (["model", "--loss-share", "2"], "--loss-share in (0, 1]"),
        (["model", "--memory", "lots"], "lots"),
        (["model", "--lora", "0"], "lora"),
    ],
)
def test_wrong_input_is_refused(apportion, model, arguments, said):
    done = apportion("plan", "finetune", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert said in done.err
    assert "Traceback" not in done.err


def test_wrong_usage_leaves_with_2(apportion):
    assert apportion("plan", "finetune").code == 2
    assert apportion("plan", "nonsense").code == 2
