"""A run learns, repeats to the bit, and averages what it says it averages."""

import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.sweep import train
from apportion.mixture.sweep.model import ModelShape
from apportion.mixture.sweep.train import DivergedError, Recipe, RunResult, train_run

SHAPE = ModelShape(width=16, layers=1, heads=2, hidden=24)
VALID = {"even": 0, "odd": 1}


def text(kind: int, blocks: int, seed: int) -> np.ndarray:
    """Blocks that count by twos, modulo 40, from an even (0) or odd (1) start."""
    starts = np.random.default_rng(seed).integers(0, 20, (blocks, 1)) * 2 + kind
    return ((starts + 2 * np.arange(17)) % 40).astype(np.uint16)


def run(rows: np.ndarray, seed: int = 0, **changes: float) -> RunResult:
    recipe = Recipe(batch=4, compile=False, **changes)  # pyright: ignore[reportArgumentType]
    valid = {name: text(kind, 10, 99) for name, kind in VALID.items()}
    return train_run(SHAPE, rows, valid, recipe, seed=seed, vocab=40)


def test_a_run_learns_what_it_reads_and_only_that() -> None:
    result = run(text(0, 240, 1), rate=3e-2, embedding_rate=3e-2)
    assert result.losses["even"] < 0.5
    assert result.losses["odd"] > 2
    assert result.tokens == 240 * 16


def test_a_run_repeats_to_the_bit_and_seeds_differ() -> None:
    rows = text(0, 40, 1)
    first, again, other = run(rows), run(rows), run(rows, seed=1)
    assert first.losses == again.losses
    assert first.losses != other.losses


def test_averaging_the_last_step_alone_is_no_averaging() -> None:
    rows = text(0, 80, 1)
    last = run(rows, average=0.0)
    assert run(rows, average=0.05).losses == last.losses  # 20 steps: one step
    assert run(rows, average=0.5).losses != last.losses


def test_rates_rise_stay_and_fall() -> None:
    recipe = Recipe(warmup=0.1, decay=0.5)
    factors = [recipe.factor(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10] == 1
    assert factors[50] == 1
    assert factors[-1] == pytest.approx(1 / 50)
    assert np.all(np.diff(factors[50:]) < 0)


def test_progress_is_told_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "REPORT_SECONDS", 0.0)
    heard: list[int] = []
    rows = text(0, 40, 1)
    recipe = Recipe(batch=4, compile=False)
    train_run(SHAPE, rows, {"even": rows[:10]}, recipe, seed=0, vocab=40, report=heard.append)
    assert heard == [step * 4 * 16 for step in range(1, 11)]


def test_divergence_is_an_error() -> None:
    with pytest.raises(DivergedError, match="lower the recipe's rate"):
        run(text(0, 40, 1), rate=1e30, embedding_rate=1e30, clip=0.0)


@pytest.mark.parametrize("change", [{"rate": 0}, {"batch": 0}, {"average": 1.5}, {"decay": -1}])
def test_impossible_recipes_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match="recipe"):
        Recipe(**change)  # pyright: ignore[reportArgumentType]
