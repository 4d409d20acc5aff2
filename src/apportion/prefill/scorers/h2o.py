"""Heavy hitters: accumulated attention, and the recent half."""

from __future__ import annotations

from apportion.prefill.scorers.base import Scorer, Scores, View, newest, received


class H2O(Scorer):
    """s_j = sum of the attention of all queries so far; half of the memory is the newest entries.

    Old entries have been seen by more queries, so they win; `mean` is without that bias.

    Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference", NeurIPS 2023.
    """

    name = "h2o"
    paper = "Zhang et al., NeurIPS 2023"
    observes = "chunk"
    carries = ("received",)

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        total = view.carried["received"] + received(view, view.queries, view.first_row)
        return Scores(total, newest(view, view.budget // 2), {"received": total})
