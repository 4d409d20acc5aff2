"""Random rows: TokenTune's rule."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.finetune.saliency.base import Saliency, View


class Random(Saliency):
    """s_j uniform in [0, 1), drawn once a step for all layers.

    Simoulin et al., "Memory-Efficient Fine-Tuning of Transformers via Token Selection", EMNLP 2024.
    """

    name = "random"
    first_only = True
    paper = "Simoulin et al., EMNLP 2024"

    def score(self, view: View) -> Float[Tensor, "batch length"]:
        # Drawn on the CPU: the same rows on every device.
        return torch.rand(view.real.shape, generator=view.generator).to(view.real.device)
