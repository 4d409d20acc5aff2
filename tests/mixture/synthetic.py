"""Run tables whose truth is known: a law, its parameters, a design and noise, all from one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from apportion.mixture.laws import Law, get_law
from apportion.mixture.laws.base import Parameter
from apportion.mixture.result import Fit, Status
from apportion.mixture.runs import RunTable

# Plausible values per symbol, on their own scale (amplitudes are drawn before the logarithm).
_BY_SYMBOL = {
    "E": (1.2, 2.5),
    "Linf": (1.2, 2.5),
    "c": (1.2, 2.5),
    "C": (1.5, 3.0),
    "A": (0.3, 1.0),
    "B": (0.05, 0.15),
    "beta": (0.2, 0.4),
    "alpha": (0.2, 0.4),
    "gamma": (0.05, 0.2),
    "c1": (0.3, 1.0),
    "c2": (0.5, 1.0),
    "c3": (0.5, 2.0),
    "lambda": (0.02, 0.3),
    "C_0": (2.0, 4.0),
    "t_0": (-1.0, 0.0),
}
_BY_KIND = {"amplitude": (0.2, 0.8), "exponent": (0.2, 0.8), "coefficient": (0.05, 0.4)}


def synthetic_theta(law: str | Law, families: int, seed: int = 0) -> np.ndarray:
    """Internal coordinates of every target, (families, Q)."""
    rng = np.random.default_rng([seed, 1])
    stated = get_law(law).parameters(families)
    rows = [[_draw(parameter, rng) for parameter in stated] for _ in range(families)]
    return np.array(rows)


def synthetic_runs(
    law: str | Law = "family",
    families: int = 5,
    runs: int = 120,
    noise: float = 0.01,
    seed: int = 0,
    *,
    theta: np.ndarray | None = None,
    params: Sequence[float] = (5e4, 2e5, 8e5),
    tokens: Sequence[float] = (4e5, 8e5, 1.6e6),
    ratios: np.ndarray | None = None,
    unique: np.ndarray | None = None,
    cross: Mapping[tuple[int, int], float] | None = None,
    seeds: int | None = None,
) -> tuple[RunTable, np.ndarray]:
    """A run table drawn from a law, and the internal coordinates that it was drawn from.

    Args:
        noise: standard deviation of the log loss, independent per run and family.
        theta: the truth, (families, Q); drawn from the seed when absent.
        params, tokens: values of N and D to choose from, independently per run.
        ratios: mixtures, (runs, families); Dirichlet(1.5) with at least .03 each when absent.
        cross: `{(i, j): c}` multiplies the loss of family i by exp(-c * p_j): a hypothesis 1 that
            fails on purpose.
        seeds: give the runs seeds 0 … seeds - 1 in turn (the table has no seed column otherwise).
    """
    law = get_law(law)
    rng = np.random.default_rng([seed, 0])
    theta = synthetic_theta(law, families, seed) if theta is None else theta
    size = (rng.choice(params, runs), rng.choice(tokens, runs))
    if ratios is None:
        ratios = np.maximum(rng.dirichlet(np.full(families, 1.5), runs), 0.03)
        ratios = ratios / ratios.sum(axis=1, keepdims=True)
    names = [f"f{k}" for k in range(families)]
    table = RunTable.of(*size, ratios, np.ones((runs, families)), names)
    if unique is not None:
        table = replace(table, unique_tokens=np.asarray(unique, dtype=float))
    log_loss = np.stack(
        [law.log_loss(theta[k], table.conditions(name)) for k, name in enumerate(names)], axis=1
    )
    for (target, other), strength in (cross or {}).items():
        log_loss[:, target] -= strength * ratios[:, other]
    log_loss = log_loss + noise * rng.standard_normal(log_loss.shape)
    seed_column = None if seeds is None else np.arange(runs) % seeds
    return replace(table, losses=np.exp(log_loss), seed=seed_column), theta


def family_fit(
    gamma: Sequence[float], *, samples: int = 0, spread: float = 0.01, seed: int = 0
) -> Fit:
    """A fit of the family law with given gammas, and samples of them with a given spread."""
    runs, theta = synthetic_runs(families=len(gamma), runs=80, noise=0.001, seed=seed)
    theta = theta.copy()
    theta[:, 5] = gamma
    drawn = None
    if samples:
        rng = np.random.default_rng(seed)
        drawn = np.repeat(theta[None], samples, axis=0)
        drawn[..., 5] += spread * rng.standard_normal(drawn.shape[:2])
    count = len(runs.targets)
    used = np.ones((count, len(runs)), dtype=bool)
    status = Status(True, "made by hand")
    return Fit(get_law("family"), runs, theta, np.zeros(count), used, drawn, status)


def _draw(parameter: Parameter, rng: np.random.Generator) -> float:
    low, high = _BY_SYMBOL.get(parameter.symbol, _BY_KIND[parameter.kind])
    value = rng.uniform(low, high)
    if parameter.kind == "amplitude":
        value = np.log(value)
    return float(np.clip(value, parameter.lower, parameter.upper))
