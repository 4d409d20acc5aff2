"""Attention that can be watched, stopped, and given keys and values from elsewhere.

The model's own attention function is registered a second time under a name of ours; what it does
depends on the route that the current thread is on:

- none: the model's own attention, unchanged.
- `Watch` (forward): the same, and queries, keys and values are noted for saliency.
- `Stop` (backward, rows outside the kept ones): keys and values are noted and the layer is left at
  once: neither attention nor MLP is computed for rows whose keys and values are all that is needed.
- `Join` (backward, kept rows): the kept queries see their own keys, through which gradients flow,
  and those of all other rows, which are constants; the mask is cut to match.

Keys may come in any order as long as the mask's columns follow: the others first, then the kept,
so that joining is one concatenation and its gradient a slice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.errors import InputError
from apportion.finetune.rows import take

Attention = Callable[..., tuple[Tensor, Tensor | None]]
# Implementations whose mask is a dense tensor, which can be cut to some queries.
DENSE_MASKS = ("eager", "sdpa")


class Stopped(BaseException):
    """Leaves a layer once keys and values are known; never reaches the user."""


@dataclass
class Seen:
    """What the attention of a layer was called with.

    Attributes:
        query: (batch, heads, rows, head size), after position embeddings.
        key, value: (batch, key heads, rows, head size).
        mask: (batch or 1, heads or 1, rows, keys), added or boolean; None: causal.
        options: what else the model passes, `scaling` and `softcap` among it.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]


@dataclass
class Watch:
    """Note what attention sees."""

    seen: Seen | None = None


@dataclass
class Stop:
    """Note keys and values, then leave the layer."""

    seen: Seen | None = None


@dataclass
class Join:
    """Answer kept queries from all keys.

    Attributes:
        kept, others: the rows of the queries, and the rows that `key` and `value` belong to.
        key, value: (batch, key heads, others, head size), constants.
    """

    kept: Int[Tensor, "batch kept"]
    others: Int[Tensor, "batch others"]
    key: Float[Tensor, "batch heads others size"]
    value: Float[Tensor, "batch heads others size"]


Route = Watch | Stop | Join
_local = threading.local()


@contextmanager
def on(route: Route | None) -> Generator[None]:
    """Put this thread's attention on a route."""
    before = getattr(_local, "route", None)
    _local.route = route
    try:
        yield
    finally:
        _local.route = before


def routed(own: Callable[[torch.nn.Module], Attention]) -> Attention:
    """Attention with routes around the model's own.

    Args:
        own: gives the attention function that a module would have called.
    """

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        route = getattr(_local, "route", None)
        if route is None:
            return own(module)(module, query, key, value, attention_mask, **options)
        if isinstance(route, Join):
            key, value, attention_mask = _join(route, key, value, attention_mask)
            return own(module)(module, query, key, value, attention_mask, **options)
        mask = attention_mask if isinstance(attention_mask, Tensor) else None
        route.seen = Seen(query, key, value, mask, options)
        if isinstance(route, Stop):
            raise Stopped
        return own(module)(module, query, key, value, attention_mask, **options)

    return attention


def _join(
    route: Join, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    columns = torch.cat([route.others, route.kept], dim=1)
    return (
        torch.cat([route.key.to(key.dtype), key], dim=2),
        torch.cat([route.value.to(value.dtype), value], dim=2),
        mask_of(mask, route.kept, columns),
    )


def mask_of(
    mask: Tensor | None, rows: Int[Tensor, "batch rows"], columns: Int[Tensor, "batch columns"]
) -> Tensor:
    """The mask of some queries and keys, each sample its own.

    Args:
        mask: as the model made it for all rows; None: causal.
        rows, columns: the queries and the keys.

    Returns:
        (batch, heads or 1, rows, columns), boolean or added like `mask`.
    """
    if mask is None:
        return (rows[:, None, :, None] >= columns[:, None, None, :]).contiguous()
    return take(take(mask, rows, dim=2), columns, dim=3)


def check_sparse(implementation: str, layer: torch.nn.Module) -> None:
    """Refuse what a backward over some rows can't reproduce.

    Raises:
        InputError: attention without a dense mask, or dropout inside attention.
    """
    if implementation not in DENSE_MASKS:
        raise InputError(
            f"expected attention 'sdpa' or 'eager' for a sparse backward, got {implementation!r}, "
            "whose mask can't be cut to some rows; load the model with "
            "attn_implementation='sdpa', or use backward='full'"
        )
    for name, module in layer.named_modules():
        share = getattr(module, "attention_dropout", 0.0)
        share = share.p if isinstance(share, torch.nn.Dropout) else share
        if isinstance(share, float) and share > 0:
            raise InputError(
                f"expected no dropout inside attention for a sparse backward, got "
                f"attention_dropout={share:g} in {name or type(layer).__name__}; set the model's "
                "config.attention_dropout = 0 before loading it, or use backward='full'"
            )
