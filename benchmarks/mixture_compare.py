"""Laws on published runs: RegMix's proxies predict larger models, mlfoundations' predict N and D.

RegMix (Liu et al., ICLR 2025): 512 runs at 1M parameters and 1B tokens are fitted; 256 other runs
of that size, 256 at 60M and 64 at 1B are predicted. N and D are fixed in what is fitted, so at
other sizes only the order of mixtures can be right: Spearman's correlation of the mean over the 13
validation losses, and of Pile-CC. LightGBM is trained as RegMix trains it, stopping on the 256
runs of 1M, which our laws do not see; it runs in the same process.

Predictions are made at the size of the test runs. The additive laws order mixtures alike at every
N and D. The transfer law does not: its beta follows from the ratios even at one D, and says how the
losses move at another.

Ratios are rounded to 0.001 in the files, so a zero stands for anything below 0.0005. `zeros` tells
how a law was given them: `as given`, or `filled` with the middle of that range, 0.00025.
`cross_validated` is the mean relative error in three folds of the 512 fitted runs alone; `chosen`
marks the row with the least of every law, and of all. No figure of the test runs enters the choice,
and nothing says that the law which is best at 1M carries over best: the choice is shown beside the
rest, not instead of it.

mlfoundations: models of three training sets, eight validation sets; models of 1B parameters and
more are predicted from the smaller ones. (Gadre et al., "Language models scale reliably with
over-training and on downstream tasks", arXiv 2403.08540.)
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from apportion.mixture.compare import AVERAGE, compare
from apportion.mixture.comparison.regressors import RegMix
from apportion.mixture.comparison.scores import rank_correlation
from apportion.mixture.read import concat_runs, read_runs
from apportion.mixture.runs import RunTable
from harness import ROOT, arguments, record, show

DATA = ROOT.parent / "shared" / "data"
TESTS = {"1M": ("1m", 1e6, 1e9), "60M": ("60m", 60e6, 1e9), "1B": ("1B", 1e9, 25e9)}
LAWS = ("mixing", "transfer", "additive", "additive-pooled", "family")
UNIT = 1e-3
# What the laws are to reach (Spearman): the figures of LightGBM or better.
GOALS = {"mean_1B": 0.754, "pile_cc_1B": 0.990, "mean_60M": 0.959}


def regmix_table(part: str, size: str, params: float, tokens: float) -> RunTable:
    folder = DATA / "regmix"
    files = folder / f"{part}_mixture_{size}.csv", folder / f"{part}_pile_loss_{size}.csv"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rounded ratios are renormalised
        return read_runs(*files, format="regmix", params=params, tokens=tokens)


def filled(runs: RunTable) -> RunTable:
    """Zero ratios at the middle of what rounds to zero."""
    ratios = np.where(runs.ratios == 0, UNIT / 4, runs.ratios)
    return replace(runs, ratios=ratios / ratios.sum(axis=1, keepdims=True))


def ranks(predicted: np.ndarray, tests: dict[str, RunTable]) -> dict[str, float]:
    """Spearman's correlations at every test size, from predictions stacked in order of `tests`."""
    found: dict[str, float] = {}
    first = 0
    for size, table in tests.items():
        mine = predicted[first : first + len(table)]
        first += len(table)
        cc = table.targets.index("pile_cc")
        by_target = rank_correlation(mine.T, table.losses.T)
        found[f"mean_{size}"] = float(
            rank_correlation(mine.mean(axis=1), table.losses.mean(axis=1))
        )
        found[f"pile_cc_{size}"] = float(by_target[cc])
        found[f"targets_{size}"] = float(by_target.mean())
    return {name: round(value, 4) for name, value in found.items()}


