"""Keys and values of memory in 8 bits.

An entry is rounded once, when it is first kept, and its codes are carried along from then on: what
was rounded again with every chunk would drift. So the scale is the entry's own, not one of a group
whose members change. Keys have a few channels that are large in all entries and would take the
others' precision; each channel of a head is divided by a factor first, which the first entries
decide. Values have none such, and their scale is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

_MOST = 127


@dataclass(frozen=True)
class Eight:
    """Rows of numbers in 8 bits.

    Attributes:
        codes: -127 to 127.
        scale: of each row, float32.
        factor: of each channel of a head, float32; None: 1.
        dtype: that they came in and are given back in.
    """

    codes: Int8[Tensor, "batch keyheads entries size"]
    scale: Float[Tensor, "batch keyheads entries 1"]
    factor: Float[Tensor, "keyheads 1 size"] | None
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        """That of the numbers."""
        return self.codes.shape

    @property
    def tensors(self) -> list[Tensor]:
        """All that it is made of."""
        held = [self.codes, self.scale]
        return held if self.factor is None else [*held, self.factor]

    def dense(self) -> Float[Tensor, "batch keyheads entries size"]:
        """The numbers, rounded."""
        scale = self.scale if self.factor is None else self.scale * self.factor
        return (self.codes * scale).to(self.dtype)

    def of(self, sample: slice) -> Eight:
        """Of some samples, as views."""
        return Eight(self.codes[sample], self.scale[sample], self.factor, self.dtype)


Rows = Tensor | Eight


def eight(
    x: Float[Tensor, "batch keyheads entries size"],
    factor: Float[Tensor, "keyheads 1 size"] | None = None,
) -> Eight:
    """Numbers rounded to 8 bits, row by row.

    Args:
        x: finite.
        factor: of each channel.
    """
    wide = x.float() if factor is None else x.float() / factor
    scale = wide.abs().amax(dim=3, keepdim=True) / _MOST
    # A row of zeros has codes of zero, whatever it is divided by.
    codes = (wide / scale.clamp(min=torch.finfo(torch.float32).tiny)).round()
    return Eight(codes.to(torch.int8), scale, factor, x.dtype)


def factors(
    keys: Float[Tensor, "batch keyheads entries size"],
) -> Float[Tensor, "keyheads 1 size"]:
    """What each channel of a head is divided by: its largest number."""
    return keys.float().abs().amax(dim=(0, 2))[:, None].clamp(min=1e-6)


def dense(x: Rows) -> Float[Tensor, "batch keyheads entries size"]:
    """The numbers, in the model's type."""
    return x.dense() if isinstance(x, Eight) else x


def tensors(x: Rows) -> list[Tensor]:
    """What rows are held in."""
    return x.tensors if isinstance(x, Eight) else [x]


def of_samples(x: Rows, samples: slice) -> Rows:
    """Of some samples, as views."""
    return x.of(samples) if isinstance(x, Eight) else x[samples]


class Lines:
    """Places of entries, head by head, as lines of one long table: whole rows are copied at once.

    Looking numbers up one by one takes several times as long.
    """

    def __init__(self, index: Int[Tensor, "batch keyheads kept"], entries: int) -> None:
        """Lines of `index` in tables (batch, key heads, entries, ...)."""
        batch, heads, _ = index.shape
        first = torch.arange(0, batch * heads * entries, entries, device=index.device)
        self._lines = (index + first.view(batch, heads, 1)).flatten()
        self._shape = index.shape

    def of(self, old: Tensor, new: Tensor) -> Tensor:
        """Those rows of `old`, then `new`, joined along dimension 2."""
        both = torch.cat([old, new], dim=2) if old.shape[2] else new.contiguous()
        found = both.flatten(0, 2).index_select(0, self._lines)
        return found.unflatten(0, self._shape)


def pick(old: Rows, new: Tensor, lines: Lines) -> Rows:
    """Some rows of `old`, then `new`; what is in 8 bits stays as it is."""
    if not isinstance(old, Eight):
        return lines.of(old, new)
    fresh = eight(new, old.factor)
    codes = lines.of(old.codes, fresh.codes)
    return Eight(codes, lines.of(old.scale, fresh.scale), old.factor, old.dtype)


Packing = Callable[[Tensor], Rows]
PACKINGS: dict[str, tuple[Packing, Packing]] = {
    # Of keys, and of values.
    "model": (lambda keys: keys, lambda values: values),
    "8bit": (lambda keys: eight(keys, factors(keys)), eight),
}
"""Names of stores, as the user writes them."""
