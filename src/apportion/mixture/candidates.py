"""Candidate runs of a design: every size with every token budget and mixture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from apportion.budget import FEWEST_TOKENS, MOST_PARAMS, MOST_TOKENS
from apportion.errors import InputError, option
from apportion.mixture.laws.base import grid_points


def training_flops(params: float, tokens: float) -> float:
    """6 N D, forward and backward."""
    return 6.0 * params * tokens


def candidate_mixtures(
    families: int, lowest: float = 0.03, seed: int = 0
) -> Float[np.ndarray, "mixtures families"]:
    """Mixtures worth considering: uniform, one family much or little, and random ones.

    Args:
        families: number of families.
        lowest: least ratio of any family.
        seed: of the random ones (8 a family, Dirichlet, half of them skewed).
    """
    if families == 1:
        return np.ones((1, 1))
    rows = [np.full(families, 1 / families)]
    largest = 1 - lowest * (families - 1)
    for own in (lowest, 0.5 * (1 / families + lowest), 0.5, largest):
        for k in range(families):
            row = np.full(families, (1 - own) / (families - 1))
            row[k] = own
            rows.append(row)
    generator = np.random.default_rng(seed)
    for concentration in (0.6, 1.5):
        drawn = generator.dirichlet(np.full(families, concentration), 4 * families)
        rows += list(lowest + drawn * (1 - families * lowest))
    return np.unique(np.round(rows, 4), axis=0)


@dataclass(frozen=True)
class Pool:
    """The candidates, one a row.

    Attributes:
        shape: names of the model shapes, if they have names.
        params, tokens: N and D.
        ratios: sampling ratios.
    """

    shape: tuple[str, ...] | None
    params: Float[np.ndarray, " candidates"]
    tokens: Float[np.ndarray, " candidates"]
    ratios: Float[np.ndarray, "candidates families"]

    @property
    def flops(self) -> Float[np.ndarray, " candidates"]:
        """Cost of every candidate."""
        return 6.0 * self.params * self.tokens


def default_mixtures(families: int, lowest: float, seed: int) -> np.ndarray:
    """`candidate_mixtures`, the least ratio checked."""
    if not 0 < lowest * families < 1:
        raise InputError(
            f"expected {option('lowest')} above 0 and below 1/{families} (for {families} "
            f"{'family' if families == 1 else 'families'}), such as "
            f"{option('lowest', 0.03 if families < 30 else 0.3 / families)}; got {lowest:g}"
        )
    return candidate_mixtures(families, lowest, seed)


def _check_amounts(values: list[float], tokens: list[float]) -> None:
    """Sizes and budgets that a run table may have."""
    amounts = np.array([*values, *tokens], dtype=float)
    if not values or not len(tokens) or not np.isfinite(amounts).all() or (amounts <= 0).any():
        raise InputError("expected at least one size and one number of tokens, all above 0")
    if max(values) > MOST_PARAMS or max(tokens) > MOST_TOKENS:
        raise InputError(
            f"expected sizes up to {MOST_PARAMS:g} parameters and {MOST_TOKENS:g} tokens, got up "
            f"to {max(values):g} and {max(tokens):g}"
        )
    if min(tokens) < FEWEST_TOKENS * max(values):
        raise InputError(
            f"expected at least a tenth as many tokens as parameters in every run, got "
            f"{min(tokens):g} beside {max(values):g} parameters; no run table may have such "
            f"runs: give {option('tokens')} from {math.ceil(FEWEST_TOKENS * max(values))} up"
        )


def make_pool(
    flops: float,
    sizes: Sequence[float] | Mapping[str, float],
    tokens: Sequence[float],
    families: tuple[str, ...],
    mixtures: np.ndarray | None,
) -> Pool:
    """All candidates, checked.

    Raises:
        InputError: no families, no size, malformed mixtures, tokens below a tenth of the
            parameters, or a budget below the cheapest run.
    """
    if not families or mixtures is None:
        raise InputError(
            f"expected {option('families')}, such as romance and slavic, or {option('fit')} with "
            "a pilot fit"
        )
    # What is named twice would be two candidates, and `repeats` would count each by itself.
    values = list(sizes.values()) if isinstance(sizes, Mapping) else list(dict.fromkeys(sizes))
    tokens = list(dict.fromkeys(tokens))
    _check_amounts(values, tokens)
    ratios = np.asarray(mixtures, dtype=float)
    if ratios.ndim != 2 or ratios.shape[1] != len(families) or not len(ratios):
        raise InputError(
            f"expected candidate mixtures with {len(families)} ratios each, got the shape "
            f"{ratios.shape}"
        )
    if (ratios < 0).any() or not np.allclose(ratios.sum(axis=1), 1, atol=1e-3):
        raise InputError("expected candidate mixtures with ratios >= 0 that sum to 1")
    ratios = ratios / ratios.sum(axis=1, keepdims=True)
    ratios = ratios[np.sort(np.unique(ratios, axis=0, return_index=True)[1])]
    index = grid_points(range(len(values)), map(float, tokens), range(len(ratios)))
    which = index[:, 0].astype(int)
    cheapest = training_flops(min(values), min(tokens))
    if not flops >= cheapest:
        raise InputError(
            f"expected a budget of at least {cheapest:.3g} FLOPs (the cheapest run), "
            f"got {flops:.3g}"
        )
    names = list(sizes) if isinstance(sizes, Mapping) else []
    return Pool(
        tuple(names[k] for k in which) if names else None,
        np.array(values, dtype=float)[which],
        index[:, 1],
        ratios[index[:, 2].astype(int)],
    )
