"""Which block comes when: exact token shares, and as little chance as possible.

A run of B blocks gives every family its share of B by largest remainder, so a
family's tokens are off its ratio by less than one block over the whole run. The
blocks of each family come evenly spread through the run (systematic sampling with
jitter), so every batch is close to the ratios as well; within a family the
languages are spread the same way.

A family's own order is a permutation per language and epoch that depends on the
seed alone. Two mixtures trained with one seed therefore read the same blocks of a
family in the same order, the longer share only reading on: paired runs, whose
differences are less noisy than the runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int, UInt16

from apportion.errors import InputError, option
from apportion.mixture.sweep.corpus import Corpus, FamilyTokens
from apportion.mixture.sweep.shares import block_counts


def run_blocks(tokens: int, length: int, batch: int) -> int:
    """Blocks of a run of about ``tokens``: the nearest whole number of batches, at least one."""
    return max(1, round(tokens / (length * batch))) * batch


def language_order(
    weights: Float[np.ndarray, " languages"], blocks: int
) -> Int[np.ndarray, " blocks"]:
    """Language of each of a family's first ``blocks`` blocks, evenly spread.

    A longer order begins with the shorter one.
    """
    keys = [(np.arange(int(blocks * weight) + 2) + 0.5) / weight for weight in weights]
    owners = np.repeat(np.arange(len(weights)), [len(key) for key in keys])
    return owners[np.argsort(np.concatenate(keys), kind="stable")[:blocks]]


def family_blocks(
    family: FamilyTokens, blocks: int, stream: tuple[int, ...]
) -> tuple[UInt16[np.ndarray, "blocks time"], int]:
    """First ``blocks`` blocks of one family in the order of ``stream``, and the epochs begun."""
    owners = language_order(family.weights, blocks)
    rows = np.empty((blocks, family.valid.shape[1]), dtype=np.uint16)
    epochs = 0
    for language, source in enumerate(family.train):
        places = np.flatnonzero(owners == language)
        begun = -(-len(places) // len(source))
        order = [
            np.random.default_rng((*stream, language, epoch)).permutation(len(source))
            for epoch in range(begun)
        ]
        if begun:
            rows[places] = source[np.concatenate(order)[: len(places)]]
        epochs = max(epochs, begun)
    return rows, epochs


def training_blocks(
    corpus: Corpus, ratios: Mapping[str, float], blocks: int, seed: int
) -> tuple[UInt16[np.ndarray, "blocks time"], dict[str, int]]:
    """All blocks of a run in order, and the epochs begun of every family."""
    shares = np.array([ratios[name] for name in corpus.families], dtype=np.float64)
    rows: list[np.ndarray] = []
    keys: list[np.ndarray] = []
    epochs: dict[str, int] = {}
    counts = block_counts(shares, blocks)
    for number, (name, count) in enumerate(zip(corpus.families, counts, strict=True)):
        part, epochs[name] = family_blocks(corpus.families[name], int(count), (seed, 1, number))
        jitter = np.random.default_rng((seed, 2, number)).random(int(count))
        rows.append(part)
        keys.append((np.arange(int(count)) + jitter) / max(int(count), 1))
    return np.concatenate(rows)[np.argsort(np.concatenate(keys), kind="stable")], epochs


def check_supply(
    corpus: Corpus, ratios: Mapping[str, float], blocks: int, max_epochs: float, run: str
) -> None:
    """Refuse a run that needs more of a language's tokens than ``max_epochs`` passes give."""
    length = corpus.settings.length
    shares = np.array([ratios[name] for name in corpus.families], dtype=np.float64)
    short: list[str] = []
    most = 0.0
    for (name, family), count in zip(
        corpus.families.items(), block_counts(shares, blocks), strict=True
    ):
        if not count:
            continue
        used = np.bincount(language_order(family.weights, int(count)), minlength=len(family.train))
        sizes = np.array([len(part) for part in family.train])
        # one block of slack: the held-out stretches round the languages' sizes a little
        if np.any(used > np.ceil(sizes * max_epochs) + 1 + 0.01 * sizes):
            epochs = int(count) * length / family.unique_tokens
            most = max(most, epochs)
            short.append(
                f"family {name} needs {int(count) * length:,} tokens (ratio {ratios[name]:.4g} of "
                f"{blocks * length:,}) and has {family.unique_tokens:,} for training: "
                f"{epochs:.2f} epochs"
            )
    if short:
        raise InputError(
            f"run {run}: {'; '.join(short)}; add text, lower the ratio or the tokens, or "
            f"allow repetition with {option('max_epochs', int(np.ceil(most)))}"
        )
