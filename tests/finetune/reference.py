"""The sparse backward written out plainly: everything is computed, what is dropped is detached.

    y = x + f(x),  f seen by the backward only at the kept rows

Keys and values of the other rows are constants where those rows are dropped; where they are stored
in few bits, gradients also flow through them, and f starts from what the bits give back. Nothing is
saved and nothing is faster; it only has to be obviously right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from apportion.finetune.step import Step
from apportion.finetune.store import keep_packed

NAME = "detached_reference"
# What a layer's backward starts from in place of its input: the same values, or those that few bits
# give back.
Substitute = Callable[[Tensor], Tensor]


@contextmanager
def detached(
    model: nn.Module, kept: Sequence[Tensor], stored: Substitute | None = None
) -> Iterator[None]:
    """Give every layer of `model` the plain sparse backward.

    Args:
        model: a tiny decoder.
        kept: the rows of each layer, (batch, kept).
        stored: what a layer's backward starts from in place of its input; None: rows outside the
            kept ones are dropped, but for their keys and values.
    """
    layers = model.model.layers
    own = model.config._attn_implementation
    inside = {id(layer): None for layer in layers}

    def attention(module, query, key, value, mask, **options):
        if stored is not None:
            return _own(own, module)(module, query, key, value, mask, **options)
        row = inside["now"][:, None, :, None]
        key = torch.where(row, key, key.detach())
        value = torch.where(row, value, value.detach())
        return _own(own, module)(module, query, key, value, mask, **options)

    def run(layer, rows):
        def checkpoint(call, x, *rest):
            member = torch.zeros(x.shape[:2], dtype=torch.bool).scatter(1, rows, True)
            inside["now"] = member
            row = member[:, :, None]
            if stored is None:
                start = torch.where(row, x, x.detach())
            else:
                start = x + (stored(x) - x).detach()
                # The forward is exact; what it draws is drawn once more.
                with torch.no_grad(), torch.random.fork_rng():
                    exact = call(x, *rest)
            branch = call(start, *rest) - start
            found = x + torch.where(row, branch, branch.detach())
            return found if stored is None else found + (exact - found).detach()

        return checkpoint

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS[own])
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    for config in configs.values():
        config._attn_implementation = NAME
    for layer, rows in zip(layers, kept, strict=True):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = run(layer, rows)
    try:
        yield
    finally:
        for config in configs.values():
            config._attn_implementation = own
        for layer in layers:
            del layer.gradient_checkpointing, layer._gradient_checkpointing_func


def given_back(step: Step, bits: int) -> Substitute:
    """What the ladder of a step gives back, where all layers share its exact rows."""

    def stored(x: Tensor) -> Tensor:
        exact = step.exact_for(None)
        return keep_packed(x.detach(), exact, bits, step.fine_for(exact)).rows()

    return stored


def _own(name: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[name]
