"""Attention under a name of ours.

Attention is looked up by `config._attn_implementation` in `ALL_ATTENTION_FUNCTIONS`, its mask in
`ALL_MASK_ATTENTION_FUNCTIONS`. A registered attention without a mask function of the same name gets
no mask at all, so both are registered together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from apportion.errors import InputError
from apportion.models.find import implementation

PREFIX = "apportion_"


class RoutedAttention:
    """The model's attention under a name of ours, until `restore`.

    Attributes:
        original: the implementation that the model was loaded with.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Callable[[Callable[[nn.Module], Callable[..., Any]]], Callable[..., Any]],
        unmasked: bool = False,
    ) -> None:
        """Register and switch over.

        Args:
            model: unwrapped.
            make: gets a function from a module to the attention that it would have called, and
                returns the attention to register.
            unmasked: it knows by itself what is seen, and no mask is made for it.
        """
        self.original = implementation(model)
        self.name = PREFIX + ("unmasked_" if unmasked else "") + self.original
        self._configs = _configs(model, self.original)
        AttentionInterface.register(self.name, make(self._own))
        if unmasked:
            AttentionMaskInterface.register(self.name, _no_mask)
        elif self.original in ALL_MASK_ATTENTION_FUNCTIONS:
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


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def _configs(model: nn.Module, implementation: str) -> list[Any]:
    """Every config that a module of the model looks at, once each."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == implementation:
            found[id(config)] = config
    return list(found.values())


def attention_of(layer: nn.Module) -> nn.Module:
    """The self-attention of a decoder layer: the module that knows the layer's number.

    Raises:
        InputError: there is none.
    """
    for module in layer.modules():
        if module is not layer and hasattr(module, "layer_idx") and hasattr(module, "config"):
            return module
    raise InputError(
        f"expected decoder layers with self-attention as in transformers 5 (a module with "
        f"layer_idx and config), got {type(layer).__name__} without"
    )
