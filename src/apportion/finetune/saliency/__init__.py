"""Rules that say which rows are worth keeping, one a file; `SALIENCIES` lists them."""

from __future__ import annotations

from apportion.errors import InputError
from apportion.finetune.saliency.attention import Attention
from apportion.finetune.saliency.base import Saliency, View
from apportion.finetune.saliency.last_query import LastQuery
from apportion.finetune.saliency.norm import Norm
from apportion.finetune.saliency.random import Random
from apportion.finetune.saliency.update import Update
from apportion.finetune.saliency.value import Value

SALIENCIES: dict[str, type[Saliency]] = {
    rule.name: rule for rule in (Attention, LastQuery, Update, Value, Norm, Random)
}

__all__ = ["SALIENCIES", "Saliency", "View", "get_saliency"]


def get_saliency(rule: str | Saliency) -> Saliency:
    """A rule by its name, or the rule itself.

    Raises:
        InputError: no such rule.
    """
    if isinstance(rule, Saliency):
        return rule
    if rule not in SALIENCIES:
        raise InputError(
            f"expected a saliency of {', '.join(map(repr, SALIENCIES))} (or 'published' in attach, "
            f"the whole of SAGE as released), or an object of your own "
            f"class of apportion.finetune.Saliency; got {rule!r}"
        )
    return SALIENCIES[rule]()
