"""`apportion plan prefill`: the ways to read with a model of seconds."""

from __future__ import annotations

import re
import shlex

import pytest

pytest.importorskip("transformers")

from apportion import models
from apportion.cli.plan_prefill import EXAMPLES
from apportion.prefill import Reader
from cli.conftest import words

READING = ("--tokens", "300", "--memory", "40", "--chunk", "20", "--dtype", "float32")


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_run(apportion, model, line):
    quick = line.replace("--memory 2k --chunk 1k", "--memory 40 --chunk 20")
    quick = re.sub(r"--tokens \d+k", "--tokens 300", quick.replace("200MB", "2MB"))
    done = apportion(*shlex.split(quick)[1:], "--rounds", "1", "--dtype", "float32")
    assert done.code == 0, done.err
    assert "best: Reader(model, tokenizer, schedule=" in done.out


def test_the_table_shows_what_fits_and_names_the_rest(apportion, model):
    told = apportion("plan", "prefill", "model", *READING, "--rounds", "1", "--json").json
    peaks = sorted(each["peak_bytes"] for each in told["options"])
    assert len(peaks) == 10
    budget = str(peaks[4])
    done = apportion("plan", "prefill", "model", *READING, "--rounds", "1", "--budget", budget)
    assert done.code == 0, done.err
    table = words(done.out.split("more than that")[0])
    for item in ("schedule", "chunks", "forwards", "memory", "activations", "scores", "linear"):
        assert item in table
    assert "1 text of 300 tokens, within " in done.out
    assert "more than that: " in done.out
    assert "fixed memory, fixed chunks (" in done.out.split("more than that")[1]


def test_json_is_what_a_read_then_takes(apportion, model):
    told = apportion("plan", "prefill", "model", *READING, "--rounds", "1", "--json").json
    loaded, _ = models.load(model)
    import torch

    text = torch.randint(5, 30, (1, 300))
    best = told["best"]
    assert told["options"][0]["peak_bytes"] == next(
        each["peak_bytes"]
        for each in told["options"]
        if all(each[name] == value for name, value in best.items())
    )
    context = Reader(loaded, **best).read(text)
    predicted = told["options"][0]["peak_bytes"]
    assert context.peak_bytes <= predicted <= 1.05 * context.peak_bytes + 4000
    assert len(context.trace) == told["options"][0]["forwards"]


def test_a_budget_that_is_too_small_says_what_works(apportion, model):
    done = apportion("plan", "prefill", "model", "--tokens", "300", "--budget", "1kB",
                     "--dtype", "float32")  # fmt: skip
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("error: expected --budget of ")
    assert "raise it to --budget " in done.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--tokens", "0"), "number of tokens"),
        (("--tokens", "300", "--batch", "0"), "--batch"),
        (("--tokens", "300", "--memory", "1M"), "positions"),
        (("--tokens", "300", "--scorer", "best"), "expected a scorer"),
    ],
)
def test_wrong_input_is_refused(apportion, model, more, said):
    done = apportion("plan", "prefill", "model", *more, "--dtype", "float32")
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert said in done.err
