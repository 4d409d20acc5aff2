"""The ways to train that a plan compares, best gradient first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apportion.finetune.settings import sparse_pays

_ALL_LABELLED = "SmolLM2-135M, English text, every token labelled"
_END_LABELLED = "SmolLM2-135M, English text, the last fifth of every sample labelled"


@dataclass(frozen=True)
class Way:
    """One of them.

    Attributes:
        name: for tables.
        settings: keyword arguments of `attach`; None: nothing is attached.
        checkpoints: transformers' gradient checkpointing is on.
        cosine: of the gradient to the exact one, as measured elsewhere; 1: the same by definition.
        source: what that was measured on.
        sparse: only kept rows have a gradient.
    """

    name: str
    settings: dict[str, Any] | None
    checkpoints: bool = False
    cosine: float = 1.0
    source: str = "exact"
    sparse: bool = False


WAYS = (
    Way("plain", None),
    Way("gradient checkpointing", None, checkpoints=True),
    Way("exact rows", {"keep": 1.0}),
    Way("8-bit rows", {"rest": "8bit", "backward": "full"}, cosine=0.9999, source=_ALL_LABELLED),
    Way("4-bit rows", {"rest": "4bit", "backward": "full"}, cosine=0.995, source=_ALL_LABELLED),
    Way(
        "sparse, keep 0.5",
        {"keep": 0.5, "backward": "sparse"},
        cosine=0.97,
        source=_END_LABELLED,
        sparse=True,
    ),
    Way(
        "sparse, keep 0.25",
        {"keep": 0.25, "backward": "sparse"},
        cosine=0.93,
        source=_END_LABELLED,
        sparse=True,
    ),
)
"""Cosines are those of benchmarks/results/finetune_modes.csv; `fidelity` measures yours."""


def ways_for(loss_share: float) -> tuple[Way, ...]:
    """Those that make sense for data with that share of labelled tokens.

    Where many tokens carry loss, a sparse gradient is worse than training on fewer samples.
    """
    return tuple(
        way
        for way in WAYS
        if not way.sparse or sparse_pays((way.settings or {})["keep"], loss_share)
    )
