"""What a layer remembers, and how a step chooses it.

Keys are held unrotated: where they stand in a later forward is not known yet. Heads remember
different entries, all of one number; a sample with less text than that has padding in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apportion.prefill.scorers import Scores


@dataclass(frozen=True)
class LayerMemory:
    """Entries of one layer, in the order of the text, padding first.

    Attributes:
        keys: not rotated, or at their original positions if the reader keeps those.
        values: one an entry.
        order: places in the text, int32.
        real: False for padding; None: all are.
        carried: the scorer's sums, float32.
    """

    keys: Float[Tensor, "batch keyheads entries size"]
    values: Float[Tensor, "batch keyheads entries valuesize"]
    order: Int[Tensor, "batch keyheads entries"]
    real: Bool[Tensor, "batch entries"] | None = None
    carried: Mapping[str, Float[Tensor, "batch keyheads entries"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.keys.shape[2]

    @property
    def bytes(self) -> int:
        """Of all of its tensors."""
        held = [self.keys, self.values, self.order, *self.carried.values()]
        held += [] if self.real is None else [self.real]
        return sum(x.untyped_storage().nbytes() for x in held)

    def of(self, sample: int) -> LayerMemory:
        """Of one sample, as views."""
        cut = slice(sample, sample + 1)
        return LayerMemory(
            self.keys[cut],
            self.values[cut],
            self.order[cut],
            None if self.real is None else simplified(self.real[cut]),
            {name: sums[cut] for name, sums in self.carried.items()},
        )

    def slid(self, new: LayerMemory, window: int) -> LayerMemory:
        """The newest `window` of these and of others after them, in storages of their own.

        A window scores nothing, so the sums are let go.
        """
        take = min(window, len(self) + len(new))
        old, fresh = max(0, take - len(new)), min(take, len(new))
        real = joined_real(self, new)
        parts = [
            torch.cat([x[:, :, x.shape[2] - old :], y[:, :, y.shape[2] - fresh :]], dim=2)
            for x, y in (
                (self.keys, new.keys),
                (self.values, new.values),
                (self.order, new.order),
            )
        ]
        return LayerMemory(
            *parts, None if real is None else simplified(real[:, real.shape[1] - take :])
        )

    def chosen(self, new: LayerMemory, index: Int[Tensor, "batch keyheads kept"]) -> LayerMemory:
        """Some of these entries and of others that come after them.

        Without joining them first: only what is kept is copied. The sums are the scorer's to say.
        """
        real = joined_real(self, new)
        if real is not None:
            real = simplified(real.gather(1, index[:, 0]))
        return LayerMemory(
            _pick(self.keys, new.keys, index),
            _pick(self.values, new.values, index),
            torch.cat([self.order, new.order], dim=2).gather(2, index),
            real,
        )


def empty(like: LayerMemory) -> LayerMemory:
    """No entries, in the shapes of others."""
    none = {name: sums[:, :, :0] for name, sums in like.carried.items()}
    real = None if like.real is None else like.real[:, :0]
    parts = (like.keys[:, :, :0], like.values[:, :, :0], like.order[:, :, :0])
    return replace(LayerMemory(*(part.clone() for part in parts), real), carried=none)


def joined_real(old: LayerMemory, new: LayerMemory) -> Bool[Tensor, "batch entries"] | None:
    """Which entries of two memories are no padding; None: all."""
    if old.real is None and new.real is None:
        return None
    parts = [
        x.real if x.real is not None else x.order.new_ones(x.order.shape[0], len(x)).bool()
        for x in (old, new)
    ]
    return torch.cat(parts, dim=1)


def simplified(real: Bool[Tensor, "batch entries"]) -> Bool[Tensor, "batch entries"] | None:
    """None where nothing is padding."""
    return None if bool(real.all()) else real


def choose(
    scores: Scores,
    real: Bool[Tensor, "batch entries"],
    budget: int,
    sinks: int,
) -> Int[Tensor, "batch keyheads kept"]:
    """Places of the entries to keep, in the order of the text.

    The first `sinks` real entries always are; of the others the `budget` that the scorer keeps by
    force or scores highest. Where a sample has fewer real entries, padding fills up, in front.
    """
    worth = scores.values
    if scores.keep is not None:
        worth = worth.masked_fill(scores.keep, torch.finfo(worth.dtype).max)
    first = real & (real.cumsum(dim=1) <= sinks)
    worth = worth.masked_fill(first[:, None], float("inf"))
    worth = worth.masked_fill(~real[:, None], float("-inf"))
    count = min(worth.shape[2], sinks + budget)
    return worth.topk(count, dim=2, sorted=False).indices.sort(dim=2).values


def _pick(old: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Entries of `old` followed by `new` at some places, along dimension 2."""
    held = old.shape[2]
    wide = index[..., None].expand(*index.shape, new.shape[3])
    if not held:
        return new.gather(2, wide)
    found = new.gather(2, (wide - held).clamp_(min=0))
    from_old = old.gather(2, wide.clamp(max=held - 1))
    return torch.where((index < held)[..., None], from_old, found)
