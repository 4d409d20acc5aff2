"""The backward against gradient checkpointing (bit for bit) and against a plain reference."""

from __future__ import annotations

import pytest
import torch

from apportion import finetune as ft
from apportion import models
from finetune.reference import detached, given_back
from finetune.tiny import ARCHITECTURES, MIXTURES, batch, gradients, make

EVERY = [*ARCHITECTURES, *MIXTURES]
PAIRS = [
    (kind, attention)
    for kind in EVERY
    for attention in ("sdpa", "eager")
    if (kind, attention) != ("gemma2", "sdpa")  # transformers has none
]


def checkpointed(model, inputs):
    """Loss and gradients with transformers' own checkpointing."""
    with models.checkpointed(model):
        loss = model(**inputs, use_cache=False).loss
        return loss.detach(), gradients(model, loss)


def attached(model, inputs, **settings):
    """Loss and gradients with ours, and its step; the second, as the first one learns."""
    with ft.attach(model, **settings) as sparse:
        state = torch.get_rng_state()
        gradients(model, model(**inputs).loss)
        torch.set_rng_state(state)
        loss = model(**inputs).loss
        found = gradients(model, loss)
        return loss.detach(), found, sparse.ledger.step


def assert_close(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=1e-12)
        worst = float((found[name] - gradient).abs().max() / scale)
        assert worst <= tolerance, f"{name}: {worst}"


@pytest.mark.parametrize(("kind", "attention"), PAIRS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_keep_1_is_gradient_checkpointing_bit_for_bit(kind, attention, side):
    model, inputs = make(kind, attention=attention), batch(side=side)
    loss, expected = checkpointed(model, inputs)
    ours, found, _ = attached(model, inputs, keep=1.0, loss="model")
    assert torch.equal(ours, loss)
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("kind", "attention"), PAIRS)
@pytest.mark.parametrize("side", ["right", "left", "whole"])
def test_sparse_is_the_detached_reference(kind, attention, side):
    # Eager attention's masks overflow in float64, and its softmax is float32.
    dtype, tolerance = (torch.float64, 1e-9) if attention == "sdpa" else (torch.float32, 2e-5)
    if kind == "gemma3_text":
        tolerance = 2e-5  # its norms compute in float32
    model = make(kind, dtype, attention)
    # Without padding, attention gets no mask at all, and causality is ours to rebuild.
    inputs = batch((23, 23), answers=5) if side == "whole" else batch(side=side, answers=5)
    settings = {"keep": 0.4, "rest": "drop", "backward": "sparse", "loss": "model"}
    loss, found, step = attached(model, inputs, **settings)
    assert step.kept.shape == (2, 10)  # of 23 rows
    assert torch.equal(loss, model(**inputs, use_cache=False).loss.detach())
    with detached(model, [step.kept] * 3):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert_close(found, expected, tolerance)


# Mixtures of experts send every row to the experts that it had, and the reference asks again.
@pytest.mark.parametrize(("kind", "attention"), [p for p in PAIRS if p[0] not in MIXTURES])
@pytest.mark.parametrize("backward", ["sparse", "full"])
@pytest.mark.parametrize("bits", [4, 8])
def test_few_bits_are_the_reference_given_what_they_give_back(kind, attention, backward, bits):
    dtype, tolerance = (torch.float64, 1e-9) if attention == "sdpa" else (torch.float32, 2e-5)
    if kind == "gemma3_text":
        tolerance = 2e-5
    model, inputs = make(kind, dtype, attention), batch(answers=5)
    settings = {"keep": 0.4, "rest": f"{bits}bit", "backward": backward, "loss": "model"}
    loss, found, step = attached(model, inputs, **settings)
    assert torch.equal(loss, model(**inputs, use_cache=False).loss.detach())

    every = torch.arange(23).expand(2, -1)
    rows = step.kept if backward == "sparse" else every
    assert rows.shape[1] == (10 if backward == "sparse" else 23)
    with detached(model, [rows] * 3, given_back(step, bits)):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert_close(found, expected, tolerance)


def test_dropped_rows_with_loss_keep_their_gradient_along_the_residual():
    # More rows carry loss than are kept, so what is dropped has a gradient to pass on.
    model, inputs = make("llama", torch.float64), batch((23, 23))
    settings = {"keep": 0.4, "rest": "drop", "backward": "sparse", "loss": "model"}
    _, found, step = attached(model, inputs, **settings)
    with detached(model, [step.kept] * 3):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert_close(found, expected, 1e-9)
