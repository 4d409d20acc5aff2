"""How much a layer changes a row."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.finetune.saliency.base import Saliency, View


class Update(Saliency):
    """s_j = ‖f(x_j)‖ / ‖x_j‖ for a layer y = x + f(x): what the branch adds, for the row's size."""

    name = "update"
    paper = "Apportion"

    def score(self, view: View) -> Float[Tensor, "batch length"]:
        hidden = view.hidden.to(torch.float32)
        branch = view.output.to(torch.float32) - hidden
        return branch.norm(dim=-1) / hidden.norm(dim=-1).clamp(min=1e-30)
