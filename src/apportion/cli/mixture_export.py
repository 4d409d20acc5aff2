"""`apportion mixture export`: sampling ratios in the form of a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.output import Output
from apportion.cli.reading import Json
from apportion.cli.values import optimum_file, paths, shares

EXPORT_EXAMPLES = (
    "apportion mixture export ratios.json --to megatron --path romance=/data/romance "
    "--path germanic=/data/germanic --path slavic=/data/slavic",
    "apportion mixture export romance=.6,slavic=.4 --to huggingface --path romance=ours/romance "
    "--path slavic=ours/slavic --tokens-per-example romance=900,slavic=700 -o mix.py",
)


def export(
    ratios: Annotated[
        str,
        typer.Argument(
            help="What `optimize -o` wrote, a JSON or CSV file, or romance=.6,slavic=.4."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="megatron, nemo, olmo-core, huggingface, mosaicml, litgpt, nanotron or axolotl."
        ),
    ],
    path: Annotated[
        list[str],
        typer.Option(
            help="Data of a family, as the trainer takes it (repeat).", metavar="FAMILY=PATH"
        ),
    ],
    tokens: Annotated[
        str | None, typer.Option(help="Training tokens D, if the file has none.", metavar="D")
    ] = None,
    supply: Annotated[
        str | None,
        typer.Option(help="Tokens of every family, if the file has none.", metavar="SUPPLY"),
    ] = None,
    max_epochs: Annotated[
        float | None, typer.Option(help="The most passes over a family; kept by rounding.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens of a training sample (mosaicml, litgpt).")
    ] = None,
    batch_tokens: Annotated[
        str | None, typer.Option(help="Tokens of a global batch (olmo-core).", metavar="TOKENS")
    ] = None,
    tokens_per_example: Annotated[
        str | None,
        typer.Option(
            help="Mean tokens of an example per family (huggingface).", metavar="FAMILY=TOKENS,…"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the trainer's shuffling.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write there instead of printing.")
    ] = None,
    json: Json = False,
) -> None:
    """Write ratios as a trainer's configuration, refusing what the trainer refuses."""
    from apportion.budget import parse_count
    from apportion.mixture import export as export_ratios

    show = Output(json)
    known = optimum_file(ratios)
    text = export_ratios(
        shares(ratios),
        to,
        paths(path),
        tokens=known.get("tokens") if tokens is None else tokens,
        supply=known.get("supply") if supply is None else supply,
        max_epochs=known.get("max_epochs") if max_epochs is None else max_epochs,
        sequence_length=sequence_length,
        batch_tokens=None if batch_tokens is None else round(parse_count(batch_tokens)),
        tokens_per_example=(
            None if tokens_per_example is None else shares(tokens_per_example, "tokens per example")
        ),
        seed=seed,
        out=out,
    )
    if out is None:
        show.text(text.rstrip("\n"))
    else:
        show.wrote(out, f"the {to} configuration")
    show.result({"to": to, "text": text})
