"""What to know about a prediction or a proposal: its reach, and the supply that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from apportion.budget import FEWEST_TOKENS, counted, format_count
from apportion.errors import option

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

# Passes over a supply up to which repetition costs next to nothing (Muennighoff et al.).
_OFTEN = 4.0
# A run table refuses fewer parameters as a slip of the unit.
_FEWEST_PARAMS = 1e3


def fit_notes(fit: Fit) -> list[str]:
    """What the status of a fit says against it."""
    if fit.status.ok:
        return []
    blocking = [note for note in fit.status.notes if "nothing follows" in note]
    return [f"about the fit: {fit.status.text}", *blocking]


def outside_notes(
    fit: Fit,
    names: Sequence[str],
    value: Float[np.ndarray, " names"],
    low: Float[np.ndarray, " names"],
    high: Float[np.ndarray, " names"],
) -> list[str]:
    """Values that their own interval leaves out: its refits do not surround the fit."""
    slack = 1e-6 * np.abs(value)
    out = (value < low - slack) | (value > high + slack)
    listed = [name for name, outside in zip(names, out, strict=True) if outside]
    if not listed or fit.samples is None:
        return []
    return [
        f"the interval of {', '.join(listed)} leaves out the value itself: "
        f"{counted(len(fit.samples), 'refit')} are too few, or refits end elsewhere than the fit; "
        f"fit with {option('bootstrap', 1000)}, and trust neither number if it stays so"
    ]


def _unlikely(params: float, tokens: float) -> list[str]:
    """Sizes that nobody trains, which a run table would refuse too."""
    if params >= _FEWEST_PARAMS and tokens >= FEWEST_TOKENS * params:
        return []
    return [
        f"N = {format_count(params)} with D = {format_count(tokens)} is no run that anyone trains "
        f"(fewer than {_FEWEST_PARAMS:g} parameters, or than {FEWEST_TOKENS:g} tokens for each), "
        "so the numbers mean nothing; is a suffix such as M or B missing?"
    ]


def reach_notes(fit: Fit, params: float, tokens: float, ratios: np.ndarray) -> list[str]:
    """How far a request lies beyond the runs in N, D and each ratio."""
    notes = _unlikely(params, tokens)
    for label, value, seen in (("N", params, fit.runs.params), ("D", tokens, fit.runs.tokens)):
        low, high = float(seen.min()), float(seen.max())
        said = f"{label} = {format_count(value)}"
        if low * 0.999 <= value <= high * 1.001:
            continue
        if _need_of(label) not in fit.law.needs:
            notes.append(
                f"{said} is not that of the runs ({_span(low, high)}), and the {fit.law.name} law "
                f"has no term in {label}: it answers for the runs' {label}"
            )
        elif value > high:
            notes.append(
                f"{said} is {value / high:.3g} times the largest in the runs ({format_count(high)})"
            )
        else:
            notes.append(
                f"{said} is {low / value:.3g} times below the smallest in the runs "
                f"({format_count(low)}); is a suffix such as M or B missing?"
            )
    for k, family in enumerate(fit.families):
        low, high = float(fit.runs.ratios[:, k].min()), float(fit.runs.ratios[:, k].max())
        if ratios[k] == 0 and family in fit.targets and low > 0:
            notes.append(f"{family} gets nothing; no run shows what its loss would be")
        elif ratios[k] > 0 and not low * 0.999 <= ratios[k] <= high * 1.001:
            notes.append(
                f"the ratio of {family} ({ratios[k]:.3g}) lies outside the runs "
                f"({low:.3g} to {high:.3g})"
            )
    return notes


def _span(low: float, high: float) -> str:
    if low == high:
        return format_count(low)
    return f"{format_count(low)} to {format_count(high)}"


def _need_of(label: str) -> str:
    """The law's name for N or D."""
    return "params" if label == "N" else "tokens"


def unlimited_notes(fit: Fit, supply: Float[np.ndarray, " families"]) -> list[str]:
    """Families that a supply does not name; they count as unlimited."""
    unnamed = [f for f, amount in zip(fit.families, supply, strict=True) if np.isinf(amount)]
    if not unnamed:
        return []
    return [f"the supply does not name {', '.join(unnamed)}: counted as unlimited"]


def blind_notes(fit: Fit) -> list[str]:
    """That a supply changes no prediction of a law which does not count repetition."""
    if "unique" in fit.law.needs:
        return []
    said = f"the {fit.law.name} law does not count repetition, so the supply changes nothing"
    if "tokens" in fit.law.needs:
        said += f": fit with {option('law', f'{fit.law.name}+repetition')}"
    return [said]


def epoch_notes(
    fit: Fit,
    tokens: float,
    ratios: Float[np.ndarray, " families"],
    supply: Float[np.ndarray, " families"],
) -> list[str]:
    """Families that would be read more often than their text is known to stand."""
    epochs = ratios * tokens / supply
    discounted = "unique" in fit.law.needs
    limit = option("max_epochs", 4)
    advice = (
        f"discounted, but not forbidden: set {limit} as well if that is too often"
        if discounted
        else f"and the law counts repeated tokens as new: set {limit} or "
        + option("repetition", True)
    )
    return [
        f"{family} would be read {epochs[k]:.3g} times ({format_count(supply[k])} tokens of "
        f"supply), {advice}"
        for k, family in enumerate(fit.families)
        if epochs[k] > (_OFTEN if discounted else 1.0 + 1e-9)
    ]
