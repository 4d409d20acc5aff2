"""The first entries of the text."""

from __future__ import annotations

import torch

from apportion.prefill.scorers.base import Scorer, Scores, View


class Prefix(Scorer):
    """s_j = -(place in the text): what is remembered once is never replaced.

    Zeng et al., "Memorize Step by Step", EMNLP 2024.
    """

    name = "prefix"
    paper = "Zeng et al., EMNLP 2024"

    def score(self, view: View) -> Scores:
        # Counted from the first: float32 holds whole numbers up to 16 million only.
        real = view.real[:, None, :]
        latest = torch.iinfo(view.order.dtype).max
        first = view.order.masked_fill(~real, latest).amin(dim=2, keepdim=True)
        return Scores((first - view.order).to(torch.float32).masked_fill(~real, 0.0))
