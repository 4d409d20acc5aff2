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

from apportion.prefill.rows import (
    PACKINGS,
    Eight,
    Lines,
    Rows,
    dense,
    of_samples,
    pick,
    tensors,
)
from apportion.prefill.scorers import Scores


@dataclass(frozen=True)
class LayerMemory:
    """Entries of one layer, in the order of the text, padding first.

    Attributes:
        keys: not rotated, or at their original positions if the reader keeps those; in the model's
            type or in 8 bits.
        values: one an entry.
        order: places in the text, int32.
        real: False for padding; None: all are.
        carried: the scorer's sums, float32.
    """

    keys: Rows
    values: Rows
    order: Int[Tensor, "batch keyheads entries"]
    real: Bool[Tensor, "batch entries"] | None = None
    carried: Mapping[str, Float[Tensor, "batch keyheads entries"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.order.shape[2]

    @property
    def tensors(self) -> list[Tensor]:
        """All that it is made of."""
        held = [*tensors(self.keys), *tensors(self.values), self.order, *self.carried.values()]
        return held if self.real is None else [*held, self.real]

    @property
    def bytes(self) -> int:
        """Of all of its tensors."""
        return sum(x.untyped_storage().nbytes() for x in self.tensors)

    def of(self, sample: int) -> LayerMemory:
        """Of one sample, as views."""
        cut = slice(sample, sample + 1)
        return LayerMemory(
            of_samples(self.keys, cut),
            of_samples(self.values, cut),
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
        keys, values, order = (
            torch.cat([x[:, :, x.shape[2] - old :], y[:, :, y.shape[2] - fresh :]], dim=2)
            for x, y in (
                (dense(self.keys), dense(new.keys)),
                (dense(self.values), dense(new.values)),
                (self.order, new.order),
            )
        )
        if real is not None:
            real = simplified(real[:, real.shape[1] - take :])
        return LayerMemory(keys, values, order, real)

    def chosen(self, new: LayerMemory, index: Int[Tensor, "batch keyheads kept"]) -> LayerMemory:
        """Some of these entries and of others that come after them.

        Rows in 8 bits stay as they are, and new ones become such. The sums are the scorer's to say.
        """
        real = joined_real(self, new)
        if real is not None:
            real = simplified(real.gather(1, index[:, 0]))
        lines = Lines(index, len(self) + len(new))
        return LayerMemory(
            pick(self.keys, dense(new.keys), lines),
            pick(self.values, dense(new.values), lines),
            lines.of(self.order, new.order),
            real,
        )

    def packed(self, store: str) -> LayerMemory:
        """In the rows of a store; those in 8 bits already stay as they are."""
        if isinstance(self.keys, Eight) or isinstance(self.values, Eight) or not len(self):
            return self
        keys, values = PACKINGS[store]
        return replace(self, keys=keys(self.keys), values=values(self.values))


def empty(like: LayerMemory) -> LayerMemory:
    """No entries, in the shapes of others."""
    none = {name: sums[:, :, :0] for name, sums in like.carried.items()}
    real = None if like.real is None else like.real[:, :0]
    parts = (dense(like.keys), dense(like.values), like.order)
    keys, values, order = (x[:, :, :0].clone() for x in parts)
    return LayerMemory(keys, values, order, real, none)


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
    real: Bool[Tensor, "batch entries"] | None,
    budget: int,
    sinks: int,
) -> Int[Tensor, "batch keyheads kept"]:
    """Places of the entries to keep, in the order of the text.

    The first `sinks` real entries always are; of the others the `budget` that the scorer keeps by
    force or scores highest, the latest of equals: pools make many. Where a sample has fewer real
    entries, padding fills up, in front.

    Args:
        scores: of the scorer.
        real: False for padding, which stands in front; None: none.
        budget: how many are kept beside the sinks.
        sinks: how many of the first real entries are kept whatever their scores.
    """
    worth = scores.values
    entries = worth.shape[2]
    count = min(entries, sinks + budget)
    if not count:
        return torch.empty(*worth.shape[:2], 0, dtype=torch.int64, device=worth.device)
    if scores.keep is not None:
        worth = worth.masked_fill(scores.keep, torch.finfo(worth.dtype).max)
    # NaN is told at the end of the forward, with the layer that it comes from.
    worth = worth.nan_to_num(float("-inf"), float("inf"), float("-inf"))
    if real is None:
        worth[:, :, :sinks] = float("inf")
    else:
        first = real & (real.cumsum(dim=1) <= sinks)
        worth.masked_fill_(first[:, None], float("inf"))
        worth.masked_fill_(~real[:, None], float("-inf"))
    # Stable, from the end: which of equals comes first would otherwise be up to the kernel.
    order = worth.flip(2).sort(dim=2, descending=True, stable=True).indices
    return (entries - 1 - order[:, :, :count]).sort(dim=2).values
