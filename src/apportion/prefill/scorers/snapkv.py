"""Attention of a window of the last queries, pooled."""

from __future__ import annotations

from apportion.prefill.scorers.base import Pooling, Scorer, Scores, View, received, recent


class SnapKV(Scorer):
    """s_j = pooled sum of the attention of the chunk's last `window` queries, which are kept.

    Published with pools of 5 to 7; here of 21, since narrow ones lost every answer that stands
    beside what is asked for. Of the window at most half of the memory is kept.

    Li et al., "SnapKV: LLM Knows What You Are Looking for Before Generation", NeurIPS 2024.
    """

    name = "snapkv"
    paper = "Li et al., NeurIPS 2024"

    def __init__(self, window: int | None = 64, pool: int = 21, pooling: str = "max") -> None:
        """A scorer.

        Args:
            window: queries that observe; None for the whole chunk, as Zeng et al. do: then no
                entries are kept for being recent.
            pool: width of the pool, odd; 1 for none.
            pooling: `"max"` or `"average"`.

        Raises:
            InputError: an even pool, or another kind.
        """
        self.observes = "chunk" if window is None else "window"
        self.window = 0 if window is None else window
        self.pooling = Pooling(pool, pooling)

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        total = received(view, view.queries, view.first_row)
        keep = recent(view, self.window) if self.window else None
        return Scores(self.pooling(total, view), keep)
