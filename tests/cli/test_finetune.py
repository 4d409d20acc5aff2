"""`apportion finetune` on a model of seconds."""

from __future__ import annotations

import json
import shlex

import pytest

pytest.importorskip("peft")

from apportion.cli.finetune import EXAMPLES
from cli.conftest import words
from finetune.saved import save_model, save_pairs

QUICK = ("--steps", "3", "--batch", "2", "--lora", "2", "--backward", "sparse")


@pytest.fixture
def model(here):
    save_model(here / "model")
    save_pairs(here / "data.jsonl", 8)
    save_pairs(here / "held-out.jsonl", 4)
    return here / "model"


def refused(done, *said):
    assert done.code == 1, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    for text in said:
        assert text in done.err


def test_help_has_its_options_with_defaults_and_examples(apportion):
    done = apportion("finetune", "--help")
    assert done.code == 0
    for line in EXAMPLES:
        assert f"  $ {line}\n" in done.out
    told = words(done.out)
    for option in ("memory", "keep", "rest", "lora", "full", "epochs", "steps", "batch", "length",
                   "truncate", "accumulate", "learning-rate", "seed", "dtype", "saliency", "eval",
                   "backward", "save-every", "eval-every", "cosine-every", "fresh",
                   "json"):  # fmt: skip
        assert f"--{option}" in told
    for default in ("default: 16", "default: 0.25", "default: 4bit", "default: 2e-4"):
        assert default in told


def test_a_run_as_json_and_its_files(apportion, here, model):
    arguments = ("finetune", "model", "data.jsonl", "--out", "tuned", *QUICK, "--eval",
                 "held-out.jsonl", "--json")  # fmt: skip
    done = apportion(*arguments)
    assert done.code == 0, done.err
    told = done.json
    assert told["steps"] == 3
    assert len(told["losses"]) == 3
    assert told["eval_before"] > 0
    assert told["backward"] == {"sparse": 3}
    assert told["wrote"] == ["tuned"]
    assert "step 1 of 3: loss " in done.err
    assert " tokens/s, peak " in done.err
    assert (here / "tuned" / "adapter_model.safetensors").is_file()
    stored = json.loads((here / "tuned" / "apportion.json").read_text())
    assert stored["result"] == {k: v for k, v in told.items() if k != "wrote"}
    # The same command gives the finished run back.
    assert apportion(*arguments).json == told


def test_a_run_as_a_table(apportion, here, model):
    done = apportion("finetune", "model", "data.jsonl", "-o", "tuned", "--steps", "2", "--full",
                     "--keep", "0.5")  # fmt: skip
    assert done.code == 0, done.err
    told = words(done.out)
    for figure in ("final loss, nats per token", "peak memory of the process",
                   "gradient checkpointing would store", "rows kept in the backward",
                   "backward sparse (2 batches)", "wrote the model to tuned"):  # fmt: skip
        assert figure in told
    assert (here / "tuned" / "model.safetensors").is_file()


def test_the_examples_parse(apportion, here, model):
    """Their models are not here, their options are."""
    for line in EXAMPLES:
        done = apportion(*shlex.split(line)[1:], "--length", "1")
        refused(done, "expected --length from 2 up, got 1")


def test_wrong_input(apportion, here, model):
    run = ("finetune", "model", "data.jsonl", "--out", "tuned")
    refused(apportion(*run, "--full", "--lora", "4"), "--lora R or --full, got both")
    refused(apportion(*run, "--memory", "2GB", "--keep", "0.5"), "--memory, which chooses --keep")
    refused(apportion(*run, "--keep", "2"), "keep")
    refused(apportion(*run, "--length", "300"), "--length of at most 256")
    refused(apportion(*run, "--length", "8"), "expected at most 8 tokens", "--truncate")
    refused(apportion(*run, "--memory", "lots"), "lots")
    refused(apportion("finetune", "nowhere", "data.jsonl", "--out", "tuned"), "nowhere")
    refused(apportion("finetune", "model", "nowhere.jsonl", "--out", "tuned"), "nowhere.jsonl")
    (here / "bad.jsonl").write_text('{"text": "fine"}\n{"txt": 1}\n')
    refused(apportion("finetune", "model", "bad.jsonl", "--out", "tuned"), "bad.jsonl, line 2",
            "'text', 'prompt' and 'completion', or 'messages'")  # fmt: skip
    assert not list((here / "tuned").glob("*"))
    assert apportion("finetune", "model", "data.jsonl").code == 2


def test_samples_that_are_left_out_are_named(apportion, here, model):
    with (here / "data.jsonl").open("a") as file:
        file.write('{"prompt": "at dawn", "completion": ""}\n')
    done = apportion("finetune", "model", "data.jsonl", "--out", "tuned", *QUICK, "--json")
    assert done.code == 0, done.err
    assert done.json["dropped"] == ["data.jsonl, line 9"]
    assert "note: 1 sample without a token to predict left out: data.jsonl, line 9" in done.err
