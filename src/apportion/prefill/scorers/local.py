"""No memory at all: the last chunk alone."""

from __future__ import annotations

import torch

from apportion.prefill.scorers.base import Scorer, Scores, View


class Local(Scorer):
    """M = 0: only sinks outlive a chunk. The lower end of every comparison.

    Zeng et al., "Memorize Step by Step", EMNLP 2024.
    """

    name = "local"
    paper = "Zeng et al., EMNLP 2024"
    remembers = False

    def score(self, view: View) -> Scores:
        return Scores(torch.zeros(view.order.shape, device=view.keys.device))
