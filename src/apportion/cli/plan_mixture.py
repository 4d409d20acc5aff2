"""`apportion plan mixture`: how large a model, on how many tokens, for a budget."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from apportion.cli.mixture_fit import FitFile
from apportion.cli.mixture_optimize import Force, MaxEpochs, Objective, Supply
from apportion.cli.output import Output, note, number
from apportion.cli.reading import Json
from apportion.cli.values import objective_of

EXAMPLES = (
    "apportion plan mixture fit.json --flops 1e14",
    "apportion plan mixture fit.json --tokens 5M --params 600k --params 1.2M",
    "apportion plan mixture fit.json --hours 24 --flops-per-second 4e13",
)

_Flops = Annotated[str | None, typer.Option(help="What training may cost, 6 N D.", metavar="FLOPS")]
_Tokens = Annotated[
    str | None, typer.Option(help="The most tokens there are to train on.", metavar="D")
]
_Hours = Annotated[float | None, typer.Option(help="Of a machine with --flops-per-second.")]
_Rate = Annotated[
    str | None,
    typer.Option(
        "--flops-per-second",
        help="What training reaches on your machines: 6 N D over the seconds of a run you know.",
        metavar="FLOPS",
    ),
]
_Params = Annotated[
    list[str] | None,
    typer.Option(help="Non-embedding parameters to choose from (repeat).", metavar="N"),
]


def mixture(
    fit: FitFile,
    flops: _Flops = None,
    tokens: _Tokens = None,
    hours: _Hours = None,
    flops_per_second: _Rate = None,
    params: _Params = None,
    objective: Objective = "normalized",
    supply: Supply = None,
    max_epochs: MaxEpochs = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Model sizes that a budget pays for, by predicted loss, each with its best ratios."""
    from apportion.budget import parse_count
    from apportion.mixture import allocate, load

    def count(value: str | None, what: str) -> float | None:
        return None if value is None else parse_count(value, what)

    show = Output(json)
    with show.working("optimising every size"):
        found = allocate(
            load(fit),
            flops=count(flops, "a number of FLOPs"),
            tokens=tokens,
            hours=hours,
            flops_per_second=count(flops_per_second, "FLOPs a second"),
            params=params or (),
            objective=objective_of(objective),
            supply=supply,
            max_epochs=max_epochs,
            force=force,
        )
    _show(show, found)
    for text in found.notes:
        note(f"note: {text}")
    show.result(found.to_dict())


def _show(show: Output, found: Any) -> None:
    from apportion.budget import format_count

    said = ", ".join(f"{name} {number(value)}" for name, value in found.budget.items())
    rows = []
    for row in found.table.to_dict("records"):
        line = {
            "N": format_count(row["params"]),
            "D": format_count(row["tokens"]),
            "D / N": number(row["tokens_per_param"]),
            "FLOPs": f"{row['flops']:.2e}",
        }
        if found.rate is not None:
            line["hours"] = number(row["hours"])
        line["mean loss"] = f"{row['loss']:.4f}"
        if not math.isnan(row["low"]):
            line[f"{found.level:.0%} interval"] = f"{row['low']:.4f} to {row['high']:.4f}"
        rows.append(line | {"verdict": row["verdict"]})
    show.table(rows, f"Model sizes for {said} ({found.law} law)")
    best, ratios = found.table.iloc[0], found.ratios[0]
    shares_of = ", ".join(f"{family} {share:.3f}" for family, share in ratios.items())
    show.text(
        f"\nbest: N = {format_count(best['params'])}, D = {format_count(best['tokens'])}; "
        f"ratios {shares_of}"
    )
