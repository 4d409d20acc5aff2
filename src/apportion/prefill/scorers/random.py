"""Random entries: what any rule must beat."""

from __future__ import annotations

import torch

from apportion.prefill.scorers.base import Scorer, Scores, View


class Random(Scorer):
    """s_j uniform in [0, 1), drawn anew at every step for old and new entries alike.

    With m of m + c entries kept each time, text is forgotten geometrically: of a chunk
    (m / (m + c))^k is left after k more.

    Zeng et al., "Memorize Step by Step", EMNLP 2024.
    """

    name = "random"
    paper = "Zeng et al., EMNLP 2024"

    def score(self, view: View) -> Scores:
        # Drawn on the CPU: the same on every device.
        drawn = torch.rand(view.order.shape, generator=view.generator)
        return Scores(drawn.to(view.keys.device))
