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


def pick(old: Rows, new: Tensor, index: Int[Tensor, "batch keyheads kept"]) -> Rows:
    """Rows of `old`, then `new`, at some places; what is in 8 bits stays as it is."""
    if not isinstance(old, Eight):
        return _pick(old, new, index)
    fresh = eight(new, old.factor)
    codes = _pick(old.codes, fresh.codes, index)
    return Eight(codes, _pick(old.scale, fresh.scale, index), old.factor, old.dtype)


def _pick(old: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Along dimension 2, without joining the two first."""
    held = old.shape[2]
    if not held:
        return new.gather(2, _wide(index, new))
    found = new.gather(2, _wide((index - held).clamp_(min=0), new))
    from_old = old.gather(2, _wide(index.clamp(max=held - 1), old))
    return torch.where((index < held)[..., None], from_old, found)


def _wide(index: Tensor, like: Tensor) -> Tensor:
    # A view: numbers of its own would take eight bytes for each of a key's.
    return index[..., None].expand(*index.shape, like.shape[3])


Packing = Callable[[Tensor], Rows]
PACKINGS: dict[str, tuple[Packing, Packing]] = {
    # Of keys, and of values.
    "model": (lambda keys: keys, lambda values: values),
    "8bit": (lambda keys: eight(keys, factors(keys)), eight),
}
"""Names of stores, as the user writes them."""