def regmix_laws(train: RunTable, tests: dict[str, RunTable], zeros: str) -> list[dict[str, Any]]:
    together = concat_runs(*tests.values())
    inside = compare(train, LAWS, holdout="folds:3", baselines=False).table
    outside = compare(train, LAWS, test=together, baselines=False)
    inside = inside[inside["target"] == AVERAGE].set_index("law")
    outer = outside.table.drop_duplicates("law").set_index("law")
    rows: list[dict[str, Any]] = []
    for law, mine in outside.predictions.groupby("law", sort=False):
        predicted = mine["predicted"].to_numpy(float).reshape(len(together), -1)
        known = float(np.isfinite(predicted).mean())
        if known < 1.0:
            print(f"{law}, zeros {zeros}: predicts {100 * known:.0f} % of the losses, left out")
            continue
        rows.append(
            {
                "side": law,
                "zeros": zeros,
                "chosen": "",
                "cross_validated": round(float(inside.loc[law, "mean_relative_error"]), 5),
                "parameters": int(outer.loc[law, "parameters"]),
                "fit_s": round(float(outer.loc[law, "seconds"]), 2),
                **ranks(predicted, tests),
            }
        )
    return rows


def regmix_trees(train: RunTable, tests: dict[str, RunTable]) -> dict[str, Any]:
    began = time.perf_counter()
    model = RegMix(stopping=tests["1M"]).fit(train)
    took = time.perf_counter() - began
    predicted = np.concatenate([model.predict(table) for table in tests.values()])
    return {
        "side": "LightGBM as RegMix trains it",
        "zeros": "as given",
        "chosen": "",
        "cross_validated": "",
        "parameters": "",
        "fit_s": round(took, 2),
        **ranks(predicted, tests),
    }


def regmix() -> list[dict[str, Any]]:
    train = regmix_table("train", "1m", 1e6, 1e9)
    tests = {name: regmix_table("test", *file) for name, file in TESTS.items()}
    rows = regmix_laws(train, tests, "as given")
    rows += regmix_laws(filled(train), {k: filled(v) for k, v in tests.items()}, "filled")
    for law in LAWS:
        mine = [row for row in rows if row["side"] == law]
        if mine:
            min(mine, key=_cross_validated)["chosen"] = "of the law"
    min(rows, key=_cross_validated)["chosen"] = "of all"
    return [regmix_trees(train, tests), *rows]


def _cross_validated(row: dict[str, Any]) -> float:
    return float(row["cross_validated"])


def told(rows: Sequence[dict[str, Any]]) -> None:
    """Who reaches what."""
    for row in rows:
        reached = [
            f"{k} {row[k]:.3f} ({'>=' if row[k] >= v else '<'} {v})" for k, v in GOALS.items()
        ]
        print(f"{row['side']}, zeros {row['zeros']}: {', '.join(reached)}")


def mlfoundations() -> list[dict[str, Any]]:
    frame = pd.read_csv(DATA / "mlfoundations" / "mlfoundations_scaling_losses.csv")
    rows: list[dict[str, Any]] = []
    for trained_on, models in frame.groupby("train_dataset"):
        wide = models.pivot_table(
            index=["name", "params_no_embed", "tokens"], columns="val_data", values="loss"
        )
        names = [Path(str(name)).parent.name for name in wide.columns]
        count = len(names)
        params, tokens = (wide.index.get_level_values(k).to_numpy(float) for k in (1, 2))
        # No mixtures here: equal shares stand in, and no law that looks at them takes part.
        shares = np.full((len(wide), count), 1.0 / count)
        runs = RunTable.of(params, tokens, shares, wide.to_numpy(float), names)
        found = compare(runs, ["chinchilla"], holdout="params>=1e9")
        table = found.table[~found.table["target"].isin(["", "mean loss"])]
        rows += [
            {
                "side": row.law,
                "trained_on": trained_on,
                "validated_on": row.target,
                "fitted_models": int(found.fitted),
                "held_out_models": found.held_out,
                "mean_relative_error": round(float(row.mean_relative_error), 5),
            }
            for row in table.itertuples()
        ]
    return rows


def main() -> None:
    options = arguments(__doc__, rounds=1)
    for name, measure in (("regmix", regmix), ("mlfoundations", mlfoundations)):
        if not (DATA / name).is_dir():
            print(f"{name}: skipped, its published tables are not at {DATA / name}")
            continue
        rows = measure()
        show(rows)
        if name == "regmix":
            told(rows)
        if not options.dry:
            print(record(f"mixture_compare_{name}", rows))


if __name__ == "__main__":
    main()
