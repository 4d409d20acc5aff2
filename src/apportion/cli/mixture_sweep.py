"""`apportion mixture sweep`: training runs on the user's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.output import STOPPED, Output, note
from apportion.cli.reading import Json

SWEEP_EXAMPLES = (
    "apportion mixture sweep --data text/ --out runs.csv",
    "apportion mixture sweep --data text/ --out runs.csv --plan plan.csv --workers 4",
)


def sweep(
    data: Annotated[
        Path, typer.Option(help="DIR/<family>/<language>.{txt,jsonl,parquet}", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run table (CSV); it is resumed.")],
    plan: Annotated[
        Path | None,
        typer.Option(
            help="Which runs: CSV with run,shape,tokens,seed,ratio_<family>…, or JSON; else a "
            "default layout over three sizes and three budgets."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes, one thread each.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the default plan.")] = 0,
    vocab: Annotated[int, typer.Option(help="Entries of the vocabulary to train.")] = 1024,
    length: Annotated[int, typer.Option(help="Tokens of a training sequence.")] = 128,
    validation_tokens: Annotated[
        int, typer.Option(help="Tokens held out per family (at most a tenth of it).")
    ] = 32_768,
    language_exponent: Annotated[
        float, typer.Option(help="Languages within a family: 1 by size, 0 equal shares.")
    ] = 1.0,
    max_epochs: Annotated[
        float, typer.Option(help="How often a language's text may be repeated.")
    ] = 1.0,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for the tokenized text; beside the table if absent.")
    ] = None,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile", help="Compile the step (faster after half a minute a shape)."
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Train small models on your text and write the run table; the same command resumes."""
    from apportion.errors import InputError
    from apportion.errors import require as need

    need("torch", "sweep")
    need("tokenizers", "sweep")
    from apportion.mixture import read_runs
    from apportion.mixture.sweep import CorpusSettings, Recipe, SweepError
    from apportion.mixture.sweep import sweep as train

    show = Output(json)
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
            workers=workers,
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
    show.wrote(path, f"{len(runs)} runs")
    show.result({"runs": runs.to_frame()})
