"""Fitting a law: time and objective against many-start scipy and PyPI chinchilla, on the same data.

Every side minimises the same objective, the sum of Huber(delta = 1e-3) of log residuals; what it
found is evaluated by one function here. `excess` is the worst relative distance, over families, to
the lowest objective that any side found. The scipy sides get analytic gradients and 450 starts
drawn over the range that the Chinchilla replication used; the `chinchilla` package (its own BFGS,
numeric gradients, all cores) gets a grid of 450 starts, and fits only its own law. `vpnls`, the
other package of that kind, could not be installed from the index when this was written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from apportion.mixture.fit import fit
from apportion.mixture.laws import get_law
from apportion.mixture.laws.base import PARAMS_UNIT, TOKENS_UNIT
from apportion.mixture.read import read_runs
from apportion.mixture.runs import RunTable
from apportion.mixture.solver import HUBER_DELTA, huber
from harness import ROOT, arguments, ratio, record, show, take_turns

STARTS = 450
SWEEP = ROOT / "benchmarks" / "multilingual_sweep" / "tables" / "fit.csv"
PUBLIC = ROOT.parent / "shared" / "data" / "mlfoundations" / "mlfoundations_scaling_losses.csv"

Thetas = list[np.ndarray]


def synthetic(seed: int = 0, runs: int = 120, families: int = 5, noise: float = 0.01) -> RunTable:
    """Five families × 120 runs of the family law with 1 % noise."""
    rng = np.random.default_rng(seed)
    law = get_law("family")
    params, tokens = rng.choice([5e4, 2e5, 8e5], runs), rng.choice([4e5, 8e5, 1.6e6], runs)
    ratios = np.maximum(rng.dirichlet(np.full(families, 1.5), runs), 0.03)
    ratios /= ratios.sum(axis=1, keepdims=True)
    low, high = [1.2, 0.3, 0.05, 0.2, 0.2, 0.05], [2.5, 1.0, 0.15, 0.4, 0.4, 0.2]
    theta = rng.uniform(low, high, (families, 6))
    theta[:, :3] = np.log(theta[:, :3])
    names = [f"family{k}" for k in range(families)]
    table = RunTable.of(params, tokens, ratios, np.ones((runs, families)), names)
    log_loss = np.stack(
        [law.log_loss(theta[k], table.conditions(name)) for k, name in enumerate(names)], axis=1
    )
    losses = np.exp(log_loss + noise * rng.standard_normal(log_loss.shape))
    return RunTable.of(params, tokens, ratios, losses, names)


def public() -> RunTable | None:
    """The public (N, D) table: all models of one training set, every validation set a target."""
    if not PUBLIC.exists():
        return None
    frame = pd.read_csv(PUBLIC)
    train = frame["train_dataset"].value_counts().index[0]
    sizes = ["params_no_embed", "tokens"]
    wide = frame[frame["train_dataset"] == train].pivot_table(
        index=["name", *sizes], columns="val_data", values="loss"
    )
    wide = wide.dropna(axis=1).reset_index()
    names = [column for column in wide.columns if column not in ("name", *sizes)]
    losses = wide[names].to_numpy(float)
    # The law has no ratios; equal ones make the table whole.
    ratios = np.full(losses.shape, 1 / len(names))
    params, tokens = (wide[column].to_numpy(float) for column in sizes)
    return RunTable.of(params, tokens, ratios, losses, [f"val{k}" for k in range(len(names))])


def objective(law: str, runs: RunTable, thetas: Thetas) -> np.ndarray:
    """The objective of every target at the parameters that a side found."""
    form = get_law(law)
    return np.array(
        [
            huber(form.log_loss(theta, runs.conditions(name)) - np.log(runs.losses[:, k])).sum()
            for k, (name, theta) in enumerate(zip(runs.targets, thetas, strict=True))
        ]
    )


def ours(law: str, runs: RunTable) -> Thetas:
    """This package."""
    return list(fit(runs, law).theta)


def many_starts(law: str, runs: RunTable, method: str) -> Thetas:
    """The classic way: `STARTS` random starts per family, each its own scipy run."""
    form, rng, found = get_law(law), np.random.default_rng(0), []
    stated = form.parameters(len(runs.families))
    for k, name in enumerate(runs.targets):
        at, log_loss = runs.conditions(name), np.log(runs.losses[:, k])

        def value(theta: np.ndarray, at=at, log_loss=log_loss) -> tuple[float, np.ndarray]:
            predicted, jacobian = form.gradient(theta, at)
            residual = predicted - log_loss
            slope = np.clip(residual, -HUBER_DELTA, HUBER_DELTA)
            return float(huber(residual).sum()), jacobian.T @ slope

        best, least = None, np.inf
        for _ in range(STARTS):
            start = np.array(
                [rng.uniform(-1, 2) if p.kind == "amplitude" else rng.uniform(0, 1) for p in stated]
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ended = minimize(value, start, jac=True, method=method)
            if ended.fun < least:
                best, least = ended.x, ended.fun
        assert best is not None
        found.append(best)
    return found


def package_chinchilla(runs: RunTable) -> Thetas:
    """PyPI chinchilla on its own law, with a grid of 450 starts, one target after the other."""
    return [_package_target(runs, k) for k in range(len(runs.targets))]


def _package_target(runs: RunTable, target: int) -> np.ndarray:
    from chinchilla import Chinchilla

    params, tokens = runs.params / PARAMS_UNIT, runs.tokens / TOKENS_UNIT
    grid = {
        "e": np.log([1.5, 2.0]),
        "a": np.linspace(-1, 2, 3),
        "b": np.linspace(-1, 2, 3),
        "alpha": np.linspace(0.1, 0.7, 5),
        "beta": np.linspace(0.1, 0.7, 5),
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        frame = pd.DataFrame(
            {"C": 6 * params * tokens, "N": params, "D": tokens, "loss": runs.losses[:, target]}
        )
        frame.to_csv(Path(folder) / "df.csv", index=False)
        side = Chinchilla(
            folder,
            param_grid=grid,
            loss_fn=lambda seen, predicted: huber(np.log(seen) - np.log(predicted)),
            log_level=50,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            side.fit()
    found = [np.log(float(side.E)), np.log(float(side.A)), np.log(float(side.B))]
    return np.array([*found, float(side.alpha), float(side.beta)])


def compare_fits(name: str, law: str, runs: RunTable, rounds: int) -> list[dict[str, object]]:
    """All sides on one table; ours is warmed up, the slow ones are not."""
    sides: dict[str, Callable[[], Thetas]] = {
        "apportion": lambda: ours(law, runs),
        f"BFGS x {STARTS}": lambda: many_starts(law, runs, "BFGS"),
        f"L-BFGS-B x {STARTS}": lambda: many_starts(law, runs, "L-BFGS-B"),
    }
    if law == "chinchilla":
        sides[f"chinchilla 0.2 x {STARTS}"] = lambda: package_chinchilla(runs)
    sides["apportion"]()
    timings = take_turns(sides, rounds, warmup=0)
    reached = {side: objective(law, runs, timing.value) for side, timing in timings.items()}
    best = np.min(list(reached.values()), axis=0)
    rows = []
    for side, timing in timings.items():
        rows.append(
            {
                "table": name,
                "law": law,
                "targets": len(runs.targets),
                "runs": len(runs),
                **timing.row(),
                "times_slower": round(ratio(timing, timings["apportion"]), 2),
                "excess": float(f"{(reached[side] / best - 1).max():.3g}"),
            }
        )
    return rows


def time_bootstrap(name: str, runs: RunTable, rounds: int) -> list[dict[str, object]]:
    """1,000 refits of every family."""
    timings = take_turns({"1,000 refits": lambda: fit(runs, bootstrap=1000)}, rounds, warmup=0)
    return [
        {
            "table": name,
            "law": "family",
            "targets": len(runs.targets),
            "runs": len(runs),
            **timing.row(),
            "times_slower": 1.0,
            "excess": 0.0,
        }
        for timing in timings.values()
    ]


def main() -> None:
    """Measure, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--bootstrap-rounds", type=int, default=3)

    options = arguments(__doc__, rounds=3, add=add)
    table = synthetic()
    rows = compare_fits("synthetic", "family", table, options.rounds)
    rows += time_bootstrap("synthetic", table, options.bootstrap_rounds)
    if SWEEP.exists():
        rows += compare_fits("own sweep", "family", read_runs(SWEEP), options.rounds)
    points = public()
    if points is None:
        print("the public table is not here: ../shared/data/mlfoundations; skipped")
    else:
        rows += compare_fits("mlfoundations", "chinchilla", points, options.rounds)
    show(rows)
    if not options.dry:
        print(record("mixture_fit", rows))


if __name__ == "__main__":
    main()
