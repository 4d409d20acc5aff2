"""What a callback measures of a training run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Figures:
    """What was measured since training began (or was resumed).

    Attributes:
        steps: optimizer steps.
        tokens: real tokens of the batches.
        seconds: of the steps, without evaluation and saving.
        peak_bytes: see `apportion.finetune.peak`.
        stored_bytes: the most that all layers stored for the backward of one batch.
        checkpoint_bytes: what gradient checkpointing would have stored of that batch.
        kept: sum over batches of the share of rows that the backward computed.
        backward: batches by the backward that they got.
        cosines: step, cosine to the exact gradient.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    stored_bytes: int = 0
    checkpoint_bytes: int = 0
    kept: float = 0.0
    backward: Counter[str] = field(default_factory=Counter)
    cosines: list[tuple[int, float]] = field(default_factory=list)

    @property
    def kept_share(self) -> float:
        """Mean over batches; 1 where every backward was full."""
        return self.kept / max(1, sum(self.backward.values()))
