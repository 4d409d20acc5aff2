"""The file that knows transformers: where a model's layers, norm and head are, and its attention.

What is relied on, all of it public in transformers 5: decoder layers derive from
`GradientCheckpointingLayer` and run through their `_gradient_checkpointing_func` when they train;
attention is looked up by `config._attn_implementation` in `ALL_ATTENTION_FUNCTIONS`, its mask in
`ALL_MASK_ATTENTION_FUNCTIONS`. A registered attention without a mask function of the same name gets
no mask at all, so both are registered together.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from apportion.errors import InputError

PREFIX = "apportion_"
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


class RoutedAttention:
    """The model's attention under a name of ours, until `restore`.

    Attributes:
        original: the implementation that the model was loaded with.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Callable[[Callable[[nn.Module], Callable[..., Any]]], Callable[..., Any]],
    ) -> None:
        """Register and switch over.

        Args:
            model: unwrapped.
            make: gets a function from a module to the attention that it would have called, and
                returns the attention to register.
        """
        self.original = implementation(model)
        self.name = PREFIX + self.original
        self._configs = _configs(model, self.original)
        AttentionInterface.register(self.name, make(self._own))
        if self.original in ALL_MASK_ATTENTION_FUNCTIONS:
            mask = ALL_MASK_ATTENTION_FUNCTIONS[self.original]
            AttentionMaskInterface.register(self.name, mask)
        for config in self._configs:
            config._attn_implementation = self.name

    def _own(self, module: nn.Module) -> Callable[..., Any]:
        """What `module` would have called: `eager` is a function of its own file."""
        if self.original == "eager":
            return sys.modules[type(module).__module__].eager_attention_forward
        return ALL_ATTENTION_FUNCTIONS[self.original]

    def restore(self) -> None:
        """Give the model its own attention back. The registered name stays: others may use it."""
        for config in self._configs:
            config._attn_implementation = self.original


def _configs(model: nn.Module, implementation: str) -> list[Any]:
    """Every config that a module of the model looks at, once each."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == implementation:
            found[id(config)] = config
    return list(found.values())


def has_dense_weights(module: nn.Module) -> bool:
    """Whether a module is an ordinary linear layer, neither quantised nor adapted."""
    return type(module) is nn.Linear


def tensor_device(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next(model.parameters()).device
