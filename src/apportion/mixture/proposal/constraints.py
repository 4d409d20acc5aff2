"""What a mixture may be: floors, caps, fixed ratios, and the supply of every family.

Everything becomes one box, lower <= p <= upper, on the simplex sum(p) = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from apportion.budget import format_count
from apportion.errors import InputError, option

# Sums this close to 1 count as 1: users write 0.33 + 0.33 + 0.34 in floating point.
_SLACK = 1e-9
Shares = Mapping[str, float]


@dataclass(frozen=True)
class Box:
    """Bounds of every ratio, and where each came from.

    Attributes:
        lower, upper: bounds, with sum(lower) <= 1 <= sum(upper).
        below: source of every lower bound (`"floor"`, `"fixed"` or nothing).
        above: source of every upper bound (`"cap"`, `"fixed"`, `"supply"` or nothing).
    """

    lower: Float[np.ndarray, " families"]
    upper: Float[np.ndarray, " families"]
    below: tuple[str, ...]
    above: tuple[str, ...]

    @classmethod
    def free(cls, count: int) -> Box:
        """The whole simplex."""
        return cls(np.zeros(count), np.ones(count), ("",) * count, ("",) * count)

    @property
    def held(self) -> Bool[np.ndarray, " families"]:
        """Families whose ratio the bounds give."""
        return self.upper - self.lower <= 1e-12

    def binding(self, ratios: Float[np.ndarray, " families"]) -> list[str]:
        """Which bound holds each ratio, or nothing."""
        return [
            self.above[k] or "all"
            if share >= self.upper[k]
            else (self.below[k] or "zero" if share <= self.lower[k] else "")
            for k, share in enumerate(ratios)
        ]

    def holds(self, ratios: Float[np.ndarray, " families"]) -> bool:
        """Whether a mixture keeps the bounds."""
        return bool((ratios >= self.lower - _SLACK).all() and (ratios <= self.upper + _SLACK).all())


def box(
    families: Sequence[str],
    tokens: float,
    *,
    floors: Shares,
    caps: Shares,
    fixed: Shares,
    supply: Float[np.ndarray, " families"] | None,
    max_epochs: float | None,
) -> Box:
    """The bounds that a user's wishes and the supply leave.

    Args:
        families: names, in table order.
        tokens: training tokens D.
        floors, caps, fixed: share per family.
        supply: tokens of every family, infinite where there is no limit.
        max_epochs: the most passes over a family's tokens.

    Raises:
        InputError: unknown families, shares outside 0 to 1, a floor above a cap, floors above 1 in
            sum, or caps below 1 in sum (with the largest feasible D where the supply is the cause).
    """
    count = len(families)
    lower, upper = np.zeros(count), np.ones(count)
    below, above = [""] * count, [""] * count
    for kind, given in (("floor", floors), ("cap", caps), ("fixed", fixed)):
        for family, share in given.items():
            k = _index(families, family, kind, share)
            if kind != "cap":
                lower[k], below[k] = share, kind
            if kind != "floor":
                upper[k], above[k] = share, kind
    _check_wishes(families, lower, upper, floors, caps, fixed)
    if max_epochs is not None:
        limit = _epoch_limits(families, supply, max_epochs, tokens)
        _check_supply(families, lower, upper, limit, tokens)
        above = ["supply" if limit[k] < upper[k] else above[k] for k in range(count)]
        upper = np.minimum(upper, limit)
    # Rounding may leave a sum a hair on the wrong side; the simplex must stay reachable.
    if lower.sum() > 1.0:
        lower = lower / lower.sum()
    if upper.sum() < 1.0:
        upper = upper / upper.sum()
    return Box(lower, np.maximum(upper, lower), tuple(below), tuple(above))


def largest_tokens(
    upper: Float[np.ndarray, " families"], limit: Float[np.ndarray, " families"]
) -> float:
    """The largest D for which caps and supply still cover every token.

    Args:
        upper: caps on the ratios, without the supply.
        limit: tokens that may be drawn from every family, supply times epochs.

    Returns:
        The largest D with sum(min(upper, limit / D)) >= 1; infinite without a limit.
    """
    # D where the family's supply takes over from its cap; the sum falls from there on.
    turn = np.divide(limit, upper, out=np.full(len(limit), np.inf), where=upper > 0)
    order = np.argsort(turn)
    for held in range(len(order), 0, -1):
        scarce, rest = order[:held], order[held:]
        room = 1.0 - float(upper[rest].sum())
        if room > 0 and np.isfinite(limit[scarce]).all():
            tokens = float(limit[scarce].sum()) / room
            if tokens >= turn[scarce[-1]]:
                return tokens
    return float("inf")


def _index(families: Sequence[str], family: str, kind: str, share: float) -> int:
    if family not in families:
        raise InputError(
            f"expected a family out of {', '.join(families)} as {kind}; got {family!r}"
        )
    if not 0 <= share <= 1:
        raise InputError(f"expected a {kind} between 0 and 1 for {family}, got {share!r}")
    return families.index(family)


def _check_wishes(
    families: Sequence[str],
    lower: np.ndarray,
    upper: np.ndarray,
    floors: Shares,
    caps: Shares,
    fixed: Shares,
) -> None:
    for family in fixed:
        if family in floors or family in caps:
            raise InputError(
                f"{family} is fixed at {fixed[family]:g} and has a floor or cap as well: "
                "keep one of them"
            )
    for k, family in enumerate(families):
        if lower[k] > upper[k]:
            raise InputError(
                f"the floor of {family} ({lower[k]:g}) is above its cap ({upper[k]:g}); "
                "lower the floor or raise the cap"
            )
    if lower.sum() > 1.0 + _SLACK:
        listed = ", ".join(f"{f}={v:g}" for f, v in zip(families, lower, strict=True) if v > 0)
        raise InputError(
            f"floors and fixed ratios sum to {lower.sum():g}, more than 1 ({listed}); lower them"
        )
    left = 1.0 - lower.sum()
    bare = [f for f, low, high in zip(families, lower, upper, strict=True) if low == 0 < high]
    if bare and left <= _SLACK:
        raise InputError(
            f"floors and fixed ratios take all of the tokens, and {', '.join(bare)} would get "
            "nothing; lower them, or say so with a cap of 0 for the others"
        )
    if upper.sum() < 1.0 - _SLACK:
        listed = ", ".join(f"{f}={v:g}" for f, v in zip(families, upper, strict=True))
        raise InputError(
            f"caps and fixed ratios sum to {upper.sum():g}, less than 1 ({listed}); raise a cap"
        )


def _epoch_limits(
    families: Sequence[str], supply: np.ndarray | None, max_epochs: float, tokens: float
) -> np.ndarray:
    if supply is None:
        raise InputError(
            f"{option('max_epochs')} needs the tokens of every family: "
            f"give {option('supply', {families[0]: 3e9})}"
        )
    if not max_epochs > 0:
        raise InputError(
            f"expected {option('max_epochs', 4)}, or another above 0; got {max_epochs!r}"
        )
    return supply * (max_epochs / tokens)


def _check_supply(
    families: Sequence[str],
    lower: np.ndarray,
    upper: np.ndarray,
    limit: np.ndarray,
    tokens: float,
) -> None:
    for k, family in enumerate(families):
        if lower[k] > limit[k] * (1.0 + _SLACK):
            raise InputError(
                f"{family} must have {lower[k]:g} of the tokens, but its supply allows "
                f"{limit[k]:.4g} at D = {format_count(tokens)}; lower the ratio, raise "
                f"{option('max_epochs')}, or train on "
                f"{format_count(tokens * limit[k] / lower[k])} at most"
            )
    reach = float(np.minimum(upper, limit).sum())
    if reach < 1.0 - _SLACK:
        most = largest_tokens(upper, limit * tokens)
        raise InputError(
            f"the supply covers {reach:.4g} of D = {format_count(tokens)} within "
            f"{option('max_epochs')} and "
            f"caps; the largest feasible D is {format_count(most)} ({most:.6g} tokens): lower D, "
            f"raise {option('max_epochs')}, or give {option('repetition', True)} in place of it"
        )
