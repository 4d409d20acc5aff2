"""The options that say how run tables are read, the same for every command that takes runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from apportion.cli.values import number_or_name, repeated

READING = "How the runs are read"

Files = Annotated[
    list[Path], typer.Argument(help="Run tables, CSV or Parquet; two files for regmix and olmix.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")]


def _option(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=READING)


_Format = Annotated[Literal["auto", "own", "regmix", "olmix"], _option("Layout of the files.")]
_Params = Annotated[
    str | None, _option("Parameters of every run, for files without them.", metavar="N")
]
_Tokens = Annotated[
    str | None, _option("Tokens of every run, for files without them.", metavar="D")
]
_ParamsColumn = Annotated[str | None, _option("The column to use as parameters.", metavar="NAME")]
_Vocabulary = Annotated[
    str | None,
    _option(
        "The parameters are totals: subtract an embedding of that many rows (a number or the "
        "name of a column); needs --width.",
        metavar="ROWS",
    ),
]
_Width = Annotated[
    str | None,
    _option("Hidden width for --vocabulary, a number or a column.", metavar="WIDTH"),
]
_Untied = Annotated[bool, _option("Input and output embeddings are two matrices.", "--untied")]
_LastStep = Annotated[bool, _option("Of several steps of one run keep the last.", "--last-step")]
_AllowUnmeasured = Annotated[
    bool, _option("Families may have a ratio and no loss.", "--allow-unmeasured")
]
_Metric = Annotated[
    list[str] | None,
    _option("olmix: the metric that is a family's loss (repeat).", metavar="FAMILY=COLUMN"),
]
_UniqueTokens = Annotated[
    str | None,
    _option(
        "Tokens that each family has, for laws that count repetition: romance=3B,… or a JSON file.",
        metavar="SUPPLY",
    ),
]


def _options(
    files: Files,
    format: _Format = "auto",
    params: _Params = None,
    tokens: _Tokens = None,
    params_column: _ParamsColumn = None,
    vocabulary: _Vocabulary = None,
    width: _Width = None,
    untied: _Untied = False,
    last_step: _LastStep = False,
    allow_unmeasured: _AllowUnmeasured = False,
    metric: _Metric = None,
    unique_tokens: _UniqueTokens = None,
) -> Any:
    """The run table that the options describe."""
    from apportion.errors import InputError
    from apportion.mixture import ModelShape, parse_supply, read_runs

    shape = None
    rows, columns = number_or_name(vocabulary), number_or_name(width)
    if rows is not None and columns is not None:
        shape = ModelShape(rows, columns, tied=not untied)
    elif rows is not None or columns is not None or untied:
        raise InputError(
            "expected --vocabulary and --width together, such as --vocabulary 50304 --width 768; "
            "--untied goes with them"
        )
    return read_runs(
        *files,
        format=format,
        params=params,
        tokens=tokens,
        params_column=params_column,
        shape=shape,
        last_step=last_step,
        allow_unmeasured=allow_unmeasured,
        metrics=repeated(metric, "metrics", "romance=romance_bpb") or None,
        unique_tokens=None if unique_tokens is None else parse_supply(unique_tokens),
    )


def reads_runs(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is a run table, as one that takes files and their options."""
    reading = _signature(_options)
    own = dict(list(_signature(command).items())[1:])

    @wraps(command)
    def wrapper(**given: Any) -> None:
        runs = _options(**{name: given.pop(name) for name in reading})
        command(runs, **given)

    # What typer reads: the files, then the command's own options, then those of reading.
    files, *rest = reading.values()
    del wrapper.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    wrapper.__signature__ = inspect.Signature([files, *own.values(), *rest])  # pyright: ignore[reportAttributeAccessIssue]
    wrapper.__annotations__ = {p.name: p.annotation for p in (files, *own.values(), *rest)}
    return wrapper


def _signature(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters by name as keywords, their annotations resolved."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }
