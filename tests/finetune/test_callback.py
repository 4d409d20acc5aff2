"""`ft.callback` under a Trainer of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from transformers import Trainer, TrainingArguments

from apportion import finetune as ft
from apportion.errors import InputError
from finetune.tiny import batch, make


def rows(count: int = 8) -> list[dict[str, torch.Tensor]]:
    made = [batch(sizes=(20,), answers=4, seed=k) for k in range(count)]
    return [{name: value[0] for name, value in each.items()} for each in made]


def trainer(model, folder, data, callbacks=None, **more) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, logging_steps=1,
        report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no",
        dataloader_pin_memory=False, **more,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)


def test_the_log_has_memory_rows_and_the_cosine(tmp_path, capsys):
    model = make("llama")
    with ft.attach(model, keep=0.5, backward="sparse") as handle:
        watch = ft.callback(handle, cosine_every=2)
        run = trainer(model, tmp_path, rows(), [watch], gradient_accumulation_steps=2)
        run.train()
    logs = [log for log in run.state.log_history if "loss" in log]
    assert len(logs) == 4
    assert all(log["peak_bytes"] > 50e6 for log in logs)
    assert all(log["kept_share"] == 0.5 for log in logs)
    assert ["gradient_cosine" in log for log in logs] == [False, True, False, True]
    assert all(0.1 < log["gradient_cosine"] < 1 for log in logs[1::2])
    assert 0 < logs[0]["stored_bytes"] < watch.figures.checkpoint_bytes
    assert watch.figures.tokens == 4 * 2 * 2 * 20
    assert watch.figures.backward == {"sparse": 8}
    assert "kept_share" in capsys.readouterr().out  # what the Trainer prints


def test_without_a_handle_memory_and_the_loss_are_watched(tmp_path):
    model = make("llama")
    run = trainer(model, tmp_path, rows())
    run.add_callback(ft.callback())
    run.train()
    assert "peak_bytes" in run.state.log_history[0]
    assert "kept_share" not in run.state.log_history[0]
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    with pytest.raises(InputError, match="a handle to compare with"):
        ft.callback(cosine_every=3)


@pytest.mark.parametrize("attached", [False, True])
def test_a_loss_that_is_no_number_names_step_batch_and_sample(tmp_path, attached):
    model, data = make("llama"), rows()
    with torch.no_grad():
        model.get_input_embeddings().weight[90] = torch.nan
    for row in data:
        row["input_ids"][row["input_ids"] == 90] = 5
        row["labels"][row["labels"] == 90] = 5
    data[5]["input_ids"][2] = 90
    handle = ft.attach(model, keep=0.5) if attached else None
    run = trainer(model, tmp_path, data, train_sampling_strategy="sequential")
    run.add_callback(ft.callback(handle, name=lambda ids: f"the one with {ids[2]}"))
    with pytest.raises(InputError, match="nan at step 2, batch 0 of that step: the one with 90; "):
        run.train()


def test_weights_gone_wrong_are_not_blamed_on_samples(tmp_path):
    model = make("llama")
    run = trainer(model, tmp_path, rows())

    class Spoil(type(ft.callback())):
        def on_step_end(self, args, state, control, **given):
            with torch.no_grad():
                model.model.norm.weight.fill_(torch.nan)

    run.add_callback(Spoil(None, 0, None, None))
    with pytest.raises(InputError, match="the weights themselves are not finite after step 0"):
        run.train()


COUNTED_ANEW = """
import torch
from apportion.finetune.peak import peak_bytes, reset_peak

device = torch.device("cpu")
before = peak_bytes(device)
held = torch.ones(50_000_000)
most = peak_bytes(device)
del held
reset_peak(device)
print(before, most, peak_bytes(device))
"""


def test_the_peak_can_be_counted_from_anew():
    # A process of its own: what earlier tests held must not be the peak.
    run = subprocess.run(
        [sys.executable, "-c", COUNTED_ANEW], capture_output=True, text=True, check=True, timeout=60
    )
    before, most, anew = map(int, run.stdout.split())
    assert most - before > 150e6
    # Asked of the system, not of the outcome: a reset that fails must not look like a skip.
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system has no /proc/self/clear_refs, which resets a process's peak")
    assert anew < most - 100e6
