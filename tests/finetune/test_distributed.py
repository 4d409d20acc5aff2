"""Two gloo processes give the gradients of one, and compiled models those of eager ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from apportion import finetune as ft
from finetune.test_checkpoint import assert_close
from finetune.tiny import batch, gradients, make

SCRIPT = Path(__file__).with_name("distributed.py")


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_two_processes_give_the_gradients_of_one(tmp_path, wrap, keep):
    jobs = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(tmp_path), wrap, str(keep)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [job.communicate(timeout=120)[0] for job in jobs]
    if wrap == "fsdp" and "__call__" in vars(GradientCheckpointingLayer):
        assert all("newer transformers for layers sharded by FSDP2" in text for text in said)
        return
    assert [job.returncode for job in jobs] == [0, 0], "\n".join(said)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    model, inputs = make("llama", torch.float64), batch((24, 24), answers=5)
    settings = {"keep": keep, "backward": "sparse", "rest": "drop", "loss": "model"}
    with ft.attach(model, **settings):
        expected = gradients(model, model(**inputs).loss)
    # The loss is computed in float32 by the model, one sample or two at a time.
    assert_close(found, expected, 1e-6)


# Tracing looks at attributes that warn when looked at.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_compiled_model_gives_the_same_gradients(keep):
    torch._dynamo.reset()
    inputs = batch((24, 24), answers=5)
    settings = {"keep": keep, "backward": "sparse", "rest": "drop", "loss": "model"}
    model = make("llama", torch.float64)
    with ft.attach(model, **settings):
        expected = gradients(model, model(**inputs).loss)
    compiled = torch.compile(model, backend="eager")
    with ft.attach(compiled, **settings) as sparse:
        found = gradients(model, compiled(**inputs).loss)
        assert sparse.ledger.step.backward == ("full" if keep == 1.0 else "sparse")
    assert_close(found, expected, 1e-6)
