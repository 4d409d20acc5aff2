"""What a proposal gains over other mixtures, with the interval of the gain.

Every bootstrap sample evaluates the same two mixtures, so what a sample does to both cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.mixture.diagnosis.noise import means, repeat_groups, seed_noise
from apportion.mixture.proposal.constraints import Box
from apportion.mixture.proposal.objective import LossModel, Objective
from apportion.mixture.proposal.optimum import GAIN, NO_GAIN, SMALL, UNKNOWN, WORSE, Gain
from apportion.mixture.runs import RunTable

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

PROPOSED, UNCONSTRAINED = "proposed", "unconstrained"


def compare_mixtures(
    fit: Fit,
    goal: Objective,
    model: LossModel,
    samples: LossModel | None,
    room: Box,
    named: Mapping[str, Float[np.ndarray, " families"]],
    change: float = float("nan"),
) -> pd.DataFrame:
    """Objective of every mixture, and the gain of the first one, the proposal, over it.

    Args:
        fit: gives the interval.
        goal, model: the objective and the point estimate.
        samples: the same losses at every bootstrap sample, if there are any.
        room: bounds, to tell which mixtures keep them.
        named: mixtures by name.
        change: see `another_seed`; a gain that is not above it is called small.

    Returns:
        Columns `mixture`, `objective`, `gain`, `low`, `high`, `verdict`, `feasible`.
    """
    mixtures = list(named.values())
    point = np.array([goal.value(model, mix[None])[0] for mix in mixtures])
    gain = relative_gain(point[:1], point)
    low = high = np.full(len(point), np.nan)
    if samples is not None:
        drawn = np.stack([goal.value(samples, mix[None]) for mix in mixtures], axis=1)
        with np.errstate(invalid="ignore"):
            low, high = fit.interval(relative_gain(drawn[:, :1], drawn))
    verdicts = [
        verdict(float(below), float(above), float(value) <= change)
        for below, above, value in zip(low, high, gain, strict=True)
    ]
    frame = pd.DataFrame(
        {
            "mixture": list(named),
            "objective": point,
            "gain": gain,
            "low": low,
            "high": high,
            "verdict": verdicts,
            "feasible": [room.holds(mix) for mix in mixtures],
        }
    )
    frame.loc[0, ["gain", "low", "high"]] = np.nan
    frame.loc[0, "verdict"] = ""
    frame.loc[frame["mixture"] == UNCONSTRAINED, "verdict"] = "what the bounds cost"
    return frame


def relative_gain(
    ours: Float[np.ndarray, "*#shape"], theirs: Float[np.ndarray, "*#shape"]
) -> Float[np.ndarray, "*shape"]:
    """How much lower our objective is, relative to theirs (1 where only theirs is infinite)."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(theirs) & np.isfinite(ours), 1.0, 1.0 - ours / theirs)


def another_seed(
    runs: RunTable, goal: Objective, model: LossModel, ratios: Float[np.ndarray, " families"]
) -> float:
    """By how much, relative, the objective of two runs differs that differ in their seed alone.

    The standard deviation of that difference, from the runs repeated with another seed; what a
    seed does to several losses of a run together is kept. NaN without repeats.
    """
    if seed_noise(runs) is None:
        return float("nan")
    terms = goal.terms(model, ratios[None])[0]
    weights = (terms == terms.max()).astype(float) if goal.worst else terms / terms.sum()
    logs, groups = np.log(runs.losses), repeat_groups(runs)
    apart = (logs - means(logs, groups)) @ weights
    freedom = len(runs) - len(np.unique(groups))
    return float(np.sqrt(2.0 * (apart**2).sum() / freedom))


def verdict(low: float, high: float, small: bool = False) -> str:
    """The interval of a gain in words; `small`: another seed changes as much."""
    if np.isnan(low) or np.isnan(high):
        return UNKNOWN
    if low > 0:
        return SMALL if small else GAIN
    return WORSE if high < 0 else NO_GAIN


def best_gain(comparison: pd.DataFrame, change: float = float("nan")) -> Gain:
    """The gain over the best baseline that keeps the bounds, or over the best if none does.

    Args:
        comparison: of `compare_mixtures`.
        change: see `another_seed`.
    """
    rivals = [
        row
        for row in comparison.to_dict(orient="records")
        if row["mixture"] not in (PROPOSED, UNCONSTRAINED)
    ]
    allowed = [row for row in rivals if row["feasible"]] or rivals
    best = min(allowed, key=lambda row: float(row["objective"]))
    return Gain(
        str(best["mixture"]),
        float(best["gain"]),
        float(best["low"]),
        float(best["high"]),
        str(best["verdict"]),
        change,
    )
