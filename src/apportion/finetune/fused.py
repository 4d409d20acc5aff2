"""The loss by a GPU kernel of another library, where there are both a GPU and the library.

Liger's fused linear cross-entropy, else Cut Cross Entropy: neither ever holds all logits, and both
take one pass where a chunk of ours takes several kernels. They want an ordinary linear head. Cut
Cross Entropy computes in 16 bits and knows no label smoothing, so all else keeps to the chunks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Fused = Callable[[Tensor, Tensor], Tensor]
HALVES = (torch.float16, torch.bfloat16)


def fused_loss(
    linear: torch.nn.Module, softcap: float, smoothing: float, dtype: torch.dtype, device: str
) -> Fused | None:
    """From normed rows and their targets to the sum of the losses; None: nothing to use.

    Args:
        linear: the head.
        softcap: of the logits; 0: none.
        smoothing: of the labels.
        dtype: of the normed rows.
        device: type of the device that they are on.
    """
    if device != "cuda" or type(linear) is not torch.nn.Linear:
        return None
    liger = _find("liger_kernel.transformers", "LigerFusedLinearCrossEntropyLoss")
    if liger is not None:
        return _with_liger(liger, linear, softcap, smoothing)
    cut = _find("cut_cross_entropy", "linear_cross_entropy")
    if cut is not None and smoothing == 0 and dtype in HALVES:
        return _with_cut(cut, linear, softcap, dtype)
    return None


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _with_liger(liger: Any, linear: torch.nn.Linear, softcap: float, smoothing: float) -> Fused:
    kernel = liger(label_smoothing=smoothing, reduction="sum", softcap=softcap or None)

    def loss(rows: Float[Tensor, "rows width"], wanted: Int[Tensor, " rows"]) -> Float[Tensor, ""]:
        return kernel(linear.weight.to(rows.dtype), rows, wanted, linear.bias)

    return loss


def _with_cut(cut: Any, linear: torch.nn.Linear, softcap: float, dtype: torch.dtype) -> Fused:
    def loss(rows: Float[Tensor, "rows width"], wanted: Int[Tensor, " rows"]) -> Float[Tensor, ""]:
        own: Any = linear.bias  # which may be None, whatever torch declares
        bias = None if own is None else own.to(dtype)
        return cut(
            rows,
            linear.weight.to(dtype),
            wanted,
            bias=bias,
            softcap=softcap or None,
            reduction="sum",
        )

    return loss
