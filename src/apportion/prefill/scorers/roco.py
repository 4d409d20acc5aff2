"""Mean attention, with entries of steady attention given up first."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apportion.prefill.scorers.base import (
    Scorer,
    Scores,
    View,
    attention_blocks,
    recent,
    seen_by,
    sunk,
)


class RoCo(Scorer):
    """s_j = mean attention of all queries so far; only entries of low deviation may be dropped.

    std_j = sqrt(mean(A_j^2) - mean(A_j)^2). To drop are, of the entries with the lowest std, those
    with the lowest mean. There are as many candidates as are kept beside the recent window, or as
    must go, if that is more. The others are kept whatever their mean.

    Ren & Zhu, "On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language
    Model Inference", 2024.
    """

    name = "roco"
    paper = "Ren & Zhu, 2024"
    observes = "chunk"
    carries = ("received", "squared", "seen")

    def __init__(self, window: int = 64) -> None:
        self.window = window

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        group, rows = view.queries.shape[2:4]
        total, squared = view.carried["received"].clone(), view.carried["squared"].clone()
        for attention in attention_blocks(view, view.queries, view.first_row):
            total += attention.sum(dim=(2, 3))
            squared += attention.square_().sum(dim=(2, 3))
            del attention  # before the next one is made
        seen = view.carried["seen"] + seen_by(view, rows, view.first_row)[:, None, :] * group
        mean = total / seen.clamp(min=1)
        deviation = (squared / seen.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
        carried = {"received": total, "squared": squared, "seen": seen}
        return Scores(mean, self._kept(view, deviation), carried)

    def _kept(
        self, view: View, deviation: Float[Tensor, "batch keyheads entries"]
    ) -> Bool[Tensor, "batch keyheads entries"]:
        near = recent(view, self.window)
        free = view.real[:, None, :] & ~sunk(view) & ~near
        # Kept beside the window, and what must go; the larger of them may.
        beside = view.budget - near.sum(dim=2, keepdim=True)
        out = free.sum(dim=2, keepdim=True) - beside
        spared = free.sum(dim=2, keepdim=True) - torch.maximum(beside, out)
        falling = deviation.masked_fill(~free, -1.0).argsort(dim=2, descending=True, stable=True)
        rank = falling.argsort(dim=2)
        return near | (free & (rank < spared))
