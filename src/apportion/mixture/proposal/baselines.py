"""Mixtures that need no runs: uniform, proportional, temperature and UniMax.

They stand beside every proposal, because no data-driven mixture beats all of them everywhere, and
they split a family's ratio among its languages, where there are too few runs to fit anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from apportion.errors import InputError, option

# The exponent of mT5 (Xue et al., 2021) and of XLM-R (Conneau et al., 2020).
TEMPERATURE = 0.3
# How often UniMax may repeat a source when nothing else is said.
UNIMAX_EPOCHS = 4.0


def uniform(count: int) -> Float[np.ndarray, " sources"]:
    """The same ratio for every source."""
    if count < 1:
        raise InputError(f"expected at least one source, got {count}")
    return np.full(count, 1.0 / count)


def proportional(sizes: Float[np.ndarray, " sources"]) -> Float[np.ndarray, " sources"]:
    """Ratios in proportion to the tokens of every source.

    Raises:
        InputError: a size that is not positive and finite.
    """
    return temperature(sizes, 1.0)


def temperature(
    sizes: Float[np.ndarray, " sources"], alpha: float = TEMPERATURE
) -> Float[np.ndarray, " sources"]:
    """Ratios in proportion to size^alpha: 1 is proportional, 0 uniform, alpha = 1 / T.

    Args:
        sizes: tokens of every source.
        alpha: exponent; 0.3 is that of mT5 (arXiv 2010.11934) and XLM-R (arXiv 1911.02116).

    Raises:
        InputError: a size that is not positive and finite, or a negative alpha.
    """
    _check_sizes(sizes)
    if not (np.isfinite(alpha) and alpha >= 0):
        raise InputError(f"expected an exponent alpha >= 0 such as 0.3, got {alpha!r}")
    log_weight = alpha * np.log(sizes)
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def unimax(
    sizes: Float[np.ndarray, " sources"], tokens: float, epochs: float = UNIMAX_EPOCHS
) -> Float[np.ndarray, " sources"]:
    """As uniform as a limit on repetition allows.

    From the smallest source to the largest, each gets an equal part of the tokens that are left,
    but no more than `epochs` passes over itself. Chung et al., "UniMax", ICLR 2023, arXiv
    2304.09151. Where all sources together fall short of `tokens`, every one is at its limit and
    the ratios are those of the sizes, as the method prescribes.

    Args:
        sizes: tokens of every source; infinite where there is no limit.
        tokens: training tokens D.
        epochs: the most passes over a source.

    Raises:
        InputError: a size, `tokens` or `epochs` that is not positive.
    """
    if sizes.size == 0 or not (sizes > 0).all():
        raise InputError(f"expected a positive number of tokens per source, got {sizes.tolist()}")
    if not (np.isfinite(tokens) and tokens > 0 and epochs > 0):
        raise InputError(f"expected positive tokens and epochs, got {tokens!r} and {epochs!r}")
    given = np.empty(len(sizes))
    left = float(tokens)
    for done, k in enumerate(np.argsort(sizes, kind="stable")):
        given[k] = min(left / (len(sizes) - done), epochs * sizes[k])
        left -= given[k]
    return given / given.sum()


def within(
    ratio: float,
    sizes: Mapping[str, float],
    method: Literal["temperature", "unimax", "proportional", "uniform"] = "temperature",
    *,
    alpha: float = TEMPERATURE,
    tokens: float | None = None,
    epochs: float = UNIMAX_EPOCHS,
) -> dict[str, float]:
    """Split a family's ratio among its languages.

    Args:
        ratio: the family's share of all training tokens.
        sizes: tokens of every language.
        method: how to split.
        alpha: exponent of `"temperature"`.
        tokens: training tokens D of the whole run; `"unimax"` needs them.
        epochs: limit of `"unimax"`.

    Returns:
        The share of all training tokens per language; they sum to `ratio`.

    Raises:
        InputError: unknown method, no languages, sizes that are not positive, or UniMax without
            tokens.
    """
    if not sizes:
        raise InputError('expected tokens per language such as {"fr": 2e9, "es": 3e9}, got none')
    if not 0 <= ratio <= 1:
        raise InputError(f"expected the family's ratio between 0 and 1, got {ratio!r}")
    values = np.array([float(size) for size in sizes.values()])
    if method == "uniform":
        split = uniform(len(values))
    elif method == "proportional":
        split = proportional(values)
    elif method == "temperature":
        split = temperature(values, alpha)
    elif method == "unimax":
        if tokens is None:
            raise InputError(
                f"expected {option('tokens', ...)} (the training tokens of the run) for UniMax"
            )
        # A family without tokens needs no limit; any budget then gives the same, valid split.
        split = unimax(values, max(ratio, 1e-12) * tokens, epochs)
    else:
        raise InputError(
            f"expected a method out of temperature, unimax, proportional, uniform; got {method!r}"
        )
    return {name: float(ratio * part) for name, part in zip(sizes, split, strict=True)}


def baselines(
    families: Sequence[str],
    sizes: Float[np.ndarray, " families"] | None,
    tokens: float,
    *,
    alpha: float = TEMPERATURE,
    epochs: float = UNIMAX_EPOCHS,
) -> dict[str, Float[np.ndarray, " families"]]:
    """Every baseline that can be computed, by the name it is shown under.

    Without sizes only the uniform mixture; with some that are unlimited, uniform and UniMax.
    """
    out = {"uniform": uniform(len(families))}
    if sizes is None:
        return out
    if np.isfinite(sizes).all():
        out["proportional"] = proportional(sizes)
        out[f"temperature {alpha:g}"] = temperature(sizes, alpha)
    out[f"UniMax, {epochs:g} epochs"] = unimax(sizes, tokens, epochs)
    return out


def _check_sizes(sizes: Float[np.ndarray, " sources"]) -> None:
    if sizes.size == 0 or not (np.isfinite(sizes).all() and (sizes > 0).all()):
        raise InputError(
            f"expected a positive, finite number of tokens per source, got {sizes.tolist()}"
        )
