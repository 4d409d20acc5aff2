"""Size of the value vectors: the second rule of SAGE's published code."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.finetune.saliency.base import Saliency, View


class Value(Saliency):
    """s_j = L1 norm of row j's value vectors over all heads, as shares of their sum.

    Kim & Lee, "Forward Knows Efficient Backward Path", ACL 2025.
    """

    name = "value"
    attention = True
    paper = "Kim & Lee, ACL 2025"

    def score(self, view: View) -> Float[Tensor, "batch length"]:
        assert view.value is not None
        size = view.value.to(torch.float32).abs().sum(dim=(1, 3)) * view.real
        return size / size.sum(dim=1, keepdim=True).clamp(min=1e-30)
