"""Rules that say which entries are worth remembering, one a file; `SCORERS` lists them."""

from __future__ import annotations

from apportion.errors import InputError
from apportion.prefill.scorers.base import Scorer, Scores, View
from apportion.prefill.scorers.h2o import H2O
from apportion.prefill.scorers.local import Local
from apportion.prefill.scorers.mean import Mean
from apportion.prefill.scorers.prefix import Prefix
from apportion.prefill.scorers.query import Query
from apportion.prefill.scorers.random import Random
from apportion.prefill.scorers.roco import RoCo
from apportion.prefill.scorers.snapkv import SnapKV
from apportion.prefill.scorers.streaming import Streaming
from apportion.prefill.scorers.tova import Tova
from apportion.prefill.scorers.value_aware import ValueAware

SCORERS: dict[str, type[Scorer]] = {
    scorer.name: scorer
    for scorer in (
        Streaming,
        Local,
        Prefix,
        Random,
        H2O,
        Tova,
        Mean,
        SnapKV,
        RoCo,
        ValueAware,
        Query,
    )
}

__all__ = ["SCORERS", "Scorer", "Scores", "View", "get_scorer"]


def get_scorer(scorer: str | Scorer) -> Scorer:
    """A scorer by its name, or the scorer itself.

    Args:
        scorer: `"value-aware:h2o"` is value-aware around h2o; `"value-aware"` around snapkv.

    Raises:
        InputError: no such scorer, or value-aware around one that looks at no attention.
    """
    if isinstance(scorer, Scorer):
        return scorer
    name, colon, inner = scorer.partition(":")
    if name == ValueAware.name:
        return ValueAware(get_scorer(inner if colon else SnapKV.name))
    if name not in SCORERS or colon:
        raise InputError(
            f"expected a scorer of {', '.join(map(repr, SCORERS))}, 'value-aware:' with another, "
            f"or an object of your own class of apportion.prefill.Scorer; got {scorer!r}"
        )
    return SCORERS[name]()
