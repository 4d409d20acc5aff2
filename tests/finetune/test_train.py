"""Whole runs on a model of seconds: killed and resumed, a full disk, numbers that are none."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion import finetune as ft
from apportion import models
from apportion.errors import InputError, InputWarning
from apportion.finetune.encode import read_samples
from finetune.saved import save_model, save_pairs

# The package's name for it is the function's.
train = sys.modules["apportion.finetune.train"]
# Rows are drawn, so that a resumed run must also go on drawing where it was.
RECIPE = ft.Recipe(
    lora=4, steps=12, batch=2, save_every=4, learning_rate=1e-2, saliency="random", length=128,
    backward="sparse",
)  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    save_model(folder / "model")
    save_model(folder / "dropout", dropout=0.1)
    save_pairs(folder / "data.jsonl")
    save_pairs(folder / "held.jsonl", 6)
    return folder


def tune(here: Path, out: Path, recipe: ft.Recipe = RECIPE, model: str = "model", **more):
    return ft.train(here / model, here / "data.jsonl", out, recipe, **more)


@pytest.fixture(scope="module")
def whole(here: Path) -> tuple[ft.Tuned, dict[str, torch.Tensor]]:
    """The run of RECIPE without a break."""
    out = here / "whole"
    return tune(here, out), load_file(out / "adapter_model.safetensors")


def same(tuned: ft.Tuned, out: Path, whole: tuple[ft.Tuned, dict[str, torch.Tensor]]) -> None:
    """Bit for bit: losses and weights."""
    assert tuned.losses == whole[0].losses
    weights = load_file(out / "adapter_model.safetensors")
    assert set(weights) == set(whole[1])
    assert all(torch.equal(weights[name], whole[1][name]) for name in weights)


class Break(Exception):
    """Stands for whatever ends a process."""


def break_at(step: int):
    def progress(now: int, steps: int, figures: dict[str, object]) -> None:
        if now == step:
            raise Break

    return progress


def test_a_run_and_its_figures(here, whole):
    tuned, weights = whole
    assert tuned.steps == 12
    assert [step for step, _ in tuned.losses] == list(range(1, 13))
    assert tuned.losses[-1][1] < tuned.losses[0][1]
    assert tuned.backward == {"sparse": 12}
    assert 0.2 < tuned.kept_share < 0.35
    assert 0 < tuned.stored_bytes < tuned.checkpoint_bytes
    assert tuned.peak_bytes > 50e6
    assert any(w.abs().sum() > 0 for name, w in weights.items() if "lora_B" in name)
    out = here / "whole"
    stored = json.loads((out / "apportion.json").read_text())["result"]
    assert ft.Tuned.from_dict(stored) == tuned
    assert sorted(p.name for p in out.glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-8"]
    assert not list(out.rglob("training_args.bin"))
    assert "apportion_" not in "".join(p.read_text() for p in out.glob("*.json"))


def test_a_finished_run_is_given_back(here, whole):
    before = {p: p.stat().st_mtime_ns for p in (here / "whole").rglob("*")}
    with pytest.warns(InputWarning, match=r"finished, so nothing was trained; fresh=True"):
        assert tune(here, here / "whole") == whole[0]
    assert {p: p.stat().st_mtime_ns for p in (here / "whole").rglob("*")} == before


def test_another_run_in_the_same_folder_is_refused(here, whole):
    with pytest.raises(InputError) as error:
        tune(here, here / "whole", replace(RECIPE, learning_rate=1e-3, saliency="norm"))
    assert "learning_rate: 0.01 there, 0.001 here; saliency: random there" in str(error.value)
    assert "fresh=True" in str(error.value)
    with pytest.raises(InputError, match="expected an empty folder"):
        tune(here, here / "model")


def test_killed_and_resumed_gives_the_same_losses(here, whole, tmp_path):
    out = tmp_path / "out"
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from apportion import finetune as ft\n"
        "here, out = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "slow = lambda step, steps, figures: time.sleep(0.3)\n"
        f"recipe = ft.{RECIPE}\n"
        "ft.train(here / 'model', here / 'data.jsonl', out, recipe, progress=slow)\n"
    )
    threads = str(torch.get_num_threads())
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(here), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": threads},
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 300
    while not (out / "checkpoint-4").exists():
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.4)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stderr.close()
    assert not (out / "adapter_config.json").exists()
    # What a kill in the middle of writing leaves.
    (out / ".saving" / "checkpoint-8").mkdir(parents=True, exist_ok=True)
    (out / ".saving" / "checkpoint-8" / "optimizer.pt").write_bytes(b"half")
    tuned = tune(here, out)
    assert tuned.resumed_from in (4, 8)
    same(tuned, out, whole)
    assert not (out / ".saving").exists()


def test_a_break_between_checkpoints(here, whole, tmp_path):
    with pytest.raises(Break):
        tune(here, tmp_path / "out", progress=break_at(7))
    tuned = tune(here, tmp_path / "out")
    assert tuned.resumed_from == 4
    same(tuned, tmp_path / "out", whole)
    # Before the first checkpoint nothing is lost but time.
    with pytest.raises(Break):
        tune(here, tmp_path / "early", progress=break_at(2))
    tuned = tune(here, tmp_path / "early")
    assert tuned.resumed_from is None
    same(tuned, tmp_path / "early", whole)


def test_a_full_run_with_dropout_resumes_over_epochs(here, tmp_path):
    recipe = ft.Recipe(
        lora=None, epochs=1.5, batch=4, accumulate=2, save_every=2, length=128,
        backward="full", learning_rate=1e-3,
    )  # fmt: skip
    expected = tune(here, tmp_path / "whole", recipe, "dropout")
    assert expected.steps == 5
    assert expected.epochs == 1.5
    assert expected.kept_share == 1
    assert expected.backward == {"full": 9}
    with pytest.raises(Break):
        tune(here, tmp_path / "out", recipe, "dropout", progress=break_at(3))
    found = tune(here, tmp_path / "out", recipe, "dropout")
    assert found.resumed_from == 2
    assert found.losses == expected.losses
    ours, theirs = (load_file(tmp_path / n / "model.safetensors") for n in ("out", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.state_dict()["model.norm.weight"], ours["model.norm.weight"])
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<|im_end|>"


def test_a_full_disk_keeps_the_last_good_checkpoint(here, whole, tmp_path):
    """The kernel itself refuses the write, by a limit on the size of files."""
    out, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step: int, steps: int, figures: dict[str, object]) -> None:
        if step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))

    try:
        with pytest.raises(InputError) as error:
            tune(here, out, progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot write a checkpoint" in str(error.value)
    assert "the last good one is" in str(error.value)
    assert [p.name for p in out.glob("checkpoint-*")] == ["checkpoint-4"]
    assert not (out / ".saving").exists()
    tuned = tune(here, out)
    assert tuned.resumed_from == 4
    same(tuned, out, whole)


def test_start_over(here, whole, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(Break):
        tune(here, out, replace(RECIPE, seed=1), progress=break_at(5))
    tuned = tune(here, out, fresh=True)
    assert tuned.resumed_from is None
    same(tuned, out, whole)


def test_evaluation_is_the_mean_over_tokens(here, tmp_path):
    out = tmp_path / "out"
    recipe = replace(RECIPE, steps=4, lora=None, eval_every=2, batch=4)
    tuned = tune(here, out, recipe, evaluate=here / "held.jsonl")
    words = AutoTokenizer.from_pretrained(here / "model")
    samples = read_samples(here / "held.jsonl", words, length=128).kept
    for folder, expected in ((here / "model", tuned.eval_before), (out, tuned.eval_after)):
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        total = count = 0.0
        for sample in samples:
            ids = torch.tensor(sample.ids, dtype=torch.int64)[None]
            labels = torch.full_like(ids, -100)
            for start, end in sample.spans:
                labels[:, start:end] = ids[:, start:end]
            with torch.no_grad():
                total += float(model(input_ids=ids, labels=labels).loss) * sample.labelled
            count += sample.labelled
        assert expected == pytest.approx(total / count, rel=1e-5)
    assert [step for step, _ in tuned.evals] == [2, 4]
    assert tuned.evals[-1][1] == tuned.eval_after


def test_a_loss_that_is_no_number_names_its_sample(here, tmp_path, monkeypatch):
    load = models.load

    def spoilt(*given):
        """One token has an embedding that is no number."""
        model, words = load(*given)
        (token,) = words("%")["input_ids"]
        with torch.no_grad():
            model.get_input_embeddings().weight[token] = torch.nan
        return model, words

    monkeypatch.setattr(models, "load", spoilt)
    data = save_pairs(tmp_path / "data.jsonl", 6)
    lines = data.read_text().splitlines()
    lines[2] = json.dumps({"prompt": "at % dawn", "completion": " mix"})
    data.write_text("\n".join(lines))
    recipe = replace(RECIPE, epochs=1.0, steps=None, batch=2)
    with pytest.raises(InputError) as error:
        ft.train(here / "model", data, tmp_path / "out", recipe)
    message = str(error.value)
    assert f"{data}, line 3" in message
    assert message.count(" line ") == 1
    assert "expected a finite loss, got nan at step " in message
    assert "batch 0" in message


def test_weights_that_are_no_numbers_are_refused(here, tmp_path):
    shutil.copytree(here / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.norm.weight"][3] = torch.inf
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"expected finite weights, .* in model\.norm\.weight"):
        ft.train(tmp_path / "model", here / "data.jsonl", tmp_path / "out", RECIPE)


def test_measuring_the_gradient_changes_nothing(here, whole, tmp_path):
    out = tmp_path / "out"
    tuned = tune(here, out, replace(RECIPE, cosine_every=3))
    same(tuned, out, whole)
    assert [step for step, _ in tuned.cosines] == [2, 5, 8, 11]
    assert all(0.05 < cosine < 0.999 for _, cosine in tuned.cosines)
    recipe = replace(RECIPE, cosine_every=2, keep=1.0, steps=4, accumulate=2)
    exact = tune(here, tmp_path / "exact", recipe)
    assert all(cosine == pytest.approx(1, abs=1e-9) for _, cosine in exact.cosines)
    assert len(exact.cosines) == 2


def test_bfloat16_computes_in_it_and_trains_in_float32(here, tmp_path):
    recipe = replace(RECIPE, dtype="bfloat16", steps=3)
    tuned = tune(here, tmp_path / "out", recipe, evaluate=here / "held.jsonl")
    assert all(loss == loss for _, loss in tuned.losses)
    weights = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.float32}


def test_a_plan_chooses_and_is_shown_beside_what_was_measured(here, tmp_path):
    recipe = replace(RECIPE, memory="1GB", steps=3)
    tuned = tune(here, tmp_path / "out", recipe)
    assert tuned.predicted is not None
    assert 0 < tuned.predicted["peak_bytes"] < 1e9
    assert "predicted" in tuned.rows()[0]
    with pytest.raises(InputError, match=r"expected memory of .* at least"):
        tune(here, tmp_path / "small", replace(recipe, memory="100kB"))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_where_there_is_room_nothing_is_attached(here, tmp_path, monkeypatch, checkpointing):
    way = "gradient checkpointing" if checkpointing else "plain"
    full = ft.Recipe(lora=None, keep=1.0, length=128, steps=3, batch=2)
    expected = tune(here, tmp_path / "exact", full)
    real = train.plan

    def only(*given, **more):
        found = real(*given, **more)
        return replace(found, options=tuple(o for o in found.options if o.name == way))

    monkeypatch.setattr(train, "plan", only)
    tuned = tune(here, tmp_path / "out", replace(full, memory="1GB"))
    assert tuned.settings is None
    assert tuned.checkpointing == checkpointing
    ours, theirs = ([loss for _, loss in each.losses] for each in (tuned, expected))
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert tuned.rows()[-1]["measured"] == way


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "expected steps from 1 up, got 0"),
        ({"lora": 0}, "expected lora from 1 up"),
        ({"batch": 0}, "expected batch from 1 up"),
        ({"epochs": 0.0}, "expected epochs above 0"),
        ({"learning_rate": 5.0}, r"expected learning_rate in \(0, 1\)"),
        ({"dtype": "int8"}, "expected dtype of float32, bfloat16 or auto"),
        ({"length": 1}, "expected length from 2 up"),
        ({"seed": -1}, "expected seed from 0 up"),
        ({"keep": 1.5}, "keep"),
        ({"rest": "2bit"}, "rest"),
        ({"saliency": "nonsense"}, "nonsense"),
    ],
)
def test_settings_out_of_range(wrong, said):
    with pytest.raises(InputError, match=said):
        ft.Recipe(**wrong)


def test_models_that_are_none(here, tmp_path):
    with pytest.raises(InputError, match=r"expected a folder with config\.json"):
        ft.train(tmp_path, here / "data.jsonl", tmp_path / "out")
    with pytest.raises(InputError, match="there is no"):
        ft.train(tmp_path / "nowhere.gguf", here / "data.jsonl", tmp_path / "out")
    with pytest.raises(InputError, match="expected a causal language model"):
        ft.train("no-such/model", here / "data.jsonl", tmp_path / "out")
    with pytest.raises(InputError, match="expected length of at most 256, the model's positions"):
        tune(here, tmp_path / "out", ft.Recipe(length=512))


def test_several_processes_are_refused(here, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"expected one process, got 2 .*finetune\.attach"):
        ft.train("model", "data.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()
