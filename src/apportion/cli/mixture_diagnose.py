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
COMPARE_EXAMPLES = (
    "apportion mixture compare runs.csv --law family --law additive --law transfer "
    "--holdout largest-params",
    'apportion mixture compare runs.csv --holdout "params>=1e6"',
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


@reads_runs
def compare(
    runs: Any,
    law: Annotated[
        list[str] | None, typer.Option(help="A law to compare (repeat); all by default.")
    ] = None,
    holdout: Annotated[
        str | None,
        typer.Option(
            help='Which runs to predict: a condition such as "params>=1e9", largest-params, '
            "largest-tokens, folds:5 (the default) or unseen-mixtures:0.2."
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Predict the runs of this table instead (own layout).")
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="Also the nearest mixture and regressions.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of random divisions.")] = 0,
    json: Json = False,
) -> None:
    """Fit several laws to some runs and see how well each predicts the others."""
    from apportion.mixture import compare as compare_laws
    from apportion.mixture import read_runs

    show = Output(json)
    with show.working("comparing"):
        found = compare_laws(
            runs,
            law or None,
            holdout=holdout,
            test=None if test is None else read_runs(test),
            baselines=baselines,
            seed=seed,
        )
    show.text(found)
    show.result(found.to_dict())
