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


_Ratios = Annotated[
    str,
    typer.Argument(help="What `optimize -o` wrote, a JSON or CSV file, or romance=.6,slavic=.4."),
]
_To = Annotated[
    str,
    typer.Option(
        help="megatron, nemo, olmo-core, huggingface, mosaicml, litgpt, nanotron or axolotl."
    ),
]
_Path = Annotated[
    list[str],
    typer.Option(help="Data of a family, as the trainer takes it (repeat).", metavar="FAMILY=PATH"),
]
_Tokens = Annotated[
    str | None, typer.Option(help="Training tokens D, if the file has none.", metavar="D")
]
_Supply = Annotated[
    str | None,
    typer.Option(help="Tokens of every family, if the file has none.", metavar="SUPPLY"),
]
_MaxEpochs = Annotated[
    float | None, typer.Option(help="The most passes over a family; kept by rounding.")
]
_SequenceLength = Annotated[
    int | None, typer.Option(help="Tokens of a training sample (mosaicml, litgpt).")
]
_BatchTokens = Annotated[
    str | None, typer.Option(help="Tokens of a global batch (olmo-core).", metavar="TOKENS")
]
_TokensPerExample = Annotated[
    str | None,
    typer.Option(
        help="Mean tokens of an example per family (huggingface).", metavar="FAMILY=TOKENS,…"
    ),
]
_Seed = Annotated[
    int | None, typer.Option(help="Seed of the trainer's shuffling, where its form has one.")
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write there instead of printing.")]


def export(
    ratios: _Ratios,
    to: _To,
    path: _Path,
    tokens: _Tokens = None,
    supply: _Supply = None,
    max_epochs: _MaxEpochs = None,
    sequence_length: _SequenceLength = None,
    batch_tokens: _BatchTokens = None,
    tokens_per_example: _TokensPerExample = None,
    seed: _Seed = None,
    out: _Out = None,
    json: Json = False,
) -> None:
    """Write ratios as a trainer's configuration, refusing what the trainer refuses."""
    from apportion.budget import parse_count
    from apportion.mixture import export as export_ratios

    show = Output(json, out)
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
