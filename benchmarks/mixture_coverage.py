"""Do the 90 % intervals cover? 200 synthetic tables with a known truth.

Each table has its own random law parameters, design (60 runs, three families, three N and three D
over two decades) and 1 % noise. Counted: how often the interval holds the truth, for every
exponent (the bootstrap and the profile), for predicted losses inside the runs and at eight times
the largest N and twice the largest D, for the optimal ratios, and for the gain of the proposal
over uniform ratios.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from apportion.mixture.fit import Fit, fit
from apportion.mixture.laws import get_law
from apportion.mixture.optimize import optimize
from apportion.mixture.profile import profile
from apportion.mixture.runs import RunTable
from harness import arguments, record, show

PARAMS = np.array([5e4, 5e5, 5e6])
TOKENS = np.array([4e5, 4e6, 4e7])
FAMILIES, RUNS, NOISE, LEVEL = 3, 60, 0.01, 0.9
EXPONENTS = {"alpha": 3, "beta": 4, "gamma": 5}
INSIDE, OUTSIDE = (5e5, 4e6), (4e7, 8e7)
MIXTURE = np.array([0.2, 0.3, 0.5])


def table(seed: int) -> tuple[RunTable, np.ndarray]:
    """A run table and the internal coordinates that it was drawn from."""
    rng = np.random.default_rng(seed)
    law, names = get_law("family"), [f"family{k}" for k in range(FAMILIES)]
    low, high = [1.2, 0.3, 0.05, 0.2, 0.2, 0.05], [2.5, 1.0, 0.15, 0.4, 0.4, 0.2]
    theta = rng.uniform(low, high, (FAMILIES, 6))
    theta[:, :3] = np.log(theta[:, :3])
    params, tokens = rng.choice(PARAMS, RUNS), rng.choice(TOKENS, RUNS)
    ratios = np.maximum(rng.dirichlet(np.full(FAMILIES, 1.5), RUNS), 0.03)
    ratios /= ratios.sum(axis=1, keepdims=True)
    clean = RunTable.of(params, tokens, ratios, np.ones((RUNS, FAMILIES)), names)
    log_loss = np.stack(
        [law.log_loss(theta[k], clean.conditions(name)) for k, name in enumerate(names)], axis=1
    )
    losses = np.exp(log_loss + NOISE * rng.standard_normal(log_loss.shape))
    return RunTable.of(params, tokens, ratios, losses, names), theta


def truth_of(found: Fit, theta: np.ndarray) -> Fit:
    """The fit with the true parameters in place of the fitted ones."""
    return Fit(found.law, found.runs, theta, found.objective, found.used, None, found.status, LEVEL)


def trial(seed: int, bootstrap: int) -> dict[str, list[tuple[bool, float]]]:
    """Covered or not, and the width of the interval, per quantity."""
    runs, theta = table(seed)
    found = fit(runs, bootstrap=bootstrap, seed=seed, level=LEVEL)
    out: dict[str, list[tuple[bool, float]]] = defaultdict(list)

    def note(quantity: str, low: float, true: float, high: float) -> None:
        out[quantity].append((bool(low <= true <= high), float(high - low)))

    parameters = found.parameters.set_index(["family", "parameter"])
    for k, name in enumerate(found.targets):
        for symbol, column in EXPONENTS.items():
            row = parameters.loc[(name, symbol)]
            note(f"{symbol} (bootstrap)", row["low"], theta[k, column], row["high"])
            ends = profile(found, name, symbol)
            note(f"{symbol} (profile)", ends.low, theta[k, column], ends.high)
    true = truth_of(found, theta)
    for where, size in (("inside", INSIDE), ("at 8 N, 2 D", OUTSIDE)):
        predicted, known = found.predict(*size, MIXTURE), true.predict(*size, MIXTURE)
        for low, loss, high in zip(predicted["low"], known["loss"], predicted["high"], strict=True):
            note(f"loss {where}", low, loss, high)
    best, known = optimize(found, *INSIDE, force=True), optimize(true, *INSIDE, force=True)
    for low, ratio, high in zip(
        best.table["low"], known.table["ratio"], best.table["high"], strict=True
    ):
        note("optimal ratio", low, ratio, high)
    against = optimize(true, *INSIDE, mixtures={"tried": best.ratios}, force=True).comparison
    value = against.set_index("mixture")["objective"]
    gain = (value["uniform"] - value["tried"]) / value["uniform"]
    row = best.comparison.set_index("mixture").loc["uniform"]
    note("gain over uniform", row["low"], gain, row["high"])
    return out


def main() -> None:
    """Count, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--tables", type=int, default=200)
        parser.add_argument("--bootstrap", type=int, default=200)

    options = arguments(__doc__, add=add)
    counted: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for seed in range(options.tables):
        for quantity, values in trial(seed, options.bootstrap).items():
            counted[quantity] += values
        if seed % 20 == 19:
            print(f"{seed + 1} of {options.tables} tables", flush=True)
    rows = [
        {
            "quantity": quantity,
            "tables": options.tables,
            "bootstrap": options.bootstrap,
            "intervals": len(values),
            "level": LEVEL,
            "coverage": round(float(np.mean([hit for hit, _ in values])), 4),
            "median_width": float(f"{np.median([width for _, width in values]):.4g}"),
        }
        for quantity, values in counted.items()
    ]
    show(rows)
    if not options.dry:
        print(record("mixture_coverage", rows))


if __name__ == "__main__":
    main()
