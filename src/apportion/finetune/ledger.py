"""What a step stored and kept, layer by layer, for the report."""

from __future__ import annotations

from dataclasses import dataclass, field

from apportion.finetune.step import Step
from apportion.finetune.store import Kept


@dataclass
class Ledger:
    """The last step's figures.

    Attributes:
        stored: bytes that each layer holds for its backward.
        dense: bytes that gradient checkpointing would hold of it.
        step: the last step, whose rows are known once its backward has run.
    """

    stored: dict[int, int] = field(default_factory=dict)
    dense: dict[int, int] = field(default_factory=dict)
    step: Step | None = None

    def begin(self, step: Step) -> None:
        """A new step."""
        self.step = step
        self.stored.clear()
        self.dense.clear()

    def held(self, layer: int, kept: Kept) -> None:
        """A layer tells what it holds."""
        _, tensors = kept.split()
        self.stored[layer] = sum(x.untyped_storage().nbytes() for x in tensors)
        batch, _, width = kept.exact.shape
        self.dense[layer] = batch * kept.length * width * kept.exact.element_size()
