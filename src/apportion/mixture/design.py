"""Which runs to train next: the most knowledge of gamma and the exponents for the FLOPs.

Local D_s-optimal design. A run adds g g' / noise^2 to the information on each family's parameters,
g the law's gradient; the score is the log determinant of the information on everything but the
amplitudes, which are eliminated (Atkinson, Donev and Tobias, Optimum Experimental Designs, ch. 10).
The gradient depends on parameters that nobody knows yet, so the score is averaged over the samples
of a pilot fit, or over a small grid of prior values when there are no runs. Runs are added greedily
by gain per FLOP (and, as a second start, by gain alone), then exchanged one by one while the score
rises. Refused: exact integer programming, for the local model is too rough to be worth it.

What it does not see: whether the law holds. The candidates vary the split among the other families
too, so that `diagnose` can test hypothesis 1, and a repeated candidate gets another seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.budget import counted
from apportion.errors import InputError, option
from apportion.mixture.candidates import Pool, candidate_mixtures, default_mixtures, make_pool
from apportion.mixture.laws import get_law
from apportion.mixture.laws.base import PARAMS_UNIT, TOKENS_UNIT, Law, grid_points
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable, conditions, whole

__all__ = ["candidate_mixtures", "design"]

# Prior values without a pilot: shares of the loss at the middle size, and exponents (all pairs).
_PRIOR_LEVEL = 3.0
_PRIOR_SHARES = (0.5, 0.25, 0.25)  # E, the term in N, the term in D
_PRIOR_EXPONENTS = ((0.2, 0.5), (0.2, 0.5), (0.06, 0.2))  # alpha, beta, gamma
# Standard deviations of a weak prior: it keeps the information invertible before the first runs.
_PRIOR_SPREAD = {"amplitude": 1.5, "exponent": 0.5, "coefficient": 1.0}
_MOST_SAMPLES = 16
_EXCHANGES = 3


def design(
    flops: float,
    sizes: Sequence[float] | Mapping[str, float],
    tokens: Sequence[float],
    *,
    families: Sequence[str] | None = None,
    fit: Fit | None = None,
    existing: RunTable | None = None,
    mixtures: Float[np.ndarray, "mixtures families"] | None = None,
    max_runs: int | None = None,
    repeats: int = 2,
    noise: float = 0.01,
    lowest: float = 0.03,
    seed: int = 0,
) -> pd.DataFrame:
    """Runs to train next under a budget.

    Args:
        flops: what all new runs together may cost, 6 N D each.
        sizes: non-embedding parameters to choose from; as a mapping, names of model shapes with
            their parameters (the plan then has a column `shape`).
        tokens: training tokens to choose from.
        families: names of the families; taken from `fit` or `existing` if absent.
        fit: pilot fit, whose law and parameters (and bootstrap samples) the design is for; without
            it, the family law at prior values.
        existing: runs that have been trained and count as information; the fit's if absent.
        mixtures: candidate mixtures, families in order; see `candidate_mixtures`.
        max_runs: at most so many runs.
        repeats: how often one candidate may be trained, each time with another seed.
        noise: standard deviation of the log loss of one run.
        lowest: least ratio of any family in the default candidates.
        seed: first seed, and that of the candidates.

    Returns:
        Columns `run`, `shape` (where named), `params`, `tokens`, `seed`, `ratio_<family>`…,
        `flops`; cheapest runs first. `attrs["notes"]` says what they would not do for a fit.

    Raises:
        InputError: no families or a nameless one, a budget below the cheapest run, or malformed
            candidates.
    """
    _check_limits(max_runs, repeats, noise, seed)
    pilot = fit.runs if fit is not None else None
    existing = pilot if existing is None else existing
    named = families if families is not None else (() if existing is None else existing.families)
    names = tuple(named)
    if not all(name.strip() for name in names):
        given = ", ".join(name.strip() or "nothing" for name in names)
        raise InputError(
            f"expected a name for every family, got {given}; give {option('families')} such as "
            "romance,germanic,slavic"
        )
    if mixtures is None and names:
        mixtures = default_mixtures(len(names), lowest, seed)
    pool = make_pool(flops, sizes, tokens, names, mixtures)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"expected every family once, got {', '.join(twice)} more than once")
    if existing is not None and existing.families != names:
        raise InputError(
            f"expected the families of the runs, {', '.join(existing.families)}; got "
            f"{', '.join(names)}"
        )
    targets = names if existing is None else existing.targets
    law = get_law("family") if fit is None else fit.law
    thetas = _prior(pool, len(targets)) if fit is None else _samples(fit)
    view = _Information.of(law, thetas, pool, names, targets, existing, noise)
    limit = _Limit(flops, max_runs or 10**9, repeats)
    found = [_exchange(view, pool, limit, _greedy(view, pool, limit, each)) for each in (1.0, 0.0)]
    counts = max(found, key=view.score)
    plan = _table(pool, counts, names, existing, seed)
    plan.attrs["notes"] = _notes(plan, law, names, existing)
    return plan


def _check_limits(max_runs: int | None, repeats: int, noise: float, seed: int) -> None:
    for name, value, least in (
        ("max_runs", max_runs, 1),
        ("repeats", repeats, 1),
        ("seed", seed, 0),
    ):
        if value is not None and value < least:
            raise InputError(f"expected {option(name)} of at least {least}, got {value}")
    if not (math.isfinite(noise) and noise > 0):
        raise InputError(
            f"expected {option('noise')}, the standard deviation of a log loss, above 0 such as "
            f"{option('noise', 0.01)}; got {noise:g}"
        )


def _notes(
    plan: pd.DataFrame, law: Law, families: tuple[str, ...], existing: RunTable | None
) -> list[str]:
    """Why the runs, with those that exist, would not do for a fit."""
    known = 0 if existing is None else len(existing)
    total, count = known + len(plan), len(law.parameters(len(families)))
    with_old = f" with the {counted(known, 'run')} that exist" if known else ""
    notes: list[str] = []
    if total <= count:
        what = "the fit is refused" if total < count else "nothing is left to judge the fit by"
        notes.append(
            f"{counted(len(plan), 'run')}{with_old} for a law of {count} parameters per family: "
            f"{what}; allow more FLOPs or runs, or cheaper ones"
        )
    for name, label in (("params", "N"), ("tokens", "D")):
        values = {*plan[name], *(() if existing is None else getattr(existing, name))}
        if name in law.needs and len(values) == 1:
            notes.append(
                f"all runs{with_old} have one {label}: nothing will follow for another {label}; "
                f"allow a second and third {label}"
            )
    if len(families) == 1:
        notes.append("there is one family: there are no ratios to choose, and gamma stays open")
    return notes


@dataclass(frozen=True)
class _Limit:
    flops: float
    runs: int
    repeats: int

    def fits(self, pool: Pool, counts: np.ndarray) -> np.ndarray:
        """Which candidates may be added."""
        left = self.flops * (1 + 1e-9) - float(counts @ pool.flops)
        return (pool.flops <= left) & (counts < self.repeats) & (counts.sum() < self.runs)


@dataclass(frozen=True)
class _Information:
    """Gradients of all candidates (samples, targets, candidates, Q), and what is known already."""

    rows: np.ndarray
    start: np.ndarray
    nuisance: np.ndarray

    @classmethod
    def of(
        cls,
        law: Law,
        thetas: np.ndarray,
        pool: Pool,
        families: tuple[str, ...],
        targets: tuple[str, ...],
        existing: RunTable | None,
        noise: float,
    ) -> _Information:
        stated = law.parameters(len(families))
        # A parameter that the law fixes by its bounds is no unknown: a prior that knows it.
        spread = [_PRIOR_SPREAD[p.kind] if p.upper > p.lower else 1e-6 for p in stated]
        start = np.zeros((len(thetas), len(targets), len(stated), len(stated)))
        start += np.diag(np.array(spread) ** -2.0)
        rows: list[np.ndarray] = []
        for k, target in enumerate(targets):
            own = families.index(target)
            rows.append(
                _gradients(law, thetas[:, k], pool.params, pool.tokens, pool.ratios, own, None)
                / noise
            )
            if existing is not None:
                known = _gradients(
                    law,
                    thetas[:, k],
                    existing.params,
                    existing.tokens,
                    existing.ratios,
                    own,
                    existing.unique_tokens,
                )
                start[:, k] += known.swapaxes(1, 2) @ known / noise**2
        nuisance = np.array([p.kind == "amplitude" for p in stated])
        return cls(np.stack(rows, axis=1), start, nuisance)

    def matrix(self, counts: np.ndarray) -> np.ndarray:
        chosen = np.flatnonzero(counts)
        rows = self.rows[:, :, chosen]
        return self.start + (rows * counts[chosen, None]).swapaxes(2, 3) @ rows

    def score(self, counts: np.ndarray) -> float:
        matrix = self.matrix(counts)
        whole = np.linalg.slogdet(matrix)[1]
        return float((whole - np.linalg.slogdet(self.amplitudes(matrix))[1]).mean())

    def amplitudes(self, matrix: np.ndarray) -> np.ndarray:
        return matrix[..., self.nuisance, :][..., :, self.nuisance]

    def gains(self, counts: np.ndarray) -> np.ndarray:
        """Rise of the score by one more run of each candidate (the determinant lemma)."""
        matrix = self.matrix(counts)
        part = self.rows[..., self.nuisance]
        whole = _leverage(self.rows, np.linalg.inv(matrix))
        rise = np.log1p(whole) - np.log1p(_leverage(part, np.linalg.inv(self.amplitudes(matrix))))
        return rise.mean(axis=(0, 1))


def _leverage(rows: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    return ((rows @ inverse) * rows).sum(axis=-1)


def _greedy(view: _Information, pool: Pool, limit: _Limit, power: float) -> np.ndarray:
    """Add the candidate with the most gain per FLOPs^power until nothing fits."""
    counts = np.zeros(len(pool.params))
    while (allowed := limit.fits(pool, counts)).any():
        value = np.where(allowed, view.gains(counts) / pool.flops**power, -np.inf)
        counts[int(value.argmax())] += 1
    return counts


def _exchange(view: _Information, pool: Pool, limit: _Limit, counts: np.ndarray) -> np.ndarray:
    """Replace runs one by one while the score rises, then use up what the budget still allows."""
    for _ in range(_EXCHANGES):
        changed = False
        for row in np.flatnonzero(counts):
            without = counts.copy()
            without[row] -= 1
            gains = np.where(limit.fits(pool, without), view.gains(without), -np.inf)
            best = int(gains.argmax())
            if best != row and gains[best] > gains[row] + 1e-6:
                without[best] += 1
                counts, changed = without, True
        while (allowed := limit.fits(pool, counts)).any():
            counts[int(np.where(allowed, view.gains(counts), -np.inf).argmax())] += 1
            changed = True
        if not changed:
            break
    return counts


def _gradients(
    law: Law,
    thetas: np.ndarray,
    params: np.ndarray,
    tokens: np.ndarray,
    ratios: np.ndarray,
    own: int,
    unique: np.ndarray | None,
) -> np.ndarray:
    """Gradients (samples, runs, Q) of one target; 0 for runs that the law cannot use."""
    at = conditions(params, tokens, ratios, own, unique)
    return np.where(law.usable(at)[:, None], law.gradient(thetas, at)[1], 0.0)


def _prior(pool: Pool, targets: int) -> np.ndarray:
    """Parameters of the family law (samples, targets, Q) at the prior values."""
    middle = [
        np.log(np.sqrt(values.min() * values.max()) / unit)
        for values, unit in ((pool.params, PARAMS_UNIT), (pool.tokens, TOKENS_UNIT))
    ]
    exponents = grid_points(*_PRIOR_EXPONENTS)
    amplitudes = np.log(_PRIOR_LEVEL * np.array(_PRIOR_SHARES)) + np.stack(
        [np.zeros(len(exponents)), exponents[:, 0] * middle[0], exponents[:, 1] * middle[1]], axis=1
    )
    return np.repeat(np.hstack([amplitudes, exponents])[:, None], targets, axis=1)


def _samples(fit: Fit) -> np.ndarray:
    if fit.samples is None:
        return fit.theta[None]
    return np.concatenate([fit.theta[None], fit.samples[: _MOST_SAMPLES - 1]])


def _table(
    pool: Pool,
    counts: np.ndarray,
    families: tuple[str, ...],
    existing: RunTable | None,
    seed: int,
) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for k in sorted(np.flatnonzero(counts), key=lambda k: (pool.flops[k], k)):
        seen = 0
        if existing is not None:
            same = (existing.params == pool.params[k]) & (existing.tokens == pool.tokens[k])
            same &= np.abs(existing.ratios - pool.ratios[k]).max(axis=1) < 1e-6
            seen = int(same.sum())
        for again in range(int(counts[k])):
            row: dict[str, object] = {"run": f"design-{len(rows) + 1:03d}"}
            if pool.shape is not None:
                row["shape"] = pool.shape[k]
            row |= {"params": pool.params[k], "tokens": pool.tokens[k]}
            row["seed"] = seed + seen + again
            row |= {f"ratio_{f}": pool.ratios[k, j] for j, f in enumerate(families)}
            rows.append(row | {"flops": pool.flops[k]})
    plan = pd.DataFrame(rows)
    sizes = {name: plan[name].to_numpy(dtype=float) for name in ("params", "tokens", "flops")}
    return plan.assign(**{name: whole(values) for name, values in sizes.items()})
