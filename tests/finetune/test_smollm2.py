"""The real SmolLM2-135M on real text: gradients, bytes, and that a step still learns."""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data import topics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion import finetune as ft
from apportion import models

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import smollm2

LENGTH = 96


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(smollm2.folder(), dtype=torch.float32).train()


@pytest.fixture(scope="module")
def inputs():
    tokenizer = AutoTokenizer.from_pretrained(smollm2.folder())
    ids = torch.tensor(tokenizer(topics.topics["class"])["input_ids"][:LENGTH])[None]
    labels = torch.where(torch.arange(LENGTH) >= LENGTH - 18, ids, -100)
    return {"input_ids": ids, "labels": labels}


@pytest.fixture(scope="module")
def exact(model, inputs):
    """Gradients of all layers with transformers' own checkpointing."""
    with models.checkpointed(model):
        return layers(model, model(**inputs, use_cache=False).loss)


def layers(model, loss) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.model.layers.parameters()]).double()


def attached(model, inputs, **settings) -> tuple[torch.Tensor, float]:
    """Gradients of all layers, and stored bytes beside those of checkpointing."""
    with ft.attach(model, **settings) as sparse:
        found = layers(model, model(**inputs).loss)
        share = sum(sparse.ledger.stored.values()) / sum(sparse.ledger.dense.values())
    return found, share


def test_keep_1_is_gradient_checkpointing_bit_for_bit(model, inputs, exact):
    found, share = attached(model, inputs, keep=1.0, loss="model")
    assert torch.equal(found, exact)
    assert share == 1.0


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({"backward": "full", "rest": "4bit"}, 0.99, 0.23),
        ({"backward": "full", "rest": "8bit"}, 0.999, 0.32),
        ({"keep": 0.25, "backward": "sparse"}, 0.70, 0.40),
        ({"keep": 0.5, "backward": "sparse"}, 0.85, 0.61),
    ],
)
def test_gradients_are_near_the_exact_ones(model, inputs, exact, settings, least, most):
    found, share = attached(model, inputs, **settings)
    assert float(torch.cosine_similarity(found, exact, dim=0)) > least
    assert share < most


def test_rows_with_loss_and_saliency_beat_random_rows(model, inputs, exact):
    found = {
        rule: attached(model, inputs, keep=0.3, backward="sparse", saliency=rule)[0]
        for rule in ("attention", "random")
    }
    cosines = {rule: torch.cosine_similarity(g, exact, dim=0) for rule, g in found.items()}
    assert cosines["attention"] > cosines["random"]
