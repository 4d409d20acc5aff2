"""Tiny decoders of several architectures, made offline from a config, and batches for them."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 97
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}

ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {**_SLIDING, "query_pre_attn_scalar": 12},
    "gemma2": {**_SLIDING, "query_pre_attn_scalar": 12},
    "phi3": {},
    "phi": {"partial_rotary_factor": 0.5},
}
MIXTURES: dict[str, dict[str, object]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
}


def make(
    kind: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa", seed: int = 0, **more
) -> nn.Module:
    """A tiny model in training mode."""
    torch.manual_seed(seed)
    known = {**ARCHITECTURES, **MIXTURES}[kind]
    config = AutoConfig.for_model(kind, **{**_COMMON, **known, **more})
    # Grouped matrix products of the experts know no float64.
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, experts_implementation="eager"
    )
    # Norms that are all ones and a tiny init hide mistakes; spread the weights out.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "embed" not in name:
                parameter.mul_(3.0)
    return model.to(dtype).train()


def batch(
    sizes: tuple[int, ...] = (23, 17),
    side: str = "right",
    answers: int | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Padded samples of the given lengths; the last `answers` tokens labelled, or all."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(sizes)
    shape = (len(sizes), longest)
    ids = torch.randint(3, VOCABULARY, shape, generator=generator)
    mask = torch.zeros(shape, dtype=torch.int64)
    for row, size in enumerate(sizes):
        at = slice(0, size) if side == "right" else slice(longest - size, longest)
        mask[row, at] = 1
    ids = torch.where(mask == 1, ids, 0)
    labels = torch.where(mask == 1, ids, -100)
    if answers is not None:
        for row, size in enumerate(sizes):
            end = size if side == "right" else longest
            labels[row, : end - answers] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of all trainable parameters after a backward from `loss`."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is not None
    }
