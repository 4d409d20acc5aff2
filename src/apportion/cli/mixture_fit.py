"""`apportion mixture fit` and `predict`: a law from runs, and losses from a law."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.output import Output, note, number, percent
from apportion.cli.reading import Json, reads_runs
from apportion.cli.values import shares

FIT_EXAMPLES = (
    "apportion mixture fit runs.csv --law family --bootstrap 1000 -o fit.json",
    "apportion mixture fit mixtures.csv losses.csv --format regmix --params 1M --tokens 1B "
    "--law mixing",
)
PREDICT_EXAMPLES = (
    "apportion mixture predict fit.json --params 1.2B --tokens 50B "
    "--ratios romance=.3,germanic=.3,slavic=.4",
)

Params = Annotated[str, typer.Option(help="Non-embedding parameters N, such as 1.2B.", metavar="N")]
Tokens = Annotated[str, typer.Option(help="Training tokens D, such as 50B.", metavar="D")]
FitFile = Annotated[Path, typer.Argument(help="What `apportion mixture fit -o` wrote.")]
Law = Annotated[
    str,
    typer.Option(
        help="family, chinchilla, additive, additive-pooled, bimix, fernandes, mixing, transfer or "
        "atlas; with +repetition behind it repeated tokens are discounted."
    ),
]


@reads_runs
def fit(
    runs: Any,
    law: Law = "family",
    bootstrap: Annotated[
        int, typer.Option(help="Refits for intervals: 0 for none, 1000 for a report.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    level: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.9,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the fit, with its runs, as JSON.")
    ] = None,
    json: Json = False,
) -> None:
    """Fit a law to runs and say whether it can be trusted."""
    from apportion.mixture import fit as fit_law
    from apportion.mixture.figures.section_fit import UNTESTED
    from apportion.mixture.proposal.notes import outside_notes

    show = Output(json, out)
    with show.progress(f"fitting, {bootstrap} refits" if bootstrap else "fitting") as progress:
        fitted = fit_law(runs, law, bootstrap=bootstrap, seed=seed, level=level, progress=progress)
    if out is not None:
        # Before anything is printed: the reader of stdout may have gone.
        fitted.save(out)
    show.text(runs, fitted.status)
    quality, parameters = fitted.quality(), fitted.parameters
    show.table(
        quality,
        "Quality of the fit",
        formats={"mean_relative_error": percent},
        names={"r2": "R²"},
    )
    title = "Parameters (N in millions, D in billions"
    if bootstrap:
        title += f"; low and high: {level:.0%} interval of {bootstrap} refits"
    show.table(_shown(parameters, intervals=bootstrap > 0), title + ")")
    columns = parameters[["value", "low", "high"]].to_numpy(dtype=float).T
    names = [
        f"{p} of {f}" for p, f in zip(parameters["parameter"], parameters["family"], strict=True)
    ]
    outside = outside_notes(fitted, names, *columns)
    for remark in (*outside, UNTESTED):
        note(f"note: {remark}")
    if out is not None:
        show.wrote(out, "the fit")
    status = fitted.status
    show.result(
        {
            "law": fitted.law.name,
            "runs": len(fitted.runs),
            "ok": status.ok,
            "status": status.text,
            "notes": [*status.notes, *outside],
            "quality": quality,
            "parameters": parameters,
        }
    )


def _shown(parameters: Any, intervals: bool) -> Any:
    """Parameters as a table to read: what the runs leave open is said, not printed as a number."""
    shown = parameters.astype(object)
    held = parameters["bound"] != ""
    shown.loc[held, "value"] = [f"{number(v)} (bound)" for v in parameters.loc[held, "value"]]
    shown.loc[~parameters["determined"] & ~held, ["value", "low", "high"]] = ""
    return shown.drop(columns=["bound"] if intervals else ["bound", "low", "high"])


def predict(
    fit: FitFile,
    params: Params,
    tokens: Tokens,
    ratios: Annotated[
        str,
        typer.Option(
            help="Share of every family: romance=.3,slavic=.7, or a JSON or CSV file.",
            metavar="RATIOS",
        ),
    ],
    supply: Annotated[
        str | None,
        typer.Option(
            help="Tokens that each family has, for laws that count repetition.", metavar="SUPPLY"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Predict the loss of every family at a size, a budget and a mixture."""
    from apportion.budget import parse_params, parse_tokens
    from apportion.mixture import load, parse_supply

    show = Output(json)
    fitted, given = load(fit), shares(ratios)
    table = fitted.predict(
        params,
        tokens,
        given,
        supply=None if supply is None else parse_supply(supply),
    )
    known = fitted.samples is not None
    title = f"Predicted loss (nats per token), {fitted.law.name} law"
    if known:
        title += f"; low and high: {fitted.level:.0%} interval of its expectation"
    show.table(table if known else table.drop(columns=["low", "high"]), title)
    notes = [*table.attrs["notes"]]
    if not known:
        notes.append("no intervals: the fit has no refits (fit it with --bootstrap 1000)")
    for remark in notes:
        note(f"note: {remark}")
    show.result(
        {
            "law": fitted.law.name,
            "params": parse_params(params),
            "tokens": parse_tokens(tokens),
            "level": fitted.level if known else None,
            "ratios": dict(zip(fitted.families, fitted.shares(given), strict=True)),
            "losses": table,
            "notes": notes,
        }
    )
