"""`apportion mixture optimize`: sampling ratios for a size and a budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.mixture_fit import FitFile, Params, Tokens
from apportion.cli.output import Output
from apportion.cli.reading import Json
from apportion.cli.values import objective_of, repeated, shares

OPTIMIZE_EXAMPLES = (
    "apportion mixture optimize fit.json --params 1.2B --tokens 50B -o ratios.json",
    "apportion mixture optimize fit.json --params 1.2B --tokens 50B --supply supply.json "
    "--max-epochs 4 --floor slavic=.05",
)

_SHARE = "FAMILY=SHARE"


Objective = Annotated[
    str,
    typer.Option(
        help="normalized, total, worst, target:FAMILY, or weights of the normalized losses "
        "such as romance=2,slavic=1."
    ),
]
_Floor = Annotated[list[str] | None, typer.Option(help="Least share (repeat).", metavar=_SHARE)]
_Cap = Annotated[list[str] | None, typer.Option(help="Largest share (repeat).", metavar=_SHARE)]
_Fix = Annotated[list[str] | None, typer.Option(help="Given share (repeat).", metavar=_SHARE)]
Supply = Annotated[
    str | None,
    typer.Option(
        help="Tokens of every family: romance=3B,… or what `count -o` wrote.", metavar="SUPPLY"
    ),
]
MaxEpochs = Annotated[float | None, typer.Option(help="The most passes over a family's supply.")]
_Repetition = Annotated[bool, typer.Option("--repetition", help="Discount repeated tokens.")]
_Sizes = Annotated[
    str | None,
    typer.Option(
        help="Tokens of every family for the mixtures to compare with, if not the supply.",
        metavar="SUPPLY",
    ),
]
_Beside = Annotated[
    list[str] | None,
    typer.Option(help="A further mixture to compare with (repeat).", metavar="NAME:RATIOS"),
]
_Temperature = Annotated[float, typer.Option(help="Exponent of the temperature mixture.")]
Force = Annotated[
    bool, typer.Option("--force", help="Go on with a fit that does not support the objective.")
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write ratios and everything else as JSON.")
]


def optimize(
    fit: FitFile,
    params: Params,
    tokens: Tokens,
    objective: Objective = "normalized",
    floor: _Floor = None,
    cap: _Cap = None,
    fix: _Fix = None,
    supply: Supply = None,
    max_epochs: MaxEpochs = None,
    repetition: _Repetition = False,
    sizes: _Sizes = None,
    beside: _Beside = None,
    temperature: _Temperature = 0.3,
    force: Force = False,
    out: _Out = None,
    json: Json = False,
) -> None:
    """Propose sampling ratios, and say what they gain over plain ones."""
    from apportion.files import write_json
    from apportion.mixture import load
    from apportion.mixture import optimize as best_ratios

    show = Output(json, out)
    with show.working("optimising"):
        best = best_ratios(
            load(fit),
            params,
            tokens,
            objective=objective_of(objective),
            floors=_shares(floor, "--floor"),
            caps=_shares(cap, "--cap"),
            fixed=_shares(fix, "--fix"),
            supply=supply,
            max_epochs=max_epochs,
            repetition=repetition,
            sizes=sizes,
            mixtures=_named(beside or ()),
            temperature=temperature,
            force=force,
        )
    if out is not None:
        write_json(out, best.to_dict())
    show.text(best)
    if out is not None:
        show.wrote(out, "the ratios")
    show.result(best.to_dict())


def _shares(given: list[str] | None, option: str) -> dict[str, float]:
    found = repeated(given, option, "romance=0.1")
    return shares(",".join(f"{name}={value}" for name, value in found.items()) or None, option)


def _named(given: Sequence[str]) -> dict[str, dict[str, float]]:
    from apportion.errors import InputError

    found: dict[str, dict[str, float]] = {}
    for text in given:
        name, colon, ratios = (part.strip() for part in text.partition(":"))
        if not (colon and name):
            raise InputError(f"expected --beside NAME:RATIOS such as ours:a=.3,b=.7; got {text!r}")
        if name in found:
            raise InputError(f"expected every name once in --beside; {name!r} is given twice")
        found[name] = shares(ratios)
    return found
