"""The run table in memory: what each training run was given and what loss each family reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from apportion.budget import counted, format_count
from apportion.errors import InputError
from apportion.mixture.laws.base import Conditions


@dataclass(frozen=True)
class RunTable:
    """Validated training runs, one row a run (build it with `read_runs` or `RunTable.of`).

    Attributes:
        run: the name of every run, unique.
        params: non-embedding parameters N.
        tokens: training tokens D.
        families: names of the ratio columns.
        ratios: sampling ratios; every row sums to 1.
        targets: names of the families with a loss; own tables have all of them.
        losses: validation loss of every target, nats per token.
        seed: the seed of every run, if known.
        bytes_per_token: per target; with it losses can be shown as bits per byte.
        unique_tokens: tokens that each family has, if known (repetition needs it).
        extra: further columns of the file, kept as they came.
    """

    run: tuple[str, ...]
    params: Float[np.ndarray, " runs"]
    tokens: Float[np.ndarray, " runs"]
    families: tuple[str, ...]
    ratios: Float[np.ndarray, "runs families"]
    targets: tuple[str, ...]
    losses: Float[np.ndarray, "runs targets"]
    seed: Int[np.ndarray, " runs"] | None = None
    bytes_per_token: Float[np.ndarray, "runs targets"] | None = None
    unique_tokens: Float[np.ndarray, " families"] | None = None
    extra: pd.DataFrame | None = None

    @classmethod
    def of(
        cls,
        params: np.ndarray,
        tokens: np.ndarray,
        ratios: np.ndarray,
        losses: np.ndarray,
        families: Sequence[str],
        targets: Sequence[str] | None = None,
    ) -> RunTable:
        """A table from plain arrays that are known to be sound; runs are named by their row."""
        count = len(params)
        return cls(
            run=tuple(f"run{row}" for row in range(count)),
            params=np.asarray(params, dtype=float),
            tokens=np.asarray(tokens, dtype=float),
            families=tuple(families),
            ratios=np.asarray(ratios, dtype=float),
            targets=tuple(targets if targets is not None else families),
            losses=np.asarray(losses, dtype=float),
        )

    def __len__(self) -> int:
        return len(self.run)

    def __str__(self) -> str:
        return (
            f"{counted(len(self), 'run')}, {counted(len(self.families), 'family', 'families')} "
            f"({', '.join(self.families)}), {self.spans()}"
        )

    def spans(self) -> str:
        """The sizes of the runs: "N 49.2k to 603k, D 250k to 1M"."""
        sizes = (("N", self.params), ("D", self.tokens))
        return ", ".join(f"{name} {_span(values)}" for name, values in sizes)

    def take(
        self, rows: Bool[np.ndarray, " runs"] | Int[np.ndarray, " kept"] | Sequence[int]
    ) -> RunTable:
        """The table of the chosen rows (mask or indices), in that order."""
        index = np.asarray(rows)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        return replace(
            self,
            run=tuple(self.run[row] for row in index),
            params=self.params[index],
            tokens=self.tokens[index],
            ratios=self.ratios[index],
            losses=self.losses[index],
            seed=None if self.seed is None else self.seed[index],
            bytes_per_token=None if self.bytes_per_token is None else self.bytes_per_token[index],
            extra=None if self.extra is None else self.extra.iloc[index].reset_index(drop=True),
        )

    def family_index(self, family: str) -> int:
        """Column of a family in `ratios`.

        Raises:
            InputError: the table has no such family.
        """
        if family not in self.families:
            raise InputError(f"expected a family out of {', '.join(self.families)}; got {family!r}")
        return self.families.index(family)

    def order(self, target: str) -> tuple[str, ...]:
        """The families as a law sees them from one target: its own name first."""
        return (target, *(family for family in self.families if family != target))

    def conditions(self, target: str) -> Conditions:
        """The runs as a law sees them from one target: its own ratio first, then the others."""
        return conditions(
            self.params, self.tokens, self.ratios, self.family_index(target), self.unique_tokens
        )

    def mixtures(self) -> Int[np.ndarray, " runs"]:
        """A number for every distinct mixture (ratios equal to 1e-6), in order of appearance."""
        return _group(np.round(self.ratios, 6))

    def cells(self) -> Int[np.ndarray, " runs"]:
        """A number for every distinct (N, D), in order of appearance."""
        return _group(np.stack([self.params, self.tokens], axis=1))

    def bits_per_byte(self) -> Float[np.ndarray, "runs targets"]:
        """Losses as bits per byte, which can be compared across vocabularies.

        Raises:
            InputError: the table has no bytes per token.
        """
        if self.bytes_per_token is None:
            raise InputError(
                "expected columns bytes_per_token_<family>, found none; "
                "add them to show losses as bits per byte"
            )
        return self.losses / self.bytes_per_token / np.log(2.0)

    def to_frame(self) -> pd.DataFrame:
        """The table in its file layout (see `read_runs`)."""
        columns: dict[str, object] = {
            "run": list(self.run),
            "params": whole(self.params),
            "tokens": whole(self.tokens),
        }
        if self.seed is not None:
            columns["seed"] = self.seed
        for prefix, names, block in (
            ("ratio_", self.families, self.ratios),
            ("loss_", self.targets, self.losses),
            ("bytes_per_token_", self.targets, self.bytes_per_token),
        ):
            if block is not None:
                columns |= {prefix + name: block[:, k] for k, name in enumerate(names)}
        frame = pd.DataFrame(columns)
        if self.extra is not None and len(self.extra.columns):
            frame = pd.concat([frame, self.extra.reset_index(drop=True)], axis=1)
        return frame


def whole(
    values: Float[np.ndarray, " runs"],
) -> Float[np.ndarray, " runs"] | Int[np.ndarray, " runs"]:
    """Counts as integers, to be written without `.0`; as they are where some are not integers."""
    exact = bool(np.all((values == np.floor(values)) & (np.abs(values) < 2.0**53)))
    return values.astype(np.int64) if exact else values


def conditions(
    params: np.ndarray,
    tokens: np.ndarray,
    ratios: np.ndarray,
    target: int,
    unique: np.ndarray | None = None,
) -> Conditions:
    """`Conditions` of one target from arrays in table order (family columns as in the table)."""
    order = np.r_[target, np.delete(np.arange(ratios.shape[-1]), target)]
    return Conditions(
        params=params,
        tokens=tokens,
        ratios=ratios[..., order],
        unique=None if unique is None else unique[..., order],
    )


def _group(rows: np.ndarray) -> Int[np.ndarray, " runs"]:
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def _span(values: np.ndarray) -> str:
    low, high = (format_count(float(f"{end:.3g}")) for end in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
