"""Sampling ratios in the exact form of a trainer.

Each form refuses what its trainer refuses (weights of 0, sums, missing sizes), and rounding never
asks a source for more than its supply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from apportion.budget import parse_tokens
from apportion.errors import InputError, option
from apportion.files import write_text
from apportion.mixture.export import configs, scripts
from apportion.mixture.export.plan import Paths, Plan, plan, round_shares
from apportion.mixture.proposal.optimum import Optimum
from apportion.mixture.supply import parse_supply

__all__ = ["TRAINERS", "Plan", "export", "plan", "round_shares"]

TRAINERS: dict[str, Callable[[Plan], str]] = {
    "megatron": configs.megatron,
    "nemo": configs.nemo,
    "olmo-core": scripts.olmo_core,
    "huggingface": scripts.huggingface,
    "mosaicml": configs.mosaicml,
    "litgpt": scripts.litgpt,
    "nanotron": configs.nanotron,
    "axolotl": configs.axolotl,
}
# Their form has no seed: it belongs in another part of the trainer's settings.
_SEEDLESS = ("megatron", "nemo", "axolotl")


def export(
    ratios: Optimum | Mapping[str, float],
    to: str,
    paths: Paths,
    *,
    tokens: float | str | None = None,
    supply: str | Path | Mapping[str, Any] | None = None,
    max_epochs: float | None = None,
    sequence_length: int | None = None,
    batch_tokens: int | None = None,
    tokens_per_example: Mapping[str, float] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
) -> str:
    """The configuration of a trainer for sampling ratios.

    Args:
        ratios: an `Optimum` (which brings tokens, supply and max_epochs), or shares by name.
        to: a key of `TRAINERS`.
        paths: data of every source: a prefix, folder or data set as the trainer takes it.
        tokens: training tokens D.
        supply: tokens per source.
        max_epochs: the most passes over a source; checked, and kept by rounding.
        sequence_length: tokens of a training sample (MosaicML, litgpt).
        batch_tokens: tokens of a global batch (OLMo-core).
        tokens_per_example: mean tokens of an example per source (Hugging Face).
        seed: seed of the trainer's shuffling, 0 if absent; for those whose form has one.
        out: write the text there as well, atomically.

    Returns:
        The text of the configuration.

    Raises:
        InputError: an unknown trainer; ratios, paths or sizes that the trainer would refuse.
    """
    if to not in TRAINERS:
        raise InputError(f"expected a trainer out of {', '.join(TRAINERS)}; got {to!r}")
    for name, value in (("sequence_length", sequence_length), ("batch_tokens", batch_tokens)):
        if value is not None and value < 1:
            raise InputError(f"expected {option(name)} of 1 token or more, got {value}")
    if seed is not None:
        _check_seed(to, seed)
    if isinstance(ratios, Optimum):
        tokens = ratios.tokens if tokens is None else tokens
        supply = ratios.supply if supply is None else supply
        max_epochs = ratios.max_epochs if max_epochs is None else max_epochs
        ratios = ratios.ratios
    text = TRAINERS[to](
        plan(
            ratios,
            paths,
            tokens=None if tokens is None else parse_tokens(tokens),
            supply=None if not supply else parse_supply(supply),
            max_epochs=max_epochs,
            sequence_length=sequence_length,
            batch_tokens=batch_tokens,
            tokens_per_example=tokens_per_example,
            seed=seed or 0,
        )
    )
    if out is not None:
        write_text(out, text)
    return text


def _check_seed(to: str, seed: int) -> None:
    if seed < 0:
        raise InputError(f"expected a seed from 0 up, got {seed}")
    if to in _SEEDLESS:
        raise InputError(
            f"the data settings of {to} have no seed: leave {option('seed')} out, and set it where "
            f"{to} is started"
        )
