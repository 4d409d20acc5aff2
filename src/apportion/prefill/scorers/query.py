"""The user's questions look at every chunk, beside the window of recent text."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from apportion.errors import InputError
from apportion.prefill.scorers.base import (
    Pooling,
    Scorer,
    Scores,
    View,
    asking,
    highest,
    received,
    recent,
)


class Query(Scorer):
    """s_j = (1 - w) mean attention of the last text rows + w that of the questions' rows, pooled.

    The questions are known before the text is read and observe every chunk, not only the last: what
    a chunk loses never returns. They stand beside the window of recent text and don't replace it; a
    question alone drops what the model needs to go on reading. Means, so that neither a long
    question nor a long window outweighs the other. Without questions it ranks as `snapkv` does.

    After Li et al. ("SnapKV", NeurIPS 2024), whose window is the prompt's end, the question in it.
    """

    name = "query"
    paper = "after Li et al., NeurIPS 2024"
    observes = "window"
    asks = True

    def __init__(
        self,
        window: int = 64,
        pool: int = 21,
        pooling: str = "max",
        weight: float = 0.5,
        over: str = "mean",
    ) -> None:
        """A scorer.

        Args:
            window: the chunk's last rows that observe and are kept.
            pool: width of the pool, odd; 1 for none.
            pooling: `"max"` or `"average"`.
            weight: of the questions, 0 to 1.
            over: their rows: `"mean"` or `"max"`.

        Raises:
            InputError: an even pool, another kind, or a weight that is no share.
        """
        if over not in ("mean", "max"):
            raise InputError(f"expected over='mean' or 'max', got {over!r}")
        if not 0 <= weight <= 1:
            raise InputError(f"expected a weight of 0 to 1 such as weight=0.5, got {weight}")
        self.window, self.weight, self.over = window, weight, over
        self.pooling = Pooling(pool, pooling)

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        group, rows = view.queries.shape[2:4]
        awake = asking(view, rows, view.first_row).sum(dim=1).clamp(min=1)[:, None, None]
        total = received(view, view.queries, view.first_row) / (group * awake)
        if view.questions is not None:
            asked = self._asked(view, view.questions)
            total = (1 - self.weight) * total + self.weight * asked
        return Scores(self.pooling(total, view), recent(view, self.window))

    def _asked(
        self, view: View, questions: Float[Tensor, "batch keyheads group rows size"]
    ) -> Float[Tensor, "batch keyheads entries"]:
        if self.over == "max":
            return highest(view, questions, view.chunk)
        return received(view, questions, view.chunk) / (questions.shape[2] * questions.shape[3])
