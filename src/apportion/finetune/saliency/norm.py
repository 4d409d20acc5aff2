"""Size of the rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.finetune.saliency.base import Saliency, View


class Norm(Saliency):
    """s_j = ‖x_j‖ of the layer's input: the cheapest rule, and a baseline."""

    name = "norm"
    paper = "Apportion"

    def score(self, view: View) -> Float[Tensor, "batch length"]:
        return view.hidden.to(torch.float32).norm(dim=-1)
