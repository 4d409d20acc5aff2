"""Any attention score, times the size of the value."""

from __future__ import annotations

import torch

from apportion.errors import InputError
from apportion.prefill.scorers.base import Scorer, Scores, View


class ValueAware(Scorer):
    """s_j = score_j · ‖v_j‖₁: what attention picks up from an entry, not only how often it looks.

    Guo et al., "Attention Score is Not All You Need for Token Importance Indicator in KV Cache
    Reduction: Value Also Matters", EMNLP 2024.
    """

    name = "value-aware"
    paper = "Guo et al., EMNLP 2024"

    def __init__(self, inner: Scorer) -> None:
        """A scorer around another.

        Args:
            inner: one that scores by attention.

        Raises:
            InputError: one that does not.
        """
        if inner.observes == "none":
            raise InputError(
                f"expected a scorer that looks at attention, such as 'snapkv' or 'h2o', to be "
                f"weighed by the values; got {inner.name!r}"
            )
        self.inner = inner
        self.observes, self.window = inner.observes, inner.window
        self.carries, self.asks = inner.carries, inner.asks

    def score(self, view: View) -> Scores:
        found = self.inner.score(view)
        size = torch.linalg.vector_norm(view.values, ord=1, dim=-1, dtype=torch.float32)
        # Padding may hold anything.
        size = size.masked_fill(~view.real[:, None, :], 0.0)
        return Scores(found.values * size, found.keep, found.carried)
