"""`apportion mixture report`: one page with everything that is known about a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.mixture_fit import FitFile
from apportion.cli.output import Output
from apportion.cli.reading import Json
from apportion.cli.values import objective_of

REPORT_EXAMPLES = (
    "apportion mixture report fit.json -o page.html",
    "apportion mixture report fit.json --params 1.2B --tokens 50B --supply supply.json "
    "--max-epochs 4 -o page.html",
)


def report(
    fit: FitFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page (HTML).")],
    params: Annotated[
        str | None,
        typer.Option(help="With --tokens: also the ratios for that size.", metavar="N"),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Training tokens D for the ratios.", metavar="D")
    ] = None,
    objective: Annotated[str, typer.Option(help="As in `optimize`.")] = "normalized",
    supply: Annotated[str | None, typer.Option(help="As in `optimize`.", metavar="SUPPLY")] = None,
    max_epochs: Annotated[float | None, typer.Option(help="As in `optimize`.")] = None,
    force: Annotated[bool, typer.Option("--force", help="As in `optimize`.")] = False,
    heldout: Annotated[
        Path | None, typer.Option(help="A table of runs that were not fitted.")
    ] = None,
    diagnosis: Annotated[bool, typer.Option(help="Diagnose the fitted runs.")] = True,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page: trust, ratios, losses, diagnosis."""
    from apportion.errors import InputError
    from apportion.mixture import diagnose, load, optimize, read_runs
    from apportion.mixture.sections import report_page
    from apportion.report import write_page

    if (params is None) != (tokens is None):
        raise InputError("expected --params and --tokens together, such as --params 1.2B "
                         "--tokens 50B")  # fmt: skip
    show = Output(json, out)
    with show.working("making the page"):
        fitted = load(fit)
        best = None
        if params is not None and tokens is not None:
            best = optimize(
                fitted,
                params,
                tokens,
                objective=objective_of(objective),
                supply=supply,
                max_epochs=max_epochs,
                force=force,
            )
        page = report_page(
            fitted,
            optimum=best,
            diagnosis=diagnose(fitted.runs, fit=fitted) if diagnosis else None,
            heldout=None if heldout is None else read_runs(heldout),
        )
        write_page(page, out)
    show.text(page.title)
    show.wrote(out, "the page")
    show.result({"title": page.title, "sections": [section.title for section in page.sections]})
