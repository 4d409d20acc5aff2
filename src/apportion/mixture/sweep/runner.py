"""The sweep: planned runs in, a run table out."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from apportion.budget import counted
from apportion.errors import InputError
from apportion.execution import Executor, LocalExecutor
from apportion.files import check_writable, only_writer
from apportion.mixture.sweep import table
from apportion.mixture.sweep.corpus import Corpus, CorpusSettings, load_corpus, prepare_corpus
from apportion.mixture.sweep.display import Display
from apportion.mixture.sweep.order import check_supply, run_blocks, training_blocks
from apportion.mixture.sweep.plan import (
    PlannedRun,
    check_plan,
    default_plan,
    parse_shape,
    read_plan,
)
from apportion.mixture.sweep.train import Recipe, RunResult, train_run

FIXED = ("corpus", "settings", "tokenizer", "recipe", "families")
"""Manifest entries that must not change while a table grows."""


class SweepError(RuntimeError):
    """Runs failed; the message names them. Everything finished is in the table."""


@dataclass(frozen=True)
class Job:
    """What a worker needs for one run; ``tokens`` a whole number of batches."""

    run: PlannedRun
    cache: str
    recipe: Recipe


def carry_out(job: Job, report: Any) -> RunResult:
    """One run in a worker: load the blocks, train, measure."""
    corpus = load_corpus(Path(job.cache))
    settings = corpus.settings
    blocks = run_blocks(job.run.tokens, settings.length, job.recipe.batch)
    rows, _ = training_blocks(corpus, job.run.ratios, blocks, job.run.seed)
    valid = {name: family.valid for name, family in corpus.families.items()}
    shape = parse_shape(job.run.shape)
    return train_run(
        shape, rows, valid, job.recipe, seed=job.run.seed, vocab=settings.vocab, report=report
    )


def sweep(
    data: str | Path,
    out: str | Path,
    plan: Sequence[PlannedRun] | str | Path | None = None,
    *,
    workers: int = 2,
    seed: int = 0,
    recipe: Recipe | None = None,
    settings: CorpusSettings | None = None,
    max_epochs: float = 1.0,
    cache: str | Path | None = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> Path:
    """Train every planned run that ``out`` does not have yet; returns the table's path.

    ``data`` holds FAMILY/LANGUAGE.txt (or .jsonl, .parquet); ``out`` is a CSV with one row
    a run: ``run, part, params`` (non-embedding), ``tokens, seed``, then per family
    ``ratio_`` (as planned; the tokens read match it to one block), ``loss_`` (nats per token on
    the family's own held-out text) and ``bytes_per_token_``, and ``tokens_per_second``. The
    text's hash, its unique tokens, the recipe and the machine are in ``OUT.manifest.json``.
    ``plan`` is a list, a CSV or JSON file, or None for ``default_plan`` with ``seed``.
    ``max_epochs`` is how often a language's text may be repeated.

    A second call with the same arguments resumes: finished runs are skipped, so that at most
    the runs in flight are lost to Ctrl-C or kill -9.

    Raises:
        InputError: bad text, a plan the text cannot feed, an output that cannot be resumed.
        SweepError: some runs failed, after all others are done.
        KeyboardInterrupt: Ctrl-C; finished runs are in the table.
    """
    out = Path(out)
    recipe = recipe or Recipe()
    pool = executor or LocalExecutor(workers)
    check_writable(out)
    # Before the text is tokenized, which takes minutes.
    given = read_plan(Path(plan)) if isinstance(plan, str | Path) else plan
    with only_writer(out):
        folder = Path(cache) if cache is not None else out.with_suffix(".corpus")
        corpus = prepare_corpus(Path(data), folder, settings)
        runs = default_plan(list(corpus.families), seed=seed) if given is None else given
        _check(runs, corpus, recipe, max_epochs)
        table.agree(out, _manifest(corpus, recipe), FIXED)
        columns = _columns(corpus)
        table.repair(out)
        done = table.finished(out, columns)
        jobs = [Job(run, str(folder.resolve()), recipe) for run in runs if run.run not in done]
        failed: list[str] = []
        with Display(jobs, len(runs) - len(jobs), corpus.settings, shown=progress) as display:
            for outcome in pool.run(carry_out, jobs, progress=display.hear, lost=display.lost):
                if outcome.error is not None:
                    failed.append(f"{outcome.job.run.run}: {outcome.error}")
                    continue
                row = _row(outcome.job.run, outcome.result, corpus)
                table.append(out, columns, row)
                display.finish(outcome.job, outcome.result)
    if failed:
        raise SweepError(
            f"{len(failed)} of {counted(len(jobs), 'run')} failed:\n" + "\n".join(failed)
        )
    return out


def _check(runs: Sequence[PlannedRun], corpus: Corpus, recipe: Recipe, max_epochs: float) -> None:
    check_plan(runs)
    if set(runs[0].ratios) != set(corpus.families):
        raise InputError(
            f"the plan's families {sorted(runs[0].ratios)} are not those of the text, "
            f"{sorted(corpus.families)}; name the folders and the ratios alike"
        )
    for run in runs:
        blocks = run_blocks(run.tokens, corpus.settings.length, recipe.batch)
        check_supply(corpus, run.ratios, blocks, max_epochs, run.run)


def _manifest(corpus: Corpus, recipe: Recipe) -> dict[str, Any]:
    return {
        "corpus": corpus.digest,
        "settings": asdict(corpus.settings),
        "tokenizer": corpus.tokenizer,
        "recipe": asdict(recipe),
        "families": {
            name: {
                "languages": dict(
                    zip(family.languages, family.weights.round(6).tolist(), strict=True)
                ),
                "unique_tokens": family.unique_tokens,
                "validation_tokens": family.valid.shape[0] * (family.valid.shape[1] - 1),
                "bytes_per_token": round(family.bytes_per_token, 6),
            }
            for name, family in corpus.families.items()
        },
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _columns(corpus: Corpus) -> list[str]:
    families = list(corpus.families)
    return [
        *("run", "part", "params", "tokens", "seed"),
        *(f"ratio_{name}" for name in families),
        *(f"loss_{name}" for name in families),
        *(f"bytes_per_token_{name}" for name in families),
        "tokens_per_second",
    ]


def _row(run: PlannedRun, result: RunResult, corpus: Corpus) -> Mapping[str, object]:
    total = sum(run.ratios.values())
    row: dict[str, object] = {
        "run": run.run,
        "part": run.part,
        "params": parse_shape(run.shape).params,
        "tokens": result.tokens,
        "seed": run.seed,
        "tokens_per_second": round(result.tokens_per_second),
    }
    for name, family in corpus.families.items():
        row[f"ratio_{name}"] = round(run.ratios[name] / total, 9)
        row[f"loss_{name}"] = round(result.losses[name], 6)
        row[f"bytes_per_token_{name}"] = round(family.bytes_per_token, 6)
    return row
