"""Where a model's layers, norm and head are, and what its config says of them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from apportion.errors import InputError

NORM_NAMES = ("norm", "final_layernorm", "ln_f", "final_norm", "norm_f")


def unwrap(model: nn.Module) -> nn.Module:
    """The Hugging Face model inside wrappers (data parallelism, compilation, PEFT)."""
    while True:
        inner: Any = getattr(model, "_orig_mod", None)
        if inner is None and hasattr(model, "get_base_model"):
            outer: Any = model
            inner = outer.get_base_model()
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of the text decoder, in order.

    Args:
        model: unwrapped.

    Raises:
        InputError: the model has none with the hook of gradient checkpointing.
    """
    decoder = decoder_of(model)
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module):
            layers = list(module)
            if all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
                return layers
    raise InputError(
        f"expected a model whose decoder layers have the hook of gradient checkpointing "
        f"(transformers.modeling_layers.GradientCheckpointingLayer), got {type(model).__name__}, "
        "which has none; a decoder of transformers such as Llama, Mistral, Qwen, Gemma or Phi works"
    )


def decoder_of(model: nn.Module) -> nn.Module:
    """The part of the model from token ids to last hidden states."""
    find = getattr(model, "get_decoder", None)
    found = find() if callable(find) else None
    if isinstance(found, nn.Module) and found is not model:
        return found
    inner = getattr(model, getattr(model, "base_model_prefix", ""), None)
    return inner if isinstance(inner, nn.Module) else model


def final_norm(model: nn.Module) -> nn.Module | None:
    """The norm after the last layer; None where it can't be told."""
    decoder = decoder_of(model)
    for name in NORM_NAMES:
        found = getattr(decoder, name, None)
        if isinstance(found, nn.Module):
            return found
    return None


def output_head(model: nn.Module) -> nn.Module | None:
    """The module from hidden states to logits; None for a model without one."""
    find = getattr(model, "get_output_embeddings", None)
    found = find() if callable(find) else None
    return found if isinstance(found, nn.Module) else None


def final_softcap(model: nn.Module) -> float:
    """The cap on the logits that the model's config states; 0: none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return float(getattr(text, "final_logit_softcapping", None) or 0.0)


def implementation(model: nn.Module) -> str:
    """The attention that the model was loaded with: "sdpa", "eager", "flash_attention_2", ..."""
    config: Any = model.config
    return config._attn_implementation


def routes_experts(layer: nn.Module) -> bool:
    """Whether a layer holds a mixture of experts."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(hasattr(module, name) for module in layer.modules() for name in names)


def arguments_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model's `forward` by their names."""
    names = list(inspect.signature(unwrap(model).forward).parameters)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def row_size(model: nn.Module) -> tuple[int, int]:
    """Width of the hidden states, and bytes of a number of theirs."""
    outer: Any = model
    weight = outer.get_input_embeddings().weight
    return weight.shape[-1], weight.element_size()


def tensor_device(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next(model.parameters()).device


def positions(model: nn.Module) -> int | None:
    """The most tokens that the model's positions reach; None where its config says nothing."""
    config: Any = getattr(unwrap(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = getattr(text, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def check_no_state(model: nn.Module) -> None:
    """A model knows of earlier tokens by attention alone.

    Raises:
        InputError: it keeps a state beside, as state-space models and linear attention do.
    """
    if getattr(model, "_is_stateful", False):
        raise InputError(
            f"expected a model that knows of earlier tokens by attention alone, as Llama, Mistral, "
            f"Qwen, Gemma and Phi models do; {type(model).__name__} keeps a state beside it, which "
            "would be lost between chunks"
        )


def windows(model: nn.Module) -> list[int | None]:
    """Of every decoder layer, how many tokens its attention looks back, itself among them.

    None: all. A model that states a window for some kinds of its layers has it in the others' too
    in its config, so the layers' kinds and their own attributes come first.
    """
    found: list[int | None] = []
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    for number, layer in enumerate(decoder_layers(model)):
        own = [
            m for m in layer.modules() if hasattr(m, "layer_idx") and hasattr(m, "sliding_window")
        ]
        if kinds is not None and kinds[number] == "full_attention":
            value: Any = None
        elif own:
            value = own[0].sliding_window
        elif kinds is not None:
            value = window if kinds[number] == "sliding_attention" else None
        else:
            value = window
        found.append(value if isinstance(value, int) else None)
    return found


def stop_ids(model: nn.Module, tokenizer: Any = None) -> set[int]:
    """Token ids that end what is generated."""
    sources = [getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer]
    out: set[int] = set()
    for source in sources:
        value: Any = getattr(source, "eos_token_id", None)
        out.update([value] if isinstance(value, int) else value or ())
    return out
