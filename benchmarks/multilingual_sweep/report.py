"""What the real sweep says: errors on held-out larger runs, and the measured gain of the proposals.

    python benchmarks/multilingual_sweep/report.py [--only sweep_unseen ...]

Reads the tables of the three parts and appends to `benchmarks/results/` (all of them, or those
named with `--only`):

- `sweep_heldout.csv`: every law fitted to part a, relative error on part b (8 times the largest N,
  2 times the largest D), per family and on average.
- `sweep_gain.csv`: part c, every proposal against every baseline: the measured normalised total
  (each loss over the family's loss at p = 1 as the family law predicts it, the same constant for
  all mixtures), mean over seeds, and the gain with its 90 % t-interval over paired seeds, beside
  the gain that the fit had predicted.
- `sweep_unseen.csv`: every law on mixtures of part a that it was not fitted to, a fifth of them,
  drawn with each of five seeds: mean relative error within the sizes of the runs.
- `sweep_noise.csv`: seed noise per family from the repeated runs, beside the spread of losses at
  equal N, D and own ratio, and the change of the loss from the lowest ratio to the highest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from run import TABLES
from scipy.stats import t as student

from apportion.errors import InputError
from apportion.mixture.compare import AVERAGE, compare
from apportion.mixture.fit import fit
from apportion.mixture.read import read_runs
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import arguments, record, show

LAWS = ("family", "transfer", "additive", "chinchilla")
LEVEL = 0.9
SPLITS = range(5)
PARTS = ("sweep_noise", "sweep_unseen", "sweep_heldout", "sweep_gain")
Row = dict[str, object]


def heldout(runs: RunTable, larger: RunTable) -> list[Row]:
    """Relative errors of every law on the held-out runs."""
    rows: list[Row] = []
    for law in LAWS:
        found = fit(runs, law)
        predicted = np.array(
            [
                found.predict(n, d, p)["loss"].to_numpy()
                for n, d, p in zip(larger.params, larger.tokens, larger.ratios, strict=True)
            ]
        )
        error = predicted / larger.losses - 1
        columns = [*((name, error[:, k]) for k, name in enumerate(larger.targets)), ("all", error)]
        for family, values in columns:
            rows.append(
                {
                    "law": law,
                    "family": family,
                    "fitted_runs": len(runs),
                    "heldout_runs": len(larger),
                    "params": int(larger.params.max()),
                    "tokens": int(larger.tokens.max()),
                    "mean_relative_error": round(float(np.abs(values).mean()), 5),
                    "bias": round(float(values.mean()), 5),
                    "largest_error": round(float(np.abs(values).max()), 5),
                }
            )
    return rows


def unseen(runs: RunTable) -> list[Row]:
    """Relative errors of every law on mixtures held out within the sizes of the runs."""
    rows: list[Row] = []
    for seed in SPLITS:
        found = compare(runs, LAWS, holdout="unseen-mixtures:0.2", baselines=False, seed=seed)
        errors = found.table.loc[found.table["target"] == AVERAGE].set_index("law")
        rows += [
            {
                "law": law,
                "split_seed": seed,
                "fitted_runs": int(found.fitted),
                "heldout_runs": found.held_out,
                "mean_relative_error": round(float(errors.loc[law, "mean_relative_error"]), 5),
            }
            for law in LAWS
        ]
    return rows


def totals(found: Fit, runs: RunTable) -> np.ndarray:
    """Measured normalised total of every run."""
    alone = np.eye(len(found.families))
    own = [found.families.index(target) for target in found.targets]
    at_one = np.exp(found.log_loss(runs.params[0], runs.tokens[0], alone))[own, range(len(own))]
    return (runs.losses / at_one).sum(axis=1)


def gains(runs: RunTable, tried: RunTable) -> list[Row]:
    """Measured gain of every proposal over every baseline, paired by seed."""
    assert tried.extra is not None
    assert tried.seed is not None
    found = fit(runs, "family")
    total = totals(found, tried)
    names = tried.extra["part"].to_numpy()
    value = {
        name: dict(zip(tried.seed[names == name], total[names == name], strict=True))
        for name in dict.fromkeys(names)
    }
    share = {name: tried.ratios[names == name][0] for name in value}
    rows: list[Row] = []
    for proposal in (name for name in value if name.startswith("proposed")):
        law = fit(runs, proposal.removeprefix("proposed-"))
        for baseline in (name for name in value if not name.startswith("proposed")):
            seeds = sorted(set(value[proposal]) & set(value[baseline]))
            gain = np.array([1 - value[proposal][s] / value[baseline][s] for s in seeds])
            half = np.nan
            if len(seeds) > 1:
                error = gain.std(ddof=1) / np.sqrt(len(seeds))
                half = float(student.ppf((1 + LEVEL) / 2, len(seeds) - 1) * error)
            expected = predicted_total(law, tried, np.stack([share[proposal], share[baseline]]))
            rows.append(
                {
                    "proposal": proposal,
                    "baseline": baseline,
                    "seeds": len(seeds),
                    "total_proposal": round(float(np.mean([value[proposal][s] for s in seeds])), 5),
                    "total_baseline": round(float(np.mean([value[baseline][s] for s in seeds])), 5),
                    "gain": round(float(gain.mean()), 6),
                    "low": round(float(gain.mean() - half), 6),
                    "high": round(float(gain.mean() + half), 6),
                    "predicted_gain": round(float(1 - expected[0] / expected[1]), 6),
                }
            )
    return rows


def predicted_total(law: Fit, tried: RunTable, ratios: np.ndarray) -> np.ndarray:
    """Normalised totals that the proposal's own law predicts."""
    size = tried.params[0], tried.tokens[0]
    own = [law.families.index(target) for target in law.targets]
    at_one = np.exp(law.log_loss(*size, np.eye(len(law.families))))[own, range(len(own))]
    return (np.exp(law.log_loss(*size, ratios)) / at_one).sum(axis=1)


