"""Gradient checkpointing of transformers, by the name that the installed release has for it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from apportion.errors import InputError

# Newer releases call it activation checkpointing, and warn of the older name.
NAME = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if hasattr(PreTrainedModel, f"{name}_enable")
)
"""Of the training argument; methods of a model begin with it."""


@contextmanager
def checkpointed(model: Any) -> Generator[None]:
    """A model that recomputes every layer from its exact input; afterwards it does not."""
    getattr(model, f"{NAME}_enable")()
    try:
        yield
    finally:
        getattr(model, f"{NAME}_disable")()


def check_sharding(layers: list[nn.Module]) -> None:
    """Refuse layers sharded by FSDP2 where transformers would gather their weights twice.

    Older releases run a module's hooks inside of what is recomputed; the second run then gives
    gradients to weights that are no longer looked at.

    Raises:
        InputError: such layers, and such a release.
    """
    if "__call__" not in vars(GradientCheckpointingLayer) or not torch.distributed.is_available():
        return
    from torch.distributed.fsdp import FSDPModule

    if any(isinstance(layer, FSDPModule) for layer in layers):
        raise InputError(
            "expected a newer transformers for layers sharded by FSDP2, got "
            f"{transformers.__version__}, which recomputes a layer's hooks with it; "
            "run: pip install --upgrade transformers"
        )
