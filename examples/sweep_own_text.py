"""Train small models on your own text, resume when stopped, and fit a law to the runs.

    python examples/sweep_own_text.py DIR runs.csv

DIR holds DIR/<family>/<language>.txt (or .jsonl, .parquet). Calling it again goes on where it was.
"""

from __future__ import annotations

import sys
from pathlib import Path

import apportion.mixture as mx
from apportion.mixture.sweep import CorpusSettings, PlannedRun, Recipe, default_plan, sweep


def main(
    data: str | Path,
    out: str | Path,
    plan: list[PlannedRun] | None = None,
    settings: CorpusSettings | None = None,
    recipe: Recipe | None = None,
) -> None:
    """Sweep, then say what the runs show."""
    families = sorted(folder.name for folder in Path(data).iterdir() if folder.is_dir())
    # Three sizes, three budgets, mixtures that tell the families' effects apart, and repeats with
    # another seed for the noise. Smaller than the defaults: about a quarter of an hour.
    plan = plan or default_plan(
        families, shapes=("0.05M", "0.2M"), tokens=(125_000, 250_000, 500_000), repeats=4
    )
    sweep(data, out, plan, workers=2, settings=settings, recipe=recipe)

    runs = mx.read_runs(out)
    print(runs)
    print(mx.diagnose(runs))
    fit = mx.fit(runs, bootstrap=200)
    print(fit.status)
    print(fit.parameters.to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
