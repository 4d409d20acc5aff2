"""`apportion mixture sweep`: training runs on the user's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import pools
from apportion.cli.extras import brought_by
from apportion.cli.output import STOPPED, Output, note
from apportion.cli.reading import Json

SWEEP_EXAMPLES = (
    "apportion mixture sweep --data text/ --out runs.csv",
    "apportion mixture sweep --data text/ --out runs.csv --plan plan.csv --workers 4",
    "apportion mixture sweep --data text/ --out runs.csv --executor ray --address auto",
)


_Data = Annotated[
    Path, typer.Option(help="DIR/<family>/<language>.{txt,jsonl,parquet}", metavar="DIR")
]
_Out = Annotated[Path, typer.Option("--out", "-o", help="The run table (CSV); it is resumed.")]
_Plan = Annotated[
    Path | None,
    typer.Option(
        help="Which runs: CSV with run,shape,tokens,seed,ratio_<family>…, or JSON; else a "
        "default layout over three sizes and three budgets."
    ),
]
_Seed = Annotated[int, typer.Option(help="Seed of the default plan.")]
_Vocab = Annotated[int, typer.Option(help="Entries of the vocabulary to train.")]
_Length = Annotated[int, typer.Option(help="Tokens of a training sequence.")]
_ValidationTokens = Annotated[
    int, typer.Option(help="Tokens held out per family (at most a tenth of it).")
]
_LanguageExponent = Annotated[
    float, typer.Option(help="Languages within a family: 1 by size, 0 equal shares.")
]
_MaxEpochs = Annotated[float, typer.Option(help="How often a language's text may be repeated.")]
_Cache = Annotated[
    Path | None, typer.Option(help="Folder for the tokenized text; beside the table if absent.")
]
_Compile = Annotated[
    bool,
    typer.Option(
        "--compile/--no-compile", help="Compile the training step, once per worker and shape."
    ),
]


def sweep(
    data: _Data,
    out: _Out,
    plan: _Plan = None,
    workers: pools.Workers = None,
    threads: pools.Threads = None,
    executor: pools.Kind = "local",
    address: pools.Address = None,
    seed: _Seed = 0,
    vocab: _Vocab = 1024,
    length: _Length = 128,
    validation_tokens: _ValidationTokens = 32_768,
    language_exponent: _LanguageExponent = 1.0,
    max_epochs: _MaxEpochs = 1.0,
    cache: _Cache = None,
    compile_: _Compile = True,
    json: Json = False,
) -> None:
    """Train small models on your text and write the run table; the same command resumes."""
    from apportion.budget import counted
    from apportion.errors import InputError
    from apportion.mixture import read_runs

    with brought_by("sweep"):
        from apportion.mixture.sweep import CorpusSettings, Recipe, SweepError
        from apportion.mixture.sweep import sweep as train

    show = Output(json, out)
    settings = CorpusSettings(
        vocab=vocab,
        length=length,
        validation_tokens=validation_tokens,
        language_exponent=language_exponent,
    )
    try:
        path = train(
            data,
            out,
            plan,
            executor=pools.executor_of(executor, address, workers, threads),
            seed=seed,
            recipe=Recipe(compile=compile_),
            settings=settings,
            max_epochs=max_epochs,
            cache=cache,
        )
    except KeyboardInterrupt:
        note(f"finished runs are in {out}; the same command goes on where it was")
        raise typer.Exit(STOPPED) from None
    except SweepError as error:
        raise InputError(str(error)) from error
    runs = read_runs(path)
    show.text(runs)
    show.wrote(path, counted(len(runs), "run"))
    show.result({"runs": runs.to_frame()})
