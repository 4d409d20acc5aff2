"""From a run table to sampling ratios: diagnose, fit, compare, optimise, save.

    python examples/fit_and_optimize.py [runs.csv]

Without a file the runs are those of our own sweep, which come with the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import apportion.mixture as mx
from apportion.mixture.data import multilingual_supply, multilingual_sweep


def main(path: str | None = None, out: str | Path = "fit.json", bootstrap: int = 200) -> None:
    """Print what the runs support, then the ratios for a run of 5M parameters."""
    runs = multilingual_sweep() if path is None else mx.read_runs(path)
    supply = multilingual_supply() if path is None else None
    print(runs)

    report = mx.diagnose(runs)
    for section in report.sections:
        print(f"{section.title}: {section.answer}")

    fit = mx.fit(runs, law="family", bootstrap=bootstrap, seed=0)
    print(f"\n{fit.status}\n")
    print(fit.quality().to_string(index=False))
    fit.save(out)

    # The largest models are the ones that the law has to predict from the others.
    print(f"\n{mx.compare(runs, laws=['family', 'bimix'], holdout='largest-params')}\n")

    largest = float(runs.params.max()), float(runs.tokens.max())
    best = fit.optimize(
        params=8 * largest[0],
        tokens=8 * largest[1],
        objective="normalized",
        supply=supply,
        max_epochs=4 if supply else None,
        force=True,  # go on even where the runs are too weak, and say so in best.notes
    )
    print(best)
    print(fit.predict(8 * largest[0], 8 * largest[1], best.ratios).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:2])
