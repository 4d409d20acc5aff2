"""Tiny decoders beyond those of `finetune.tiny`: scaled positions, layers without, refused ones."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from finetune import tiny

_THETA = {"rope_theta": 10_000.0}
_PAIRS = 6  # of numbers in a head of 12

# One that never reaches its scaling would test nothing: reads go past 16 and 32 positions.
SCALED: dict[str, tuple[str, dict[str, object]]] = {
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **_THETA}}),
    "dynamic": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **_THETA},
            "max_position_embeddings": 16,
        },
    ),
    "yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                **_THETA,
            }
        },
    ),
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                **_THETA,
            }
        },
    ),
    "longrope": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0 + 0.1 * k for k in range(_PAIRS)],
                "long_factor": [1.5 + 0.5 * k for k in range(_PAIRS)],
                "original_max_position_embeddings": 16,
                **_THETA,
            },
            "original_max_position_embeddings": 16,
        },
    ),
    "kinds of layers": (
        "gemma3_text",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, **_THETA},
            }
        },
    ),
}

OTHERS: dict[str, tuple[str, dict[str, object]]] = {
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "smollm3 sliding": (
        "smollm3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 6},
    ),
    "exaone4": (
        "exaone4",
        {
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5}),
    "granite": ("granite", {"attention_multiplier": 0.2}),
    "olmo2": ("olmo2", {}),
    "mixtral": ("mixtral", dict(tiny.MIXTURES["mixtral"])),
}

# Learned positions, ALiBi, pairs of neighbours, sinks of their own, latent attention, a state
# beside the attention, two attentions in a layer.
REFUSED: dict[str, dict[str, object]] = {
    "gpt2": {},
    "opt": {"word_embed_proj_dim": 48, "ffn_dim": 80},
    "bloom": {},
    "mpt": {"d_model": 48, "n_heads": 4, "n_layers": 3, "max_seq_len": 128},
    "glm": {},
    "cohere": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 80},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "diffllama": {},
}


def build(name: str, **more: object) -> nn.Module:
    """A tiny decoder in eval mode, by a name of `finetune.tiny` or of the tables above."""
    if name in tiny.ARCHITECTURES:
        # Only eager attention caps scores, so only there the model itself does.
        return tiny.make(name, attention="eager" if name == "gemma2" else "sdpa", **more).eval()
    named = {**SCALED, **OTHERS, **{kind: (kind, own) for kind, own in REFUSED.items()}}
    kind, own = named[name]
    config = AutoConfig.for_model(kind, **{**_common(kind), **own, **more})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention_of(name), experts_implementation="eager"
    )
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "embed" not in key:
                parameter.mul_(3.0)
    return model.eval()


def attention_of(name: str) -> str:
    """Some kinds know no fused attention."""
    return "eager" if name in ("bloom", "mpt", "gpt_oss") else "sdpa"


def _common(kind: str) -> dict[str, object]:
    known = dict(tiny._COMMON)
    known.update(tiny.ARCHITECTURES.get(kind, {}))
    if kind in ("gpt2", "opt", "bloom", "mpt", "gpt_neox", "deepseek_v3"):
        # Their sizes have other names, or follow from these.
        known.pop("head_dim")
        known.pop("num_key_value_heads")
    if kind == "mpt":
        for key in ("hidden_size", "num_attention_heads", "num_hidden_layers",
                    "intermediate_size", "max_position_embeddings"):  # fmt: skip
            known.pop(key)
    return known
