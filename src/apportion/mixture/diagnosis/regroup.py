"""Other groupings of the families: which one comes closest to hypothesis 1?

A grouping is good when the loss of every family is described by the share of its *group*. Score of
a family under a grouping: the variance of its log loss that the whole mixture explains beyond N, D
and the share of its group (square roots of all shares, least squares, less what noise alone would
explain). A merge of families that teach each other lowers it; a merge of strangers raises it,
because their own shares then matter within the group; all in one group explains nothing. Refused:
scoring the loss of the merged group, for averages hide effects that cancel, and one group of
everything would often win.

A score depends on one family and its group only, so all partitions of up to six families cost 192
regressions; above, groups are merged greedily. Uncertainty: jackknife over folds of mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from apportion.errors import InputError
from apportion.mixture.diagnosis.crosseffect import dummies
from apportion.mixture.diagnosis.regression import span
from apportion.mixture.runs import RunTable

Partition = tuple[tuple[int, ...], ...]

_EXHAUSTIVE = 6
_FOLDS = 20
# A coarser grouping must be better by this many standard errors of the difference: many are tried.
_CLEARLY = 2.5


@dataclass(frozen=True)
class Grouping:
    """A grouping and how it compares with the families as they are.

    Attributes:
        groups: the new family of every family.
        spread: root of the mean score: about the relative loss that goes unexplained.
        spread_before: the same for the families as they are.
        gain, gain_error: difference of the mean scores (variances) and its jackknife error.
    """

    groups: dict[str, str]
    spread: float
    spread_before: float
    gain: float
    gain_error: float

    @property
    def better(self) -> bool:
        """Clearly less cross-effect than the families as they are."""
        return self.gain > _CLEARLY * self.gain_error and self.gain > 0


def merge_families(
    runs: RunTable, groups: Mapping[str, str], weights: Mapping[str, float] | None = None
) -> RunTable:
    """The same runs with some families put together.

    The ratio of a merged family is the sum of its members'. Its loss is their average with fixed
    weights, equal unless given (members without a loss do not count): a fixed validation set, never
    reweighted by the ratios of a run. Bytes per token are averaged alike, unique tokens added.

    Args:
        runs: the table.
        groups: new name of every family that changes; the others stay.
        weights: weight of a family within its group.

    Raises:
        InputError: unknown families, or weights that are negative or all zero in a group.
    """
    for family in [*groups, *(weights or {})]:
        runs.family_index(family)
    named = [groups.get(family, family) for family in runs.families]
    families = tuple(dict.fromkeys(named))
    into = np.array([[name == family for family in families] for name in named], dtype=float)
    homes = [groups.get(target, target) for target in runs.targets]
    targets = tuple(dict.fromkeys(homes))
    given = np.array([(weights or {}).get(target, 1.0) for target in runs.targets], dtype=float)
    average = given[:, None] * np.array([[h == t for t in targets] for h in homes], dtype=float)
    total = average.sum(axis=0)
    if not np.isfinite(given).all() or (given < 0).any() or (total <= 0).any():
        raise InputError(
            f"expected weights >= 0, above 0 in every group; got {dict(weights or {})}"
        )
    average = average / total
    density, unique = runs.bytes_per_token, runs.unique_tokens
    return replace(
        runs,
        families=families,
        ratios=runs.ratios @ into,
        targets=targets,
        losses=runs.losses @ average,
        bytes_per_token=None if density is None else density @ average,
        unique_tokens=None
        if unique is None
        else np.where(into > 0, unique[:, None], 0).sum(axis=0),
    )


def judge_grouping(runs: RunTable, groups: Mapping[str, str]) -> Grouping:
    """Compare a given grouping with the families as they are.

    Raises:
        InputError: unknown families.
    """
    for family in groups:
        runs.family_index(family)
    names = [groups.get(family, family) for family in runs.families]
    partition = tuple(
        tuple(k for k, other in enumerate(names) if other == name) for name in dict.fromkeys(names)
    )
    return _Scores(runs).grouping(partition, dict(zip(runs.families, names, strict=True)))


def find_grouping(runs: RunTable) -> Grouping:
    """The grouping with the least cross-effect, as fine as the runs allow to tell.

    All partitions up to six families, greedy merging above. Among partitions that are not clearly
    worse than the best, the one with most groups is returned: often the families as they are.
    """
    scores = _Scores(runs)
    count = len(runs.families)
    tried = list(_partitions(count) if count <= _EXHAUSTIVE else _greedy(count, scores.rank))
    best = min(tried, key=scores.rank)

    def close(partition: Partition) -> bool:
        gain, error = scores.difference(partition, best)
        return gain <= _CLEARLY * error

    finest = max(len(p) for p in tried if p == best or close(p))
    chosen = min(
        (p for p in tried if len(p) == finest and (p == best or close(p))), key=scores.rank
    )
    return scores.grouping(chosen, None)


class _Scores:
    """Scores of (family, group), computed once each: all runs first, then one fold left out."""

    def __init__(self, runs: RunTable) -> None:
        self.runs = runs
        self.known: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        mixtures = runs.mixtures()
        order = np.random.default_rng(0).permutation(int(mixtures.max()) + 1)
        self.fold = (order % min(_FOLDS, len(order)))[mixtures]
        self.base = _size_columns(runs)
        self.logs = np.log(runs.losses)

    def of(self, k: int, group: tuple[int, ...]) -> np.ndarray:
        if (k, group) not in self.known:
            own = self.runs.ratios[:, self.runs.family_index(self.runs.targets[k])]
            rows = np.flatnonzero(own > 0)
            shares = self.runs.ratios[rows]
            y, fold = self.logs[rows, k], self.fold[rows]
            columns = np.hstack([self.base[rows], self._share_columns(rows, group)])
            values = [_explained(y, columns, np.sqrt(shares))]
            for left in range(int(self.fold.max()) + 1):
                kept = fold != left
                values.append(_explained(y[kept], columns[kept], np.sqrt(shares[kept])))
            self.known[k, group] = np.array(values)
        return self.known[k, group]

    def _share_columns(self, rows: np.ndarray, group: tuple[int, ...]) -> np.ndarray:
        log = np.log(self.runs.ratios[rows][:, list(group)].sum(axis=1))
        params, tokens = np.log(self.runs.params[rows]), np.log(self.runs.tokens[rows])
        drift = (log * (params - params.mean()), log * (tokens - tokens.mean()))
        return np.stack([log, log**2, np.exp(log / 2), *drift], axis=1)

    def partition(self, partition: Partition) -> np.ndarray:
        place = {family: group for group in partition for family in group}
        each = [
            self.of(k, place[self.runs.family_index(target)])
            for k, target in enumerate(self.runs.targets)
        ]
        return np.mean(each, axis=0)

    def mean(self, partition: Partition) -> float:
        return float(self.partition(partition)[0])

    def rank(self, partition: Partition) -> float:
        """The score to minimise; what too few runs leave open comes last."""
        value = self.mean(partition)
        return value if np.isfinite(value) else float("inf")

    def difference(self, one: Partition, other: Partition) -> tuple[float, float]:
        """Score of `one` minus that of `other`, and its jackknife error."""
        gap = self.partition(one) - self.partition(other)
        folds = gap[1:]
        error = np.sqrt((len(folds) - 1) / len(folds) * ((folds - folds.mean()) ** 2).sum())
        return float(gap[0]), float(error)

    def grouping(self, partition: Partition, names: dict[str, str] | None) -> Grouping:
        families = self.runs.families
        if names is None:
            names = {
                families[k]: "+".join(families[m] for m in group)
                for group in partition
                for k in group
            }
            names = {family: names[family] for family in families}
        single = tuple((k,) for k in range(len(families)))
        gain, error = self.difference(single, partition)
        now, before = self.mean(partition), self.mean(single)
        return Grouping(names, _root(now), _root(before), gain, error)


def _root(variance: float) -> float:
    return float(np.sqrt(variance if variance > 0 or np.isnan(variance) else 0.0))


def _size_columns(runs: RunTable) -> Float[np.ndarray, "runs _"]:
    """A constant per (N, D) where these are few, else a quadratic in log N and log D."""
    cells = runs.cells()
    if (int(cells.max()) + 1) * 4 <= len(runs):
        return dummies(cells)
    n, d = np.log(runs.params), np.log(runs.tokens)
    return np.stack([np.ones(len(runs)), n, d, n * n, d * d, n * d], axis=1)


def _explained(y: np.ndarray, base: np.ndarray, extra: np.ndarray) -> float:
    """Variance of y that `extra` explains beyond `base`, less the part due to noise."""
    small, large = span(base), span(np.hstack([base, extra]))
    freedom = len(y) - large.shape[1]
    if freedom < 1:
        return float("nan")
    squares = [float(((y - basis @ (basis.T @ y)) ** 2).sum()) for basis in (small, large)]
    added = large.shape[1] - small.shape[1]
    return (squares[0] - squares[1] - added * squares[1] / freedom) / len(y)


def _partitions(count: int) -> Iterator[Partition]:
    """Every way to put `count` families into groups, each by itself first."""

    def extend(done: list[list[int]], k: int) -> Iterator[Partition]:
        if k == count:
            yield tuple(tuple(group) for group in done)
            return
        yield from extend([*done, [k]], k + 1)
        for place in range(len(done)):
            yield from extend([g + [k] * (n == place) for n, g in enumerate(done)], k + 1)

    return extend([], 0)


def _greedy(count: int, score: Callable[[Partition], float]) -> Iterator[Partition]:
    """The families as they are, then the best merge of two groups at a time while it helps."""
    current: Partition = tuple((k,) for k in range(count))
    yield current
    while len(current) > 1:
        merges = [
            tuple(sorted([*(g for g in current if g not in (a, b)), tuple(sorted(a + b))]))
            for n, a in enumerate(current)
            for b in current[n + 1 :]
        ]
        best = min(merges, key=score)
        if score(best) >= score(current):
            return
        current = best
        yield current
