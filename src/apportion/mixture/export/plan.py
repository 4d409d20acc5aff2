"""What a trainer is to be told: sources, paths, and shares rounded so that no supply is overrun."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from apportion.budget import format_count
from apportion.errors import InputError, option

# Shares are written as multiples of this; the multiples sum to 1 exactly.
UNITS = 1_000_000
Paths = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Plan:
    """A mixture ready for a trainer.

    Attributes:
        names: sources with a share, in order.
        units: share of every source in millionths; they sum to one million.
        paths: files or prefixes per source, at least one each.
        tokens: training tokens D, if known.
        supply: tokens per source, if known (infinite where unlimited).
        max_epochs: limit on passes over a source, if any.
        sequence_length: tokens of a training sample, if known.
        batch_tokens: tokens of a batch, if known.
        tokens_per_example: mean tokens of an example per source, if known.
        seed: seed of the trainer's shuffling.
    """

    names: tuple[str, ...]
    units: Int[np.ndarray, " sources"]
    paths: tuple[tuple[str, ...], ...]
    tokens: float | None = None
    supply: Float[np.ndarray, " sources"] | None = None
    max_epochs: float | None = None
    sequence_length: int | None = None
    batch_tokens: int | None = None
    tokens_per_example: Float[np.ndarray, " sources"] | None = None
    seed: int = 0

    @property
    def shares(self) -> Float[np.ndarray, " sources"]:
        """Shares of the training tokens, as written."""
        return self.units / UNITS

    @property
    def weights(self) -> list[str]:
        """Shares as decimals that sum to exactly 1."""
        return [f"{unit // UNITS}.{unit % UNITS:06d}" for unit in self.units.tolist()]

    @property
    def epochs(self) -> Float[np.ndarray, " sources"] | None:
        """Passes over every source, if D and the supply are known."""
        if self.supply is None or self.tokens is None:
            return None
        return self.shares * self.tokens / self.supply

    def single_paths(self, trainer: str) -> list[str]:
        """The one path of every source.

        Raises:
            InputError: a source has several.
        """
        for name, paths in zip(self.names, self.paths, strict=True):
            if len(paths) != 1:
                raise InputError(
                    f"{trainer} takes one path per weight; {name} has {len(paths)}: give every "
                    "path a source and a ratio of its own"
                )
        return [paths[0] for paths in self.paths]

    def need(self, trainer: str, **values: object) -> None:
        """Refuse what lacks a value that the trainer's form has.

        Raises:
            InputError: names the missing arguments.
        """
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise InputError(f"{trainer} needs {', '.join(option(name, ...) for name in missing)}")


def plan(
    ratios: Mapping[str, float],
    paths: Paths,
    *,
    tokens: float | None = None,
    supply: Mapping[str, float] | None = None,
    max_epochs: float | None = None,
    sequence_length: int | None = None,
    batch_tokens: int | None = None,
    tokens_per_example: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Plan:
    """Check a mixture and round it.

    Raises:
        InputError: ratios that are not positive or do not sum to 1, a source without a path, or a
            source that needs more than `max_epochs` passes over its supply.
    """
    names = tuple(ratios)
    shares = np.array([float(ratio) for ratio in ratios.values()])
    _check_ratios(names, shares)
    shares = shares / shares.sum()
    amounts = None
    if supply is not None:
        amounts = np.array([float(supply.get(name, math.inf)) for name in names])
    limits = np.ones(len(names))
    if max_epochs is not None:
        limits = _limits(names, shares, amounts, max_epochs, tokens, sequence_length)
    examples = None
    if tokens_per_example is not None:
        _check_named(names, tokens_per_example, "tokens per example", "tokens_per_example")
        examples = np.array([float(tokens_per_example[name]) for name in names])
    return Plan(
        names,
        round_shares(shares, limits),
        _paths(names, paths),
        tokens,
        amounts,
        max_epochs,
        sequence_length,
        batch_tokens,
        examples,
        seed,
    )


def round_shares(
    shares: Float[np.ndarray, " sources"], limits: Float[np.ndarray, " sources"], units: int = UNITS
) -> Int[np.ndarray, " sources"]:
    """Whole numbers that sum to `units`, closest to the shares and never beyond a limit.

    Largest remainder first; a source at its limit is rounded down and the rest goes to others.

    Args:
        shares: shares that sum to 1.
        limits: the most that each may have; at least its share, up to rounding.
        units: what the whole numbers sum to.

    Raises:
        InputError: a share too small to write, or limits that leave no room.
    """
    most = np.floor(limits * units * (1 + 1e-12)).astype(np.int64)
    whole = np.minimum(np.floor(shares * units).astype(np.int64), most)
    left = units - int(whole.sum())
    remainder = shares * units - whole
    while left > 0:
        open_ = np.flatnonzero(whole < most)
        if not len(open_):
            raise InputError("expected room for all tokens, but every source is at its limit")
        for k in open_[np.argsort(-remainder[open_], kind="stable")][:left]:
            whole[k] += 1
            left -= 1
    if (whole == 0).any():
        raise InputError(
            f"expected every ratio to be at least {1 / units:g}: smaller ones round to 0, which "
            "trainers refuse; leave the source out"
        )
    return whole


def _check_ratios(names: Sequence[str], shares: np.ndarray) -> None:
    if not len(names):
        raise InputError('expected ratios such as {"romance": 0.4, "slavic": 0.6}, got none')
    wrong = [f"{n}={s:g}" for n, s in zip(names, shares, strict=True) if not s > 0]
    if wrong:
        raise InputError(
            f"expected every ratio above 0, got {', '.join(wrong)}; trainers refuse or mishandle "
            "a weight of 0: leave the source out of the ratios"
        )
    total = float(shares.sum())
    if not math.isfinite(total) or abs(total - 1.0) > 1e-3:
        raise InputError(f"expected ratios that sum to 1, got a sum of {total:g}")


def _check_named(
    names: Sequence[str], given: Mapping[str, object], what: str, argument: str
) -> None:
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"expected {what} for every source with a ratio; none for {', '.join(missing)}: "
            f"give {option(argument, {missing[0]: ...})}"
        )


def _paths(names: Sequence[str], given: Paths) -> tuple[tuple[str, ...], ...]:
    _check_named(names, given, "a path", "paths")
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InputError(
            f"expected paths of {', '.join(names)}, the sources with a ratio; got one of "
            f"{', '.join(unknown)}: correct the name, give it a ratio, or leave its path out"
        )
    found: list[tuple[str, ...]] = []
    owner: dict[str, str] = {}
    for name in names:
        value = given[name]
        paths = (value,) if isinstance(value, str) else tuple(str(path) for path in value)
        if not paths or not all(path.strip() for path in paths):
            raise InputError(f"expected at least one path for {name}, got {value!r}")
        for path in paths:
            _check_path(name, path, owner)
        found.append(paths)
    return tuple(found)


def _check_path(name: str, path: str, owner: dict[str, str]) -> None:
    """Refuse a path that was seen before, and one that no file of the trainer could hold."""
    if not path.isascii() and any("\ud800" <= letter <= "\udfff" for letter in path):
        raise InputError(f"expected paths that are UTF-8, got {path!r} for {name}: rename it")
    same = path.rstrip("/") or path
    if same in owner:
        raise InputError(
            f"expected every path once, or its text counts twice; {path} is given for "
            f"{owner[same]} and for {name}"
        )
    owner[same] = name


def _limits(
    names: Sequence[str],
    shares: np.ndarray,
    supply: np.ndarray | None,
    max_epochs: float,
    tokens: float | None,
    sequence_length: int | None,
) -> np.ndarray:
    """The largest share of every source, one training sample below its supply."""
    if supply is None or tokens is None:
        raise InputError(
            f"{option('max_epochs')} needs {option('supply', ...)} and {option('tokens', ...)}, "
            "or a proposal that has them"
        )
    # Trainers draw whole samples, so a source may be asked for one more than its share.
    sample = float(sequence_length or 1)
    for k, name in enumerate(names):
        epochs = shares[k] * tokens / supply[k]
        if epochs > max_epochs * (1 + 1e-9):
            raise InputError(
                f"{name} would be repeated {epochs:.4g} times at D = {format_count(tokens)} "
                f"(supply {format_count(supply[k])}), more than "
                f"{option('max_epochs', max_epochs)}; lower its ratio or D"
            )
    return np.minimum(1.0, np.maximum(max_epochs * supply - sample, 0.0) / tokens)
