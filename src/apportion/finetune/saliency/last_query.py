"""Attention of the last query: the rule of SAGE's published code."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.finetune.saliency.base import Saliency, View, attention_of


class LastQuery(Saliency):
    """s_j = sum over heads of the attention of the last real row, as shares of their sum.

    Where the published code computes all rows of the attention and reads one, this computes one.
    It is meant with `TopP(0.8)`: the smallest set of rows whose shares reach 0.8.

    Kim & Lee, "Forward Knows Efficient Backward Path", ACL 2025.
    """

    name = "last-query"
    attention = True
    paper = "Kim & Lee, ACL 2025"

    def score(self, view: View) -> Float[Tensor, "batch length"]:
        at = torch.arange(view.real.shape[1], device=view.real.device)
        last = torch.where(view.real, at, 0).max(dim=1, keepdim=True).values
        attention, _ = attention_of(view, last)
        received = attention.sum(dim=(1, 2))
        return received / received.sum(dim=1, keepdim=True).clamp(min=1e-30)
