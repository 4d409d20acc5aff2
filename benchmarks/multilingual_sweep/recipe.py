"""Which recipe trains best with the least seed noise: appends one row per candidate.

    python benchmarks/multilingual_sweep/recipe.py --shapes 0.2M --rates 4e-3,8e-3 \
        --schedules 0/0.5,1/0 --seeds 3

Every candidate trains uniformly over the families with each seed. ``loss`` is the mean
held-out loss over families and seeds in nats per token; ``seed_sd`` the standard deviation
between seeds, root mean square over the families; ``seed_sd_mean`` that of the mean over
families. A schedule is DECAY/AVERAGE, both shares of the run's steps; ``text`` begins the hash
of the corpus.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import platform
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.execution import LocalExecutor
from apportion.mixture.sweep.corpus import CorpusSettings, load_corpus, prepare_corpus
from apportion.mixture.sweep.model import SHAPES
from apportion.mixture.sweep.order import run_blocks, training_blocks
from apportion.mixture.sweep.train import Recipe, train_run

HOME = Path.home() / ".cache/apportion/multilingual-sweep"
RESULTS = Path(__file__).parent / "tables/recipe.csv"


@dataclass(frozen=True)
class Trial:
    """One training of one candidate."""

    cache: str
    shape: str
    tokens: int
    recipe: Recipe
    seed: int


def carry_out(trial: Trial, report: Any) -> tuple[dict[str, float], float]:
    """Losses by family and tokens per second of one trial."""
    corpus = load_corpus(Path(trial.cache))
    blocks = run_blocks(trial.tokens, corpus.settings.length, trial.recipe.batch)
    uniform = {name: 1 / len(corpus.families) for name in corpus.families}
    rows, _ = training_blocks(corpus, uniform, blocks, trial.seed)
    valid = {name: family.valid for name, family in corpus.families.items()}
    result = train_run(
        SHAPES[trial.shape],
        rows,
        valid,
        trial.recipe,
        seed=trial.seed,
        vocab=corpus.settings.vocab,
        report=report,
    )
    return result.losses, result.tokens_per_second


def candidates(options: argparse.Namespace) -> list[tuple[str, int, Recipe]]:
    """Every combination asked for."""
    numbers = [options.rates, options.embedding_rates, options.clips, options.warmups]
    grids = [[float(x) for x in text.split(",")] for text in numbers]
    batches = [int(x) for x in options.batches.split(",")]
    schedules = [[float(x) for x in s.split("/")] for s in options.schedules.split(",")]
    return [
        (
            shape,
            int(float(tokens)),
            Recipe(
                rate=rate,
                embedding_rate=rate * factor,
                clip=clip,
                warmup=warmup,
                batch=batch,
                decay=decay,
                average=average,
            ),
        )
        for shape, tokens, rate, factor, clip, warmup, batch, (decay, average) in itertools.product(
            options.shapes.split(","), options.tokens.split(","), *grids, batches, schedules
        )
    ]


def summary(results: list[tuple[dict[str, float], float]]) -> dict[str, float | str]:
    """Mean loss and seed noise of one candidate."""
    losses = np.array([list(result[0].values()) for result in results])
    spread = losses.std(axis=0, ddof=1)
    families = list(results[0][0])
    return {
        "loss": round(float(losses.mean()), 5),
        "seed_sd": round(float(np.sqrt((spread**2).mean())), 5),
        "seed_sd_mean": round(float(losses.mean(axis=1).std(ddof=1)), 5),
        "tokens_per_second": round(float(np.median([result[1] for result in results]))),
        **{
            f"loss_{name}": round(float(x), 5)
            for name, x in zip(families, losses.mean(axis=0), strict=True)
        },
    }


def append(path: Path, row: dict[str, Any]) -> None:
    """Add one row to the ledger."""
    new = not path.exists()
    with path.open("a", newline="") as handle:
        writer = csv.DictWriter(handle, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    """Try every candidate and append its row as soon as all its seeds are done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HOME / "text")
    parser.add_argument("--cache", type=Path, default=HOME / "tokens")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--shapes", default="0.2M")
    parser.add_argument("--tokens", default="4e5")
    parser.add_argument("--rates", default="4e-3,8e-3,16e-3")
    parser.add_argument("--embedding-rates", default="1", help="times the rate")
    parser.add_argument("--clips", default="1")
    parser.add_argument("--warmups", default="0.05")
    parser.add_argument("--batches", default="8")
    parser.add_argument("--schedules", default="0/0.5,1/0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    text = prepare_corpus(options.data, options.cache, CorpusSettings()).digest[:12]
    trials = [
        Trial(str(options.cache), shape, tokens, recipe, seed)
        for shape, tokens, recipe in candidates(options)
        for seed in range(options.seeds)
    ]
    done: dict[Any, list[tuple[dict[str, float], float]]] = defaultdict(list)
    for outcome in LocalExecutor(options.workers).run(carry_out, trials):
        if outcome.error:
            print(outcome.job, outcome.error, flush=True)
            continue
        trial = outcome.job
        key = (trial.shape, trial.tokens, trial.recipe)
        done[key].append(outcome.result)
        if len(done[key]) == options.seeds:
            row = {
                "text": text,
                "shape": trial.shape,
                "tokens": trial.tokens,
                "seeds": options.seeds,
            }
            row |= asdict(trial.recipe) | summary(done[key])
            row |= {
                "machine": f"{platform.machine()} x{os.cpu_count()}",
                "torch": torch.__version__,
            }
            append(options.out, row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
