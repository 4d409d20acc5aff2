"""Part c's proposals: fit part a, optimise at part c's size, write ``proposed.json``.

    python benchmarks/multilingual_sweep/propose.py

Two proposals, both from the fitted runs alone: the family law's, and that of the law that
`compare` ranks first on part a's largest models when it is fitted to the smaller ones: part c asks
for the same step. Whatever part c says of them is reported.
"""

from __future__ import annotations

import json
from pathlib import Path

from run import PROPOSED, PROPOSED_SHAPE, PROPOSED_TOKENS, TABLES

from apportion.files import write_json
from apportion.mixture.compare import AVERAGE, compare
from apportion.mixture.fit import fit
from apportion.mixture.optimize import optimize
from apportion.mixture.read import read_runs
from apportion.mixture.sweep.model import SHAPES

LAWS = ("family", "additive", "transfer")


def main() -> None:
    """Choose the law, propose, write."""
    runs = read_runs(TABLES / "fit.csv")
    params = SHAPES[PROPOSED_SHAPE].params
    print(compare(runs, laws=LAWS, holdout="unseen-mixtures"))
    comparison = compare(runs, laws=LAWS, holdout="largest-params")
    print(comparison)
    mean = comparison.table[comparison.table["target"] == AVERAGE].set_index("law")
    best = str(mean.loc[list(LAWS), "mean_relative_error"].astype(float).idxmin())
    proposals = {}
    for law in dict.fromkeys(("family", best)):
        found = optimize(fit(runs, law, bootstrap=200), params, PROPOSED_TOKENS, force=True)
        print(law, found, sep="\n")
        proposals[f"proposed-{law}"] = {k: round(v, 4) for k, v in found.ratios.items()}
        total = sum(proposals[f"proposed-{law}"].values())
        largest = max(proposals[f"proposed-{law}"], key=lambda k: found.ratios[k])
        proposals[f"proposed-{law}"][largest] += round(1 - total, 4)
    write_json(Path(PROPOSED), proposals)
    print(json.dumps(proposals, indent=2))


if __name__ == "__main__":
    main()
