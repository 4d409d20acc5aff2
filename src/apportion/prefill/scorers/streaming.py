"""The most recent entries: attention sinks and a sliding window."""

from __future__ import annotations

import torch

from apportion.prefill.scorers.base import Scorer, Scores, View


class Streaming(Scorer):
    """s_j = place in the text: "the last M tokens", which every quality table needs beside it.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024.
    """

    name = "streaming"
    paper = "Xiao et al., ICLR 2024"

    def score(self, view: View) -> Scores:
        # Counted back from the newest: float32 holds whole numbers up to 16 million only.
        real = view.real[:, None, :]
        newest = view.order.masked_fill(~real, 0).amax(dim=2, keepdim=True)
        return Scores((view.order - newest).to(torch.float32).masked_fill(~real, 0.0))
