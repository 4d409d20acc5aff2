"""Designed runs against random and one-family-at-a-time runs at equal FLOPs, on a known law.

Every repetition draws a family law, trains (evaluates with noise) the runs of each design up to the
same budget, fits the law, and compares gamma, alpha and beta with the truth. All sides choose from
the same sizes and token budgets. The designed runs come once from prior values alone, and once in
two steps: a fifth of the budget at prior values, the rest for the fit of those runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import harness
from apportion.mixture.candidates import candidate_mixtures
from apportion.mixture.design import design
from apportion.mixture.fit import fit
from apportion.mixture.laws import get_law
from apportion.mixture.runs import RunTable

FAMILIES = ("f0", "f1", "f2", "f3", "f4")
SIZES = (5e4, 2e5, 8e5, 3.2e6)
TOKENS = (4e5, 1.6e6, 6.4e6)
BUDGET = 5e14
NOISE = 0.01
MOST_RUNS = 60
# Range of every parameter of the truth: E, A, B (nats, at the middle size), alpha, beta, gamma.
TRUTH = np.array([(1.2, 2.5), (0.4, 1.2), (0.4, 1.2), (0.2, 0.5), (0.2, 0.5), (0.05, 0.2)])


def truth(rng: np.random.Generator) -> np.ndarray:
    """Internal coordinates (families, 6) of a family law."""
    drawn = rng.uniform(TRUTH[:, 0], TRUTH[:, 1], (len(FAMILIES), 6))
    middle = np.array([np.sqrt(SIZES[0] * SIZES[-1]) / 1e6, np.sqrt(TOKENS[0] * TOKENS[-1]) / 1e9])
    drawn[:, 1:3] *= middle ** drawn[:, 3:5]
    drawn[:, :3] = np.log(drawn[:, :3])
    return drawn


def train(rows: np.ndarray, theta: np.ndarray, rng: np.random.Generator) -> RunTable:
    """The table that the runs (N, D, ratios…) give under the law, with noise."""
    law = get_law("family")
    table = RunTable.of(rows[:, 0], rows[:, 1], rows[:, 2:], np.ones((len(rows), 5)), FAMILIES)
    logs = [law.log_loss(theta[k], table.conditions(f)) for k, f in enumerate(FAMILIES)]
    noisy = np.stack(logs, axis=1) + NOISE * rng.standard_normal((len(rows), 5))
    return RunTable.of(table.params, table.tokens, table.ratios, np.exp(noisy), FAMILIES)


def spend(order: np.ndarray) -> np.ndarray:
    """The first runs of an order that fit into the budget and the number of runs."""
    kept: list[np.ndarray] = []
    left = BUDGET
    for row in order:
        if 6 * row[0] * row[1] <= left and len(kept) < MOST_RUNS:
            kept.append(row)
            left -= 6 * row[0] * row[1]
    return np.array(kept)


def random_design(rng: np.random.Generator) -> np.ndarray:
    """Sizes, tokens and mixtures at random, until nothing fits any more."""
    ratios = 0.03 + 0.85 * rng.dirichlet(np.ones(5), 2000)
    return spend(np.c_[rng.choice(SIZES, 2000), rng.choice(TOKENS, 2000), ratios])


def one_at_a_time(rng: np.random.Generator) -> np.ndarray:
    """Every size once at every token budget and uniform; then one family's ratio varied at a time.

    The other families share the rest equally. The ratios are varied at sizes and tokens in turn.
    """
    uniform = [[n, d, *[0.2] * 5] for n in SIZES for d in TOKENS]
    varied: list[list[float]] = []
    cells = [(n, d) for d in TOKENS for n in SIZES]
    rng.shuffle(cells)
    for number, own in enumerate((0.03, 0.5, 0.1, 0.8, 0.05, 0.35, 0.65, 0.15) * 2):
        for k in range(5):
            ratios = np.full(5, (1 - own) / 4)
            ratios[k] = own
            varied.append([*cells[(number * 5 + k) % len(cells)], *ratios])
    return spend(np.array(uniform + varied))


def from_plan(plan: Any) -> np.ndarray:
    return plan[["params", "tokens", *(f"ratio_{f}" for f in FAMILIES)]].to_numpy(dtype=float)


def sides(theta: np.ndarray, plan: np.ndarray, first: np.ndarray) -> dict[str, Callable[..., Any]]:
    """What each side does with a generator: it returns its table."""

    def two_steps(rng: np.random.Generator) -> RunTable:
        table = train(first, theta, rng)
        spent = float((6 * table.params * table.tokens).sum())
        rest = design(
            BUDGET - spent,
            SIZES,
            TOKENS,
            fit=fit(table),
            max_runs=MOST_RUNS - len(table),
            noise=NOISE,
        )
        # One generator and one law: trained together or in two steps is the same.
        more = train(from_plan(rest), theta, rng)
        return RunTable.of(
            np.r_[table.params, more.params],
            np.r_[table.tokens, more.tokens],
            np.r_[table.ratios, more.ratios],
            np.r_[table.losses, more.losses],
            FAMILIES,
        )

    return {
        "one family at a time": lambda rng: train(one_at_a_time(rng), theta, rng),
        "random": lambda rng: train(random_design(rng), theta, rng),
        "designed at prior values": lambda rng: train(plan, theta, rng),
        "designed in two steps": two_steps,
    }


def main() -> None:
    options = harness.arguments(__doc__, rounds=30)
    plan = from_plan(
        design(BUDGET, SIZES, TOKENS, families=FAMILIES, max_runs=MOST_RUNS, noise=NOISE)
    )
    pilot = design(BUDGET / 5, SIZES, TOKENS, families=FAMILIES, max_runs=20, noise=NOISE)
    errors: dict[str, list[np.ndarray]] = {}
    cost: dict[str, list[tuple[int, float]]] = {}
    for number in range(options.rounds):
        theta = truth(np.random.default_rng([number, 0]))
        for side, make in sides(theta, plan, from_plan(pilot)).items():
            table = make(np.random.default_rng([number, 1]))
            errors.setdefault(side, []).append(fit(table).theta[:, 3:] - theta[:, 3:])
            spent = float((6 * table.params * table.tokens).sum())
            cost.setdefault(side, []).append((len(table), spent))
    rows = [row(side, np.array(each), np.array(cost[side])) for side, each in errors.items()]
    harness.show(rows)
    if not options.dry:
        print(harness.record("mixture_design", rows))


def row(side: str, error: np.ndarray, cost: np.ndarray) -> dict[str, Any]:
    """Root mean square errors, with the middle error beside them: a few fits run far away."""
    out: dict[str, Any] = {
        "side": side,
        "repetitions": len(error),
        "runs": float(cost[:, 0].mean()),
        "flops": float(cost[:, 1].mean()),
        "candidate_mixtures": len(candidate_mixtures(5)),
    }
    for k, name in ((2, "gamma"), (0, "alpha"), (1, "beta")):
        flat = error[:, :, k].ravel()
        out[f"rmse_{name}"] = round(float(np.sqrt((flat**2).mean())), 5)
        out[f"median_error_{name}"] = round(float(np.median(np.abs(flat))), 5)
    return out


if __name__ == "__main__":
    main()
