"""Run tables on which hypothesis 1 is put to the test: Latin squares, transfer, groups, drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from apportion.mixture.runs import RunTable

LADDER = np.array([0.03, 0.06, 0.13, 0.26, 0.52])


def squares(families: int = 5) -> np.ndarray:
    """All Latin-square mixtures of a prime number of families, the uniform one, dominant ones."""
    rungs = np.geomspace(0.03, 0.5, families)
    rungs = rungs / rungs.sum()
    place = np.arange(families)
    rows = [rungs[(r + k * place) % families] for k in range(1, families) for r in place]
    rows.append(np.full(families, 1 / families))
    for k in place:
        row = np.full(families, 0.3 / (families - 1))
        row[k] = 0.7
        rows.append(row)
    return np.array(rows)


def grid(
    sizes: Sequence[tuple[float, float]], mixtures: np.ndarray, seeds: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every size with every mixture and seed: N, D, ratios, seed."""
    rows = [(n, d, s, m) for n, d in sizes for m in range(len(mixtures)) for s in range(seeds)]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return columns[0], columns[1], mixtures[columns[3]], columns[2]


def table(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    log_effect: Callable[[np.ndarray], np.ndarray],
    noise: float = 0.01,
    seed: int = 0,
) -> RunTable:
    """Runs whose losses are (1.8 + .6 (N / 2e5)^-.3 + .6 (D / 8e5)^-.3) exp(log_effect(ratios)).

    `log_effect` may also use N through its second column block: it is called with the ratios and
    returns (runs, families).
    """
    params, tokens, ratios, seeds = rows
    rng = np.random.default_rng(seed)
    base = 1.8 + 0.6 * (params / 2e5) ** -0.3 + 0.6 * (tokens / 8e5) ** -0.3
    logs = np.log(base)[:, None] + log_effect(ratios)
    logs = logs + noise * rng.standard_normal(logs.shape)
    names = [f"f{k}" for k in range(ratios.shape[1])]
    made = RunTable.of(params, tokens, ratios, np.exp(logs), names)
    return replace(made, seed=seeds.astype(np.int64))


def own_power(gamma: float = 0.12) -> Callable[[np.ndarray], np.ndarray]:
    """The family law's p^-gamma."""
    return lambda ratios: -gamma * np.log(ratios)


def grouped(groups: Sequence[int], gamma: float = 0.12) -> Callable[[np.ndarray], np.ndarray]:
    """Every family's loss follows the share of its whole group."""
    member = np.equal.outer(groups, groups).astype(float)
    return lambda ratios: -gamma * np.log(ratios @ member)
