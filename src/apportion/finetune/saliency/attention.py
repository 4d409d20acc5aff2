"""Attention received from the rows that carry loss: the default rule."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apportion.finetune.saliency.base import Saliency, View, attention_of


class Attention(Saliency):
    """s_j = sum over sampled queries i with loss and heads h of a_hij, over the queries that see j.

    The gradient starts at the rows that carry loss and flows to others through their attention, so
    this is the first step of the path that the backward will take. A fixed number of queries, drawn
    evenly from the rows with loss, bounds the cost at O(queries × length). Without the division
    early rows would win for being seen by more queries.

    After SAGE (Kim & Lee, ACL 2025), which looks from the last query alone.
    """

    name = "attention"
    attention = True
    paper = "Kim & Lee, ACL 2025"

    def __init__(self, queries: int = 32) -> None:
        self.queries = queries

    def score(self, view: View) -> Float[Tensor, "batch length"]:
        queries = sample(view.loss, view.real, self.queries)
        attention, seen = attention_of(view, queries)
        received = attention.sum(dim=(1, 2))
        return received / seen.sum(dim=(1, 2)).clamp(min=1)


def sample(
    loss: Bool[Tensor, "batch length"], real: Bool[Tensor, "batch length"], count: int
) -> Int[Tensor, "batch queries"]:
    """`count` rows spread evenly over those with loss; over the real ones where none has loss."""
    wanted = torch.where(loss.any(dim=1, keepdim=True), loss, real)
    count = min(count, wanted.shape[1])
    # Wanted rows first, in their order.
    order = torch.argsort(wanted.to(torch.uint8), dim=1, descending=True, stable=True)
    number = wanted.sum(dim=1, keepdim=True).clamp(min=1)
    steps = (torch.arange(count, device=loss.device) + 0.5) / count
    return order.gather(1, (steps * number).to(torch.int64))
