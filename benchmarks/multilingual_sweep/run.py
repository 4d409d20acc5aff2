"""The real sweep over five language families, in three resumable parts.

    python benchmarks/multilingual_sweep/run.py fit heldout proposed

``fit`` (a): the default plan over three sizes and three budgets, repeated mixtures included.
``heldout`` (b): 8 times the largest fitted N and twice its D, on mixtures that the fit never saw.
``proposed`` (c): 4 times the largest fitted N; the ratios in ``proposed.json`` (name -> ratios,
written from the fit of part a) against uniform, proportional, temperature and UniMax, three seeds.
While ``proposed.json`` is missing, part c trains its baselines, then waits.

Text comes from ``prepare.py``. A killed run is resumed by the same command. UniMax caps no family
while the text outlasts the budget; then it is uniform, and is not trained twice.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from apportion.mixture.sweep import PlannedRun, Recipe, default_plan, prepare_corpus, sweep
from apportion.mixture.sweep.corpus import Corpus

HOME = Path.home() / ".cache/apportion/multilingual-sweep"
TABLES = Path(__file__).parent / "tables"
PROPOSED = Path(__file__).parent / "proposed.json"
FAMILIES = ("germanic", "indic", "romance", "sino_tibetan", "slavic")

SHAPES = ("0.05M", "0.2M", "0.6M")
TOKENS = (250_000, 500_000, 1_000_000)
HELDOUT_SHAPE, HELDOUT_TOKENS = "4.8M", 2_000_000
PROPOSED_SHAPE, PROPOSED_TOKENS = "2.4M", 500_000
SEEDS = (0, 1, 2)
RECIPE = Recipe()

HELDOUT = {
    "west": (0.35, 0.10, 0.35, 0.10, 0.10),
    "slavic-indic": (0.10, 0.30, 0.10, 0.10, 0.40),
    "far": (0.30, 0.05, 0.15, 0.45, 0.05),
    "slope": (0.12, 0.38, 0.08, 0.20, 0.22),
}
"""Ratios in the order of ``FAMILIES``."""


def heldout() -> list[PlannedRun]:
    """Part b."""
    return [
        PlannedRun(
            run=f"heldout-{HELDOUT_SHAPE}-{HELDOUT_TOKENS // 1000}k-{name}-s0",
            shape=HELDOUT_SHAPE,
            tokens=HELDOUT_TOKENS,
            seed=0,
            ratios=dict(zip(FAMILIES, ratios, strict=True)),
            part="heldout",
        )
        for name, ratios in HELDOUT.items()
    ]


def unimax(supply: np.ndarray, tokens: float, epochs: float = 1.0) -> np.ndarray:
    """UniMax ratios: the families, smallest first, get an equal share of what is left."""
    ratios = np.zeros(len(supply))
    left = tokens
    for place, index in enumerate(np.argsort(supply)):
        ratios[index] = min(left / (len(supply) - place), supply[index] * epochs)
        left -= ratios[index]
    return ratios / ratios.sum()


def baselines(corpus: Corpus) -> dict[str, np.ndarray]:
    """Uniform, proportional, temperature 0.3 and, where it differs from uniform, UniMax."""
    supply = np.array([corpus.families[name].unique_tokens for name in FAMILIES], dtype=float)
    uniform = np.full(len(FAMILIES), 1 / len(FAMILIES))
    found = {
        "uniform": uniform,
        "proportional": supply / supply.sum(),
        "temperature": supply**0.3 / (supply**0.3).sum(),
    }
    capped = unimax(supply, PROPOSED_TOKENS)
    if np.allclose(capped, uniform, atol=1e-9):
        print("UniMax is uniform at this budget: no family runs out of text", flush=True)
    else:
        found["unimax"] = capped
    return found


def proposed(corpus: Corpus) -> list[PlannedRun]:
    """Part c, seed by seed, so that an early end leaves whole seeds."""
    mixtures = {k: dict(zip(FAMILIES, v, strict=True)) for k, v in baselines(corpus).items()}
    if PROPOSED.exists():
        mixtures |= json.loads(PROPOSED.read_text("utf-8"))
    return [
        PlannedRun(
            run=f"proposed-{PROPOSED_SHAPE}-{PROPOSED_TOKENS // 1000}k-{name}-s{seed}",
            shape=PROPOSED_SHAPE,
            tokens=PROPOSED_TOKENS,
            seed=seed,
            ratios={family: float(ratios[family]) for family in FAMILIES},
            part=name,
        )
        for seed in SEEDS
        for name, ratios in mixtures.items()
    ]


def main() -> None:
    """Run the parts named, in their order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=["fit", "heldout", "proposed"])
    parser.add_argument("--data", type=Path, default=HOME / "text")
    parser.add_argument("--cache", type=Path, default=HOME / "tokens")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    corpus = prepare_corpus(options.data, options.cache)
    TABLES.mkdir(exist_ok=True)

    def carry_out(part: str, plan: list[PlannedRun]) -> None:
        sweep(
            options.data,
            TABLES / f"{part}.csv",
            plan,
            workers=options.workers,
            recipe=RECIPE,
            cache=options.cache,
        )

    for part in options.parts:
        if part == "fit":
            carry_out(part, default_plan(FAMILIES, SHAPES, TOKENS))
        elif part == "heldout":
            carry_out(part, heldout())
        else:
            carry_out(part, proposed(corpus))
            while not PROPOSED.exists():
                time.sleep(5)
            carry_out(part, proposed(corpus))
        print(f"part {part} is done", flush=True)


if __name__ == "__main__":
    main()
