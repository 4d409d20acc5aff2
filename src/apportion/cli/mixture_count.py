"""`apportion mixture count`: how much text there is, to be used as `--supply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.output import Output
from apportion.cli.reading import Json
from apportion.cli.values import shares

COUNT_EXAMPLES = (
    "apportion mixture count text/ --bytes-per-token 4 -o supply.json",
    "apportion mixture count text/ --tokenizer tokenizer.json -o supply.json",
)


def count(
    data: Annotated[Path, typer.Argument(help="DIR/<family>/<language>.{txt,jsonl,parquet}")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="Count with this tokenizer.json (extra: sweep).")
    ] = None,
    bytes_per_token: Annotated[
        str | None,
        typer.Option(
            help="Without a tokenizer, estimate tokens: one number, or romance=4.1,slavic=5.2.",
            metavar="BYTES",
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="JSON key or Parquet column of the text.")] = "text",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the supply as JSON.")
    ] = None,
    json: Json = False,
) -> None:
    """Count bytes, characters and tokens of every family and language."""
    from apportion.mixture import count as count_text

    show = Output(json, out)
    with show.working("counting"):
        supply = count_text(data, tokenizer, _sizes(bytes_per_token), column)
    table = supply.to_frame()
    if out is not None:
        supply.save(out)
    show.table(table, f"Text in {data} ({supply.method})")
    if out is not None:
        show.wrote(out, "the supply")
    totals = dict(supply) if supply.amounts else {}
    show.result({"method": supply.method, "tokens": totals, "texts": table})


def _sizes(text: str | None) -> float | dict[str, float] | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return shares(text, "bytes per token")
