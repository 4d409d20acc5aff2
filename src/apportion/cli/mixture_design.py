"""`apportion mixture design`: which runs to train next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.extras import brought_by
from apportion.cli.output import Output, note, number
from apportion.cli.reading import Json

DESIGN_EXAMPLES = (
    "apportion mixture design --flops 1e15 --params 50k --params 200k --params 800k "
    "--tokens 1M --tokens 4M --families romance,germanic,slavic -o plan.csv",
    "apportion mixture design --flops 1e15 --shape 0.2M --shape 0.6M --tokens 2M "
    "--fit fit.json -o plan.csv",
)


_Flops = Annotated[
    str, typer.Option(help="What all runs together may cost, 6 N D each.", metavar="FLOPS")
]
_Tokens = Annotated[
    list[str], typer.Option(help="Training tokens to choose from (repeat).", metavar="D")
]
_Params = Annotated[
    list[str] | None,
    typer.Option(help="Non-embedding parameters to choose from (repeat).", metavar="N"),
]
_Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Shapes of `sweep` to choose from instead (repeat); the plan is then one for "
        "`sweep --plan`.",
        metavar="SHAPE",
    ),
]
_Fit = Annotated[Path | None, typer.Option(help="A pilot fit, whose runs count as information.")]
_Families = Annotated[
    str | None, typer.Option(help="Families, without a pilot fit.", metavar="A,B,…")
]
_MaxRuns = Annotated[int | None, typer.Option(help="At most so many runs.")]
_Repeats = Annotated[int, typer.Option(help="How often one run may be repeated with another seed.")]
_Noise = Annotated[float, typer.Option(help="Standard deviation of the log loss of one run.")]
_Lowest = Annotated[float, typer.Option(help="Least ratio of any family.")]
_Seed = Annotated[int, typer.Option(help="First seed, and that of the candidates.")]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan as CSV.")]


def design(
    flops: _Flops,
    tokens: _Tokens,
    params: _Params = None,
    shape: _Shape = None,
    fit: _Fit = None,
    families: _Families = None,
    max_runs: _MaxRuns = None,
    repeats: _Repeats = 2,
    noise: _Noise = 0.01,
    lowest: _Lowest = 0.03,
    seed: _Seed = 0,
    out: _Out = None,
    json: Json = False,
) -> None:
    """Propose the runs that determine gamma and the exponents best for the compute."""
    from apportion.budget import counted, parse_count, parse_tokens
    from apportion.files import write_text
    from apportion.mixture import design as design_runs
    from apportion.mixture import load

    show = Output(json, out)
    with show.working("designing"):
        plan = design_runs(
            parse_count(flops, "FLOPs"),
            _sizes(params, shape),
            [parse_tokens(each) for each in tokens],
            families=[name.strip() for name in families.split(",")] if families else None,
            fit=None if fit is None else load(fit),
            max_runs=max_runs,
            repeats=repeats,
            noise=noise,
            lowest=lowest,
            seed=seed,
        )
    if out is not None:
        write_text(out, plan.to_csv(index=False, lineterminator="\n"))
    spent = number(float(plan["flops"].to_numpy().sum()))
    show.table(plan, f"{counted(len(plan), 'run')} for {spent} FLOPs", formats={"flops": _short})
    for remark in plan.attrs["notes"]:
        note(f"note: {remark}")
    if out is not None:
        show.wrote(out, "the plan")
    show.result({"plan": plan, "notes": plan.attrs["notes"]})


def _short(value: float) -> str:
    return f"{value:.3g}"


def _sizes(
    params: list[str] | None, shape: list[str] | None
) -> Sequence[float] | Mapping[str, float]:
    from apportion.budget import parse_params
    from apportion.errors import InputError

    if bool(params) == bool(shape):
        raise InputError(
            "expected --params or --shape, one of the two, such as --params 50k --params 200k"
        )
    if params:
        return [parse_params(each) for each in params]
    with brought_by("sweep"):
        from apportion.mixture.sweep.plan import parse_shape

    return {name: float(parse_shape(name).params) for name in shape or ()}
