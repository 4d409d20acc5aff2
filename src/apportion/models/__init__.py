"""The package that knows transformers: where a model's parts are, its attention, its files.

What is relied on, all of it public in transformers 5: decoder layers derive from
`GradientCheckpointingLayer` and run through their `_gradient_checkpointing_func` when they train;
attention and its mask are looked up by name in two registries.
"""

from __future__ import annotations

from apportion.models.checkpointing import NAME as CHECKPOINTING
from apportion.models.checkpointing import check_sharding, checkpointed
from apportion.models.files import adapted, fill, load, outline, quietly, save
from apportion.models.find import (
    arguments_of,
    check_no_state,
    decoder_layers,
    decoder_of,
    final_norm,
    final_softcap,
    implementation,
    output_head,
    positions,
    routes_experts,
    row_size,
    stop_ids,
    tensor_device,
    unwrap,
    windows,
)
from apportion.models.identity import config_of, dtype_of, fingerprint
from apportion.models.rotary import Rotary, RotaryTable, Turns, rotate, turned, turns
from apportion.models.routing import RoutedAttention, attention_of

__all__ = [
    "CHECKPOINTING",
    "Rotary",
    "RotaryTable",
    "RoutedAttention",
    "Turns",
    "adapted",
    "arguments_of",
    "attention_of",
    "check_no_state",
    "check_sharding",
    "checkpointed",
    "config_of",
    "decoder_layers",
    "decoder_of",
    "dtype_of",
    "fill",
    "final_norm",
    "final_softcap",
    "fingerprint",
    "implementation",
    "load",
    "outline",
    "output_head",
    "positions",
    "quietly",
    "rotate",
    "routes_experts",
    "row_size",
    "save",
    "stop_ids",
    "tensor_device",
    "turned",
    "turns",
    "unwrap",
    "windows",
]
