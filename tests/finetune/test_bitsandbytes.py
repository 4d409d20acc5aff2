"""LoRA over 4-bit base weights: the same gradients as with checkpointing and by the reference."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from finetune.reference import detached
from finetune.test_checkpoint import assert_close, attached, checkpointed
from finetune.tiny import batch, gradients, make

pytest.importorskip("bitsandbytes", reason="bitsandbytes has no build for this machine")
SPARSE = {"keep": 0.4, "backward": "sparse", "rest": "drop", "choose": "start", "loss": "model"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny Llama, loaded in 4 bits as a user would, with adapters."""
    folder = tmp_path_factory.mktemp("base")
    make("llama", hidden_size=64, head_dim=16, intermediate_size=128).save_pretrained(folder)
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    base = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, dtype=torch.float32, device_map="cpu"
    )
    adapters = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks for an attribute by its older name
        return get_peft_model(base, adapters).train()


def test_its_weights_are_in_4_bits(model):
    weight = model.get_base_model().model.layers[0].mlp.down_proj.base_layer.weight
    assert type(weight).__name__ == "Params4bit"
    assert weight.dtype == torch.uint8


def test_keep_1_is_gradient_checkpointing_bit_for_bit(model):
    inputs = batch((23, 17), answers=6)
    _, expected = checkpointed(model, inputs)
    _, found, _ = attached(model, inputs, keep=1.0, loss="model")
    assert set(found) == set(expected)
    assert all("lora" in name for name in found)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_sparse_is_the_detached_reference(model):
    inputs = batch((23, 17), answers=6)
    _, found, step = attached(model, inputs, **SPARSE)
    assert step.kept.shape[1] < 23
    with detached(model.get_base_model(), [step.kept] * 3):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert_close(found, expected, 1e-4)
