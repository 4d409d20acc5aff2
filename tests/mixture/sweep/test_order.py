"""Token shares hold exactly, and seeds pair runs across mixtures."""

from pathlib import Path

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.sweep.corpus import Corpus, prepare_corpus
from apportion.mixture.sweep.order import (
    check_supply,
    family_blocks,
    language_order,
    run_blocks,
    training_blocks,
)
from apportion.mixture.sweep.shares import block_counts
from sweeptext import TINY, write_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder: Path = tmp_path_factory.mktemp("order")
    return prepare_corpus(write_text(folder / "text"), folder / "cache", TINY)


def owners(corpus: Corpus, rows: np.ndarray) -> list[str]:
    """Family of every row, found by its content."""
    homes = {
        row.tobytes(): name
        for name, family in corpus.families.items()
        for part in family.train
        for row in np.asarray(part)
    }
    return [homes[row.tobytes()] for row in rows]


@pytest.mark.parametrize("blocks", [1, 7, 100, 2344])
def test_counts_are_off_by_less_than_a_block_and_sum_up(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    for _ in range(50):
        ratios = rng.dirichlet(np.ones(5))
        counts = block_counts(ratios, blocks)
        assert counts.sum() == blocks
        assert np.all(np.abs(counts - ratios * blocks) < 1)


def test_runs_are_whole_batches() -> None:
    assert run_blocks(300_000, 128, 8) == 293 * 8
    assert run_blocks(1, 128, 8) == 8


def test_a_run_holds_every_family_in_its_share_overall_and_along_the_way(corpus: Corpus) -> None:
    ratios = {"alpha": 0.5, "beta": 0.3, "gamma": 0.2}
    rows, _ = training_blocks(corpus, ratios, 200, seed=3)
    names = np.array(owners(corpus, rows))
    for name, ratio in ratios.items():
        assert (names == name).sum() == round(200 * ratio)
        # systematic order: never more than two blocks off the share, at any point of the run
        drift = np.cumsum(names == name) - ratio * np.arange(1, 201)
        assert np.abs(drift).max() <= 2


def test_a_seed_gives_every_mixture_the_same_blocks_of_a_family_in_order(corpus: Corpus) -> None:
    few, _ = training_blocks(corpus, {"alpha": 0.2, "beta": 0.4, "gamma": 0.4}, 100, seed=5)
    many, _ = training_blocks(corpus, {"alpha": 0.6, "beta": 0.2, "gamma": 0.2}, 100, seed=5)
    few_alpha = few[np.array(owners(corpus, few)) == "alpha"]
    many_alpha = many[np.array(owners(corpus, many)) == "alpha"]
    assert len(few_alpha) == 20
    np.testing.assert_array_equal(few_alpha, many_alpha[:20])
    other, _ = training_blocks(corpus, {"alpha": 0.2, "beta": 0.4, "gamma": 0.4}, 100, seed=6)
    assert not np.array_equal(few, other)


def test_no_block_comes_twice_within_an_epoch(corpus: Corpus) -> None:
    family = corpus.families["beta"]
    size = len(family.train[0])
    rows, epochs = family_blocks(family, size, (0, 1, 1))
    assert epochs == 1
    assert len(np.unique(rows, axis=0)) == len(np.unique(np.asarray(family.train[0]), axis=0))
    rows, epochs = family_blocks(family, size + 1, (0, 1, 1))
    assert epochs == 2


def test_languages_keep_their_weights_in_every_stretch() -> None:
    order = language_order(np.array([0.7, 0.2, 0.1]), 100)
    assert np.bincount(order).tolist() == [70, 20, 10]
    assert np.bincount(order[:10]).tolist() == [7, 2, 1]
    np.testing.assert_array_equal(order[:37], language_order(np.array([0.7, 0.2, 0.1]), 37))


def test_a_family_with_too_little_text_is_named_with_the_numbers(corpus: Corpus) -> None:
    ratios = {"alpha": 0.1, "beta": 0.1, "gamma": 0.8}
    has = corpus.families["gamma"].unique_tokens
    blocks = 4 * has // TINY.length
    needs = round(0.8 * blocks) * TINY.length
    with pytest.raises(InputError, match=rf"family gamma needs {needs:,} .* has {has:,}"):
        check_supply(corpus, ratios, blocks, 1.0, "big")
    check_supply(corpus, ratios, blocks, 4.0, "big")
