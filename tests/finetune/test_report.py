"""The report of a step against figures counted by hand; fidelity against gradients side by side."""

from __future__ import annotations

import json

import pytest
import torch

from apportion import finetune as ft
from apportion.errors import InputError
from apportion.finetune.fidelity import fidelity
from apportion.finetune.lowbit import packed_bytes
from apportion.finetune.report import report_of
from finetune.tiny import batch, gradients, make

WIDTH, LAYERS = 48, 3
SPARSE = {"keep": 0.4, "rest": "drop", "backward": "sparse"}


def after_a_step(model, inputs, **settings):
    with ft.attach(model, **settings) as sparse:
        model(**inputs).loss.backward()
        return report_of(sparse.ledger, sparse.settings)


def test_bytes_and_rows_of_dropped_rows():
    found = after_a_step(make("llama"), batch(answers=5), **SPARSE)
    assert (found.batch, found.length, found.real_tokens) == (2, 23, 40)
    assert found.backward == "sparse"
    assert found.loss_share == pytest.approx(10 / 40)
    assert len(found.layers) == LAYERS
    kept, others = 10, 13
    # Exact rows and their index (8 bytes each), keys and values of the others (2 heads of 12).
    stored = 2 * kept * (WIDTH * 4 + 8) + 2 * 2 * others * 2 * 12 * 4
    assert [layer.stored_bytes for layer in found.layers] == [stored] * LAYERS
    assert [layer.checkpoint_bytes for layer in found.layers] == [2 * 23 * WIDTH * 4] * LAYERS
    assert [layer.kept for layer in found.layers] == [kept] * LAYERS
    assert found.stored_bytes == LAYERS * stored
    assert found.kept_share == pytest.approx(kept / 23)


def test_bytes_of_few_bit_rows_and_a_full_backward():
    found = after_a_step(make("llama"), batch(), rest="4bit", backward="full", exact=0.25)
    exact = 6  # a quarter of 23, rounded up
    stored = 2 * exact * (WIDTH * 4 + 8) + packed_bytes(2 * (23 - exact), WIDTH, 4, 4)
    assert [layer.stored_bytes for layer in found.layers] == [stored] * LAYERS
    assert found.backward == "full"
    assert found.loss_share == pytest.approx(38 / 40)  # the first token is not predicted
    assert found.kept_share == 1


def test_keep_1_stores_what_checkpointing_does():
    found = after_a_step(make("llama"), batch(), keep=1.0)
    assert found.stored_bytes == found.checkpoint_bytes
    assert "100% of gradient checkpointing's" in str(found)


def test_rows_of_a_layer_are_unknown_before_its_backward():
    model = make("llama")
    with ft.attach(model, **SPARSE) as sparse:
        loss = model(**batch(answers=5)).loss
        before = report_of(sparse.ledger, sparse.settings)
        loss.backward()
        after = report_of(sparse.ledger, sparse.settings)
    assert before.kept_share is None
    assert "has not run" in str(before)
    assert "?" in str(before)
    assert after.kept_share == pytest.approx(10 / 23)


def test_the_text_joins_layers_with_equal_figures():
    text = str(after_a_step(make("llama"), batch(answers=5), **SPARSE))
    lines = text.splitlines()
    assert lines[0] == "sparse backward of 2 x 23 tokens (40 real), 25% of them with loss"
    assert "43% of the rows in the backward" in lines[1]
    assert lines[2].split() == ["layers", "stored", "checkpointing", "rows", "a", "sample"]
    assert lines[3].split()[0] == "0-2"
    assert lines[3].endswith("10 of 23")
    assert len(lines) == 4


def test_plain_values_for_json():
    found = after_a_step(make("llama"), batch(answers=5), keep=ft.TopP(0.5, cap=0.4), rest="4bit",
                         backward="sparse", saliency="value")  # fmt: skip
    told = json.loads(json.dumps(found.to_dict()))
    assert told["stored_bytes"] == found.stored_bytes
    assert told["settings"]["keep"] == "top 0.5, at most 0.4"
    assert told["settings"]["saliency"] == "value"
    assert [layer["layer"] for layer in told["layers"]] == [0, 1, 2]


def test_no_step_no_report():
    with ft.attach(make("llama")) as sparse, pytest.raises(InputError, match="training step"):
        report_of(sparse.ledger, sparse.settings)


def test_fidelity_is_the_cosine_of_the_two_gradients():
    model, inputs = make("llama", torch.float64), batch(answers=5)
    with ft.attach(model, keep=1.0):
        exact = gradients(model, model(**inputs).loss)
    with ft.attach(model, **SPARSE) as sparse:
        found = gradients(model, model(**inputs).loss)
        told = fidelity(sparse, inputs)
    a = torch.cat([g.flatten() for g in found.values()])
    b = torch.cat([exact[name].flatten() for name in found])
    assert told.cosine == pytest.approx(float(a @ b / a.norm() / b.norm()), abs=1e-12)
    assert told.norm_ratio == pytest.approx(float(a.norm() / b.norm()), abs=1e-12)
    assert 0.1 < told.cosine < 0.999


def test_fidelity_of_exact_rows_is_1_with_dropout_too():
    model = make("llama")
    for layer in model.model.layers:
        # After the MLP, where it changes every gradient.
        layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.3))
    with ft.attach(model, keep=1.0) as sparse:
        told = fidelity(sparse, batch())
    assert told.cosine == pytest.approx(1, abs=1e-12)
    assert told.norm_ratio == 1


def test_fidelity_leaves_everything_as_it_was():
    model, inputs = make("llama"), batch(answers=5)
    with ft.attach(model, saliency="random", **SPARSE) as sparse:
        model(**inputs).loss.backward()
        held = {name: p.grad for name, p in model.named_parameters()}
        copies = {name: g.clone() for name, g in held.items()}
        settings, state = sparse.settings, torch.get_rng_state()
        first = fidelity(sparse, inputs)
        # The rule that draws has not moved on either.
        assert fidelity(sparse, inputs) == first
        assert sparse.settings is settings
        assert torch.equal(torch.get_rng_state(), state)
        assert report_of(sparse.ledger, settings).backward == "sparse"
    for name, parameter in model.named_parameters():
        assert parameter.grad is held[name]
        assert torch.equal(parameter.grad, copies[name])


def test_fidelity_with_a_loss_of_ones_own():
    model, inputs = make("llama"), batch(answers=5)
    ids = {name: x for name, x in inputs.items() if name != "labels"}
    with ft.attach(model, loss="model", **SPARSE) as sparse, sparse.labels(inputs["labels"]):
        told = fidelity(sparse, ids, loss=lambda output: output.logits[:, -5:].square().mean())
    assert 0.1 < told.cosine < 0.999


def test_what_fidelity_refuses():
    model, inputs = make("llama"), batch(answers=5)
    ids = {name: x for name, x in inputs.items() if name != "labels"}
    with ft.attach(model, **SPARSE) as sparse:
        with pytest.raises(InputError, match="labels"):
            fidelity(sparse, ids)
        assert all(p.grad is None for p in model.parameters())
        model.eval()
        with pytest.raises(InputError, match="training mode"):
            fidelity(sparse, inputs)
