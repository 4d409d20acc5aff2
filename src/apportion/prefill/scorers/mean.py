"""Mean attention of the chunk's queries."""

from __future__ import annotations

from apportion.prefill.scorers.base import Scorer, Scores, View, received, seen_by


class Mean(Scorer):
    """s_j = sum_i A_ij / n_j over the chunk's queries i, n_j of which see entry j.

    Without the division the chunk's last entries would lose for being seen by few.

    Zeng et al., "Memorize Step by Step", EMNLP 2024, where it is called TOVA.
    """

    name = "mean"
    paper = "Zeng et al., EMNLP 2024"
    observes = "chunk"

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        group, rows = view.queries.shape[2:4]
        seen = seen_by(view, rows, view.first_row)[:, None, :] * group
        total = received(view, view.queries, view.first_row)
        return Scores(total / seen.clamp(min=1))
