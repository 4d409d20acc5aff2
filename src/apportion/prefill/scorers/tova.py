"""Attention of the last query."""

from __future__ import annotations

from apportion.prefill.scorers.base import Scorer, Scores, View, received


class Tova(Scorer):
    """s_j = attention of the chunk's last query, mean over all heads: the heads keep the same.

    Zeng et al. call another rule by this name, which is `mean` here.

    Oren et al., "Transformers are Multi-State RNNs", EMNLP 2024.
    """

    name = "tova"
    paper = "Oren et al., EMNLP 2024"
    observes = "window"
    window = 1

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        rows, group = view.queries.shape[3], view.queries.shape[2]
        # The caller may hand over more rows than were asked for.
        last = received(view, view.queries[:, :, :, -1:], view.first_row + rows - 1) / group
        return Scores(last.mean(dim=1, keepdim=True).repeat(1, last.shape[1], 1))
