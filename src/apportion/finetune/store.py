"""What a layer keeps for its backward: a ladder of exact rows, rows in few bits, and nothing.

Everything is handed to autograd as a flat list of tensors, so that it is freed with the graph and
seen by saved-tensor hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from apportion.finetune.lowbit import Packed, pack
from apportion.finetune.rows import others, put, take

_PACKED = ("codes", "scale", "offset", "channels", "exact")


@dataclass(frozen=True)
class Kept:
    """A layer's rows.

    Attributes:
        length: rows a sample.
        exact: the exact rows, in the model's dtype; all of them where `index` is None.
        index: which rows those are.
        packed: the other rows in few bits; None: dropped.
        key, value: of the other rows where those are dropped, (batch, key heads, others, size).
    """

    length: int
    exact: Float[Tensor, "batch exact width"]
    index: Int[Tensor, "batch exact"] | None = None
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
        return put(x, others(self.index, self.length), self.packed.unpack())

    def split(self) -> tuple[Layout, list[Tensor]]:
        """The tensors, and what `Layout.join` needs to put them together again."""
        tensors = {"exact": self.exact, "index": self.index, "key": self.key, "value": self.value}
        if self.packed is not None:
            tensors |= {f"packed.{name}": getattr(self.packed, name) for name in _PACKED}
        held = {name: x for name, x in tensors.items() if x is not None}
        bits = 0 if self.packed is None else self.packed.bits
        return Layout(self.length, tuple(held), self.exact.shape[-1], bits), list(held.values())


@dataclass(frozen=True)
class Layout:
    """A `Kept` without its tensors."""

    length: int
    names: tuple[str, ...]
    width: int
    bits: int

    def join(self, tensors: Sequence[Tensor]) -> Kept:
        """Put the tensors of `Kept.split` together again."""
        named = dict(zip(self.names, tensors, strict=True))
        packed = None
        if self.bits:
            parts = [named[f"packed.{name}"] for name in _PACKED]
            packed = Packed(*parts, width=self.width, bits=self.bits)
        return Kept(
            self.length,
            named["exact"],
            named.get("index"),
            packed,
            named.get("key"),
            named.get("value"),
        )


def keep_all(hidden: Float[Tensor, "batch length width"]) -> Kept:
    """Every row as it is: what gradient checkpointing stores, not copied."""
    return Kept(hidden.shape[1], hidden)


def keep_packed(
    hidden: Float[Tensor, "batch length width"], index: Int[Tensor, "batch exact"], bits: int
) -> Kept:
    """Some rows as they are, the others in few bits."""
    rest = take(hidden, others(index, hidden.shape[1]))
    return Kept(hidden.shape[1], take(hidden, index), index, pack(rest, bits))


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
