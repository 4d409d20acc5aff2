"""What a layer keeps for its backward: a ladder of exact rows, rows in few bits, and nothing.

Everything is handed to autograd as a flat list of tensors, so that it is freed with the graph and
seen by saved-tensor hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.finetune.lowbit import Packed, pack
from apportion.finetune.rows import others, put, take

_PACKED = ("codes", "scale", "offset", "units", "channels", "exact")
# Bits of the middle rung.
FINE_BITS = 8


@dataclass(frozen=True)
class Kept:
    """A layer's rows.

    Attributes:
        length: rows a sample.
        exact: the exact rows, in the model's dtype; all of them where `index` is None.
        index: which rows those are.
        fine: rows in 8 bits, between the exact and the others; None: there are none.
        fine_index: which rows those are.
        packed: the other rows in few bits; None: dropped.
        key, value: of the other rows where those are dropped, (batch, key heads, others, size).
    """

    length: int
    exact: Float[Tensor, "batch exact width"]
    index: Int[Tensor, "batch exact"] | None = None
    fine: Packed | None = None
    fine_index: Int[Tensor, "batch fine"] | None = None
    packed: Packed | None = None
    key: Tensor | None = None
    value: Tensor | None = None

    def rows(self) -> Float[Tensor, "batch length width"]:
        """All rows, those in few bits unpacked."""
        if self.index is None:
            return self.exact
        assert self.packed is not None
        batch, _, width = self.exact.shape
        x = self.exact.new_empty(batch, self.length, width)
        put(x, self.index, self.exact)
        above = self.index
        if self.fine is not None and self.fine_index is not None:
            put(x, self.fine_index, self.fine.unpack())
            above = torch.cat([above, self.fine_index], dim=1)
        return put(x, others(above, self.length), self.packed.unpack())

    def split(self) -> tuple[Layout, list[Tensor]]:
        """The tensors, and what `Layout.join` needs to put them together again."""
        names = ("exact", "index", "fine_index", "key", "value")
        tensors = {name: getattr(self, name) for name in names}
        bits = {}
        for rung in ("fine", "packed"):
            packed: Packed | None = getattr(self, rung)
            if packed is not None:
                tensors |= {f"{rung}.{name}": getattr(packed, name) for name in _PACKED}
                bits[rung] = packed.bits
        held = {name: x for name, x in tensors.items() if x is not None}
        return Layout(self.length, tuple(held), self.exact.shape[-1], bits), list(held.values())


@dataclass(frozen=True)
class Layout:
    """A `Kept` without its tensors."""

    length: int
    names: tuple[str, ...]
    width: int
    bits: dict[str, int]

    def join(self, tensors: Sequence[Tensor]) -> Kept:
        """Put the tensors of `Kept.split` together again."""
        named = dict(zip(self.names, tensors, strict=True))
        rungs = {
            rung: Packed(*(named[f"{rung}.{name}"] for name in _PACKED), width=self.width, bits=n)
            for rung, n in self.bits.items()
        }
        return Kept(
            self.length,
            named["exact"],
            named.get("index"),
            rungs.get("fine"),
            named.get("fine_index"),
            rungs.get("packed"),
            named.get("key"),
            named.get("value"),
        )


def keep_all(hidden: Float[Tensor, "batch length width"]) -> Kept:
    """Every row as it is: what gradient checkpointing stores, not copied."""
    return Kept(hidden.shape[1], hidden)


def keep_packed(
    hidden: Float[Tensor, "batch length width"],
    index: Int[Tensor, "batch exact"],
    bits: int,
    fine_index: Int[Tensor, "batch fine"] | None = None,
) -> Kept:
    """Some rows as they are, the others in few bits, those at `fine_index` in more."""
    above, fine = index, None
    if fine_index is not None:
        fine = pack(take(hidden, fine_index), FINE_BITS)
        above = torch.cat([index, fine_index], dim=1)
    rest = take(hidden, others(above, hidden.shape[1]))
    return Kept(
        hidden.shape[1], take(hidden, index), index, fine, fine_index, packed=pack(rest, bits)
    )


def keep_some(
    hidden: Float[Tensor, "batch length width"],
    index: Int[Tensor, "batch exact"],
    key: Float[Tensor, "batch heads length size"],
    value: Float[Tensor, "batch heads length size"],
) -> Kept:
    """Some rows as they are; of the others only keys and values."""
    rest = others(index, hidden.shape[1])
    return Kept(
        hidden.shape[1],
        take(hidden, index),
        index,
        key=take(key, rest, dim=2),
        value=take(value, rest, dim=2),
    )
