"""What a step stored and kept, layer by layer, for the report."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

from apportion.finetune.step import Step
from apportion.finetune.store import Kept


@dataclass
class Ledger:
    """The last step's figures.

    Attributes:
        stored: bytes that each layer holds for its backward.
        dense: bytes that gradient checkpointing would hold of it.
        step: the last step, whose rows are known once its backward has run.
        used: the rows that each layer's backward computed, (batch, kept); all where it has none.
    """

    stored: dict[int, int] = field(default_factory=dict)
    dense: dict[int, int] = field(default_factory=dict)
    step: Step | None = None
    used: dict[int, Tensor] = field(default_factory=dict)

    def begin(self, step: Step) -> None:
        """A new step."""
        self.step = step
        self.stored.clear()
        self.dense.clear()
        self.used.clear()

    def rows(self) -> list[Int[Tensor, "batch kept"]]:
        """The rows of every layer's backward, in the order of the layers."""
        return [self.used[layer] for layer in sorted(self.used)]

    def computed(self, layer: int, rows: Int[Tensor, "batch kept"]) -> None:
        """A layer tells which rows its backward computes."""
        self.used[layer] = rows

    def held(self, layer: int, kept: Kept) -> None:
        """A layer tells what it holds."""
        _, tensors = kept.split()
        self.stored[layer] = sum(x.untyped_storage().nbytes() for x in tensors)
        batch, _, width = kept.exact.shape
        self.dense[layer] = batch * kept.length * width * kept.exact.element_size()
