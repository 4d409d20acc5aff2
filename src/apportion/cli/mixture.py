"""`apportion mixture`: its commands and where each lives."""

from __future__ import annotations

from collections.abc import Callable

import typer

from apportion.cli import (
    mixture_count,
    mixture_design,
    mixture_diagnose,
    mixture_export,
    mixture_fit,
    mixture_optimize,
    mixture_report,
    mixture_sweep,
)
from apportion.cli.overwrite import guarded

app = typer.Typer(
    name="mixture",
    help="From training runs to optimal sampling ratios for a larger run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

COMMANDS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "fit": (mixture_fit.fit, mixture_fit.FIT_EXAMPLES),
    "predict": (mixture_fit.predict, mixture_fit.PREDICT_EXAMPLES),
    "optimize": (mixture_optimize.optimize, mixture_optimize.OPTIMIZE_EXAMPLES),
    "diagnose": (mixture_diagnose.diagnose, mixture_diagnose.DIAGNOSE_EXAMPLES),
    "compare": (mixture_diagnose.compare, mixture_diagnose.COMPARE_EXAMPLES),
    "design": (mixture_design.design, mixture_design.DESIGN_EXAMPLES),
    "sweep": (mixture_sweep.sweep, mixture_sweep.SWEEP_EXAMPLES),
    "export": (mixture_export.export, mixture_export.EXPORT_EXAMPLES),
    "report": (mixture_report.report, mixture_report.REPORT_EXAMPLES),
    "count": (mixture_count.count, mixture_count.COUNT_EXAMPLES),
}
"""Every command, and the examples in its help; the tests run them."""

for _name, (_function, _examples) in COMMANDS.items():
    # \b keeps the help from filling the lines up.
    _epilog = "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in _examples)
    app.command(_name, epilog=_epilog)(guarded(_name, _function))