def noise(runs: RunTable) -> list[Row]:
    """Seed noise per family beside the effects that it must not drown."""
    assert runs.seed is not None
    key = np.stack([runs.cells(), runs.mixtures()], axis=1)
    _, pair = np.unique(key, axis=0, return_inverse=True)
    pair = pair.reshape(-1)
    repeated = [np.flatnonzero(pair == g) for g in range(pair.max() + 1)]
    repeated = [rows for rows in repeated if len(rows) > 1]
    rows: list[Row] = []
    for k, family in enumerate(runs.targets):
        seed_sd = np.sqrt(np.mean([runs.losses[r, k].var(ddof=1) for r in repeated]))
        cell = np.stack([runs.cells(), np.round(runs.ratios[:, k] * 1e4)], axis=1)
        _, group = np.unique(cell, axis=0, return_inverse=True)
        group = group.reshape(-1)
        spread = [
            runs.losses[group == g, k].var(ddof=1)
            for g in range(group.max() + 1)
            if (group == g).sum() > 1
        ]
        middle = runs.cells() == np.bincount(runs.cells()).argmax()
        ratio, loss = runs.ratios[middle, k], runs.losses[middle, k]
        rows.append(
            {
                "family": family,
                "repeated": len(repeated),
                "seed_sd_nats": round(float(seed_sd), 5),
                "same_ratio_sd_nats": round(float(np.sqrt(np.mean(spread))), 5),
                "lowest_ratio": round(float(ratio.min()), 4),
                "highest_ratio": round(float(ratio.max()), 4),
                "own_share_effect_nats": round(
                    float(loss[ratio == ratio.min()].mean() - loss[ratio == ratio.max()].mean()), 4
                ),
            }
        )
    return rows


def table(part: str) -> RunTable | None:
    """The table of a part, if it has rows yet."""
    try:
        return read_runs(TABLES / f"{part}.csv")
    except InputError as error:
        print(f"{part}: {error}")
        return None


def main() -> None:
    """Evaluate, show and record what is there."""
    options = arguments(
        __doc__,
        rounds=1,
        add=lambda parser: parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS),
    )
    runs = table("fit")
    assert runs is not None, "part a has no runs yet"
    results: dict[str, list[Row]] = {}
    if "sweep_noise" in options.only:
        results["sweep_noise"] = noise(runs)
    if "sweep_unseen" in options.only:
        results["sweep_unseen"] = unseen(runs)
    if "sweep_heldout" in options.only and (larger := table("heldout")) is not None:
        results["sweep_heldout"] = heldout(runs, larger)
    if "sweep_gain" in options.only and (tried := table("proposed")) is not None:
        results["sweep_gain"] = gains(runs, tried)
    for name, rows in results.items():
        if rows:
            show(rows)
            if not options.dry:
                print(record(name, rows))


if __name__ == "__main__":
    main()
