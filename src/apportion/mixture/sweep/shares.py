"""Whole numbers in given shares."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def block_counts(ratios: Float[np.ndarray, " parts"], blocks: int) -> Int[np.ndarray, " parts"]:
    """Blocks of every part by largest remainder; they sum to ``blocks`` exactly."""
    exact = ratios / ratios.sum() * blocks
    counts = np.floor(exact).astype(np.int64)
    rest = blocks - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:rest]] += 1
    return counts
