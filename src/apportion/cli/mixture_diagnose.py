"""`apportion mixture diagnose` and `compare`: do the runs support a law, and which one?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.output import Output
from apportion.cli.reading import Json, reads_runs
from apportion.cli.values import repeated, request

DIAGNOSE_EXAMPLES = (
    "apportion mixture diagnose runs.csv",
    "apportion mixture diagnose runs.csv --group-by romance=west,germanic=west "
    "--request 1.2B:50B:romance=.3,germanic=.3,slavic=.4",
)


@reads_runs
def diagnose(
    runs: Any,
    fit: Annotated[
        Path | None, typer.Option(help="The fit to judge; else the family law is fitted.")
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(help="Your own grouping, tested (repeat).", metavar="FAMILY=GROUP"),
    ] = None,
    regroup: Annotated[
        bool, typer.Option("--regroup", help="Look for the grouping with the least cross-effect.")
    ] = False,
    request_: Annotated[
        list[str] | None,
        typer.Option(
            "--request",
            help="A prediction to come; how far it extrapolates (repeat).",
            metavar="PARAMS:TOKENS:RATIOS",
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Level of the tests.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Deals mixtures into folds.")] = 0,
    json: Json = False,
) -> None:
    """Say whether the runs support the family law: hypothesis 1, gamma, exponents."""
    from apportion.mixture import diagnose as diagnose_runs
    from apportion.mixture import load

    show = Output(json)
    with show.working("diagnosing"):
        found = diagnose_runs(
            runs,
            fit=None if fit is None else load(fit),
            group_by=repeated(group_by, "--group-by", "romance=west,germanic=west") or None,
            regroup=regroup,
            requests=[request(text) for text in request_ or ()],
            seed=seed,
            alpha=alpha,
        )
    show.text(str(found).rstrip())
    show.result(found.to_dict())
