"""Hypothesis 1, pair by pair: what the share of family j does to the loss of family i.

For a target i the shares of the others sum to 1 - p_i; at fixed p_i only *contrasts* among them can
matter. The effect of j is the change of loss i when share moves to j from the other families
equally, own ratio, N and D fixed. Two ways to hold these fixed:

- `"cells"`: a constant for every set of runs with the same N, D and p_i. Assumes nothing about the
  law. Chosen when the design has enough such cells to be nearly as precise as the other way.
- `"law"`: the residuals of a fitted law of the own ratio, with everything that the fit could absorb
  (its gradient by every parameter) and what it may have missed (curvature in p, slopes in p that
  change with N and D, constants per (N, D)) taken out of both sides.

Refused: regressing residuals on shares without taking the law's gradient out, which hides the part
of an effect that the fit has swallowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from apportion.mixture.diagnosis.noise import Noise, own_ratio_cells
from apportion.mixture.diagnosis.regression import Contrasts, contrasts, holm, span
from apportion.mixture.laws.base import Conditions
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable

# Share that is moved, in the units of the reported effects.
STEP = 0.1
# The law-free way is taken while its standard errors are at most this much larger.
_PRICE_OF_CELLS = 1.5
_FEWEST_FREEDOM = 8


@dataclass(frozen=True)
class CrossEffects:
    """Effects of every ordered pair, and the sums per family.

    Attributes:
        pairs: columns `family`, `other`, `effect` (nats for `STEP` of share moved from the average
            other family to `other`), `low`, `high`, `p`, `p_holm`, `verdict`.
        families: columns `family`, `method`, `runs`, `mixtures`, `cross_spread` (standard
            deviation of the log loss over these runs that linear cross-effects explain).
        noise: what law and cross-effects leave, per target.
    """

    pairs: pd.DataFrame
    families: pd.DataFrame
    noise: Noise


def cross_effects(runs: RunTable, own: Fit, noise: Noise | None, alpha: float) -> CrossEffects:
    """Effect of every family on the loss of every other at fixed own ratio.

    Args:
        runs: the table.
        own: a law of N, D and the own ratio, fitted to it.
        noise: seed noise for the verdicts; None takes the residuals of these regressions.
        alpha: level of the Holm-corrected tests over all pairs; intervals cover 1 - alpha each.
    """
    found = [_target(runs, own, k) for k in range(len(runs.targets))]
    left = Noise(
        np.array([np.nan if each is None else each[0].sigma for each in found]),
        np.array([0 if each is None else each[0].residual_freedom for each in found]),
        "residuals",
    )
    noise = left if noise is None else noise
    rows: list[tuple[object, ...]] = []
    summary: list[tuple[object, ...]] = []
    for k, (target, each) in enumerate(zip(runs.targets, found, strict=True)):
        others = [f for f in runs.families if f != target]
        if each is None:
            rows += [(target, other, *[np.nan] * 4, np.nan) for other in others]
            summary.append((target, "none", int(own.used[k].sum()), 0, np.nan))
            continue
        result, method, kept = each
        level = float(np.exp(np.log(runs.losses[kept, k]).mean()))
        width = result.half_width(alpha)
        for j, other in enumerate(others):
            middle, half = result.estimate[j], width[j]
            ends = ((middle - half) * level, (middle + half) * level)
            rows.append((target, other, middle * level, *ends, result.p[j], noise.sd[k] * level))
        spread = float(np.sqrt(max(result.explained, 0.0)))
        count = len(np.unique(runs.mixtures()[kept]))
        summary.append((target, method, int(kept.sum()), count, spread))
    pairs = pd.DataFrame(
        rows, columns=["family", "other", "effect", "low", "high", "p", "noise"]
    )  # noise: of one run, in nats
    pairs["p_holm"] = holm(pairs["p"].to_numpy(dtype=float))
    pairs["verdict"] = [_verdict(row, alpha) for row in pairs.to_dict("records")]
    names = ["family", "method", "runs", "mixtures", "cross_spread"]
    return CrossEffects(pairs, pd.DataFrame(summary, columns=names), left)


def own_controls(own: Fit, k: int, kept: Bool[np.ndarray, " runs"]) -> Float[np.ndarray, "kept _"]:
    """What a law of the own ratio can express or may have missed, for the runs kept.

    The law's gradient always; then, while half of the runs' freedom is left: the ratio itself (it
    holds the mean effect of the others, whose sum is 1 - p), curvature, slopes that change with N
    and D, and a constant per (N, D).
    """
    target = own.targets[k]
    at: Conditions = own.runs.take(kept).conditions(target)
    columns = own.law.gradient(own.theta[k], at)[1]
    columns = np.hstack([np.ones((len(columns), 1)), columns])
    log = at.log_own
    extra = [at.own, log, log**2, log * at.log_params, log * at.log_tokens]
    for column in extra:
        wider = np.hstack([columns, column[:, None]])
        if span(wider).shape[1] <= len(wider) // 2:
            columns = wider
    cells = own.runs.cells()[kept]
    wider = np.hstack([columns, dummies(cells)])
    return wider if span(wider).shape[1] <= len(wider) // 2 else columns


def dummies(groups: Int[np.ndarray, " runs"]) -> Float[np.ndarray, "runs groups"]:
    """One column a group, 1 where the run belongs to it."""
    return (groups[:, None] == np.unique(groups)[None]).astype(float)


def _target(
    runs: RunTable, own: Fit, k: int
) -> tuple[Contrasts, str, Bool[np.ndarray, " runs"]] | None:
    """Contrasts of one target by the better way; None where nothing can be said."""
    others = [j for j, f in enumerate(runs.families) if f != runs.targets[k]]
    if len(others) < 2:
        return None
    columns, lines = _contrast_basis(len(others))
    y = -own.residuals()[:, k]
    mixtures = runs.mixtures()

    def regress(kept: np.ndarray, nuisance: np.ndarray) -> Contrasts:
        shares = runs.ratios[kept][:, others] @ columns
        return contrasts(y[kept], nuisance, shares, lines, mixtures[kept])

    cells = own_ratio_cells(runs, runs.targets[k])
    ways: dict[str, tuple[Contrasts, str, np.ndarray]] = {}
    used = own.used[k]
    if used.sum() > len(others):
        ways["law"] = (regress(used, own_controls(own, k, used)), "law", used)
    kept = used & (cells >= 0)
    if kept.sum() > len(others):
        ways["cells"] = (regress(kept, dummies(cells[kept])), "cells", kept)
    usable = {way: each for way, each in ways.items() if np.isfinite(each[0].estimate).any()}
    if "cells" in usable and usable["cells"][0].residual_freedom >= _FEWEST_FREEDOM:
        price = np.nan
        if "law" in usable:
            price = float((usable["cells"][0].design / usable["law"][0].design).mean())
        if "law" not in usable or price <= _PRICE_OF_CELLS:
            return usable["cells"]
    return usable.get("law", usable.get("cells"))


def _contrast_basis(others: int) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal zero-sum directions among the others, and the effect of each as a line on them.

    Moving STEP to j, equally from the rest, is STEP (e_j - 1/m) m / (m - 1), m others.
    """
    centred = np.eye(others) - 1.0 / others
    columns = np.linalg.svd(centred)[0][:, : others - 1]
    return columns, STEP * others / (others - 1) * (centred @ columns)


def _verdict(row: dict[str, object], alpha: float) -> str:
    """`"large"`, `"small"`, `"none"`, `"unclear"` or `"not testable"` (see the report's legend)."""
    values = {key: float(row[key]) for key in ("effect", "low", "high", "p_holm", "noise")}  # pyright: ignore[reportArgumentType]
    if not np.isfinite(values["p_holm"]):
        return "not testable"
    if values["p_holm"] < alpha:
        return "large" if abs(values["effect"]) >= values["noise"] else "small"
    beyond = max(-values["low"], values["high"]) > values["noise"]
    return "unclear" if beyond else "none"
