"""Whether a fit is strong enough for what an optimum takes from it.

Normalized losses under a law with a closed form need gamma alone. Sums of plain losses also need
their levels at the requested N and D, and so exponents as soon as that lies beyond the runs.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from apportion.budget import format_count
from apportion.mixture.identify import loose_exponents, standard_errors
from apportion.mixture.proposal.objective import LossModel, Objective

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

_EXPONENT_OF = {"exponent of N": "N", "exponent of D": "D"}


def weak_points(fit: Fit, goal: Objective, model: LossModel, held: np.ndarray) -> list[str]:
    """Why the fit does not carry the objective, one sentence each; empty when it does.

    Args:
        fit: the fit.
        goal: the objective.
        model: the losses at the requested size (any problems).
        held: families whose ratio the constraints give; nothing about them is needed.
    """
    reasons: list[str] = []
    if (~held).sum() < 2:
        return reasons
    if any("did not settle" in note for note in fit.status.notes):
        reasons.append("the fit did not settle")
    if len(np.unique(fit.runs.mixtures())) == 1:
        reasons.append("all runs have one mixture, so nothing is known of any other")
    if model.separable:
        reasons += _gammas(fit, goal, model, held)
    if not goal.normalized:
        reasons += _levels(fit, goal, model)
    return reasons


def reach_notes(fit: Fit, params: float, tokens: float, ratios: np.ndarray) -> list[str]:
    """How far a request lies beyond the runs in N, D and each ratio."""
    notes: list[str] = []
    for label, value, seen in (("N", params, fit.runs.params), ("D", tokens, fit.runs.tokens)):
        low, high = float(seen.min()), float(seen.max())
        said = f"{label} = {format_count(value)}"
        if low * 0.999 <= value <= high * 1.001:
            continue
        if _need_of(label) not in fit.law.needs:
            notes.append(
                f"{said} is not that of the runs ({_span(low, high)}), and the {fit.law.name} law "
                f"has no term in {label}: it answers for the runs' {label}"
            )
        elif value > high:
            notes.append(
                f"{said} is {value / high:.3g} times the largest in the runs ({format_count(high)})"
            )
        else:
            notes.append(
                f"{said} is {low / value:.3g} times below the smallest in the runs "
                f"({format_count(low)}); is a suffix such as M or B missing?"
            )
    for k, family in enumerate(fit.families):
        low, high = float(fit.runs.ratios[:, k].min()), float(fit.runs.ratios[:, k].max())
        if ratios[k] == 0 and family in fit.targets and low > 0:
            notes.append(f"{family} gets nothing; no run shows what its loss would be")
        elif ratios[k] > 0 and not low * 0.999 <= ratios[k] <= high * 1.001:
            notes.append(
                f"the ratio of {family} ({ratios[k]:.3g}) lies outside the runs "
                f"({low:.3g} to {high:.3g})"
            )
    return notes


def _span(low: float, high: float) -> str:
    if low == high:
        return format_count(low)
    return f"{format_count(low)} to {format_count(high)}"


def _need_of(label: str) -> str:
    """The law's name for N or D."""
    return "params" if label == "N" else "tokens"


def _gammas(fit: Fit, goal: Objective, model: LossModel, held: np.ndarray) -> list[str]:
    """Targets whose gamma has an interval that covers 0."""
    point = LossModel.of(fit, model.params, model.tokens, None, fit.theta[None]).gamma[0]
    if fit.samples is not None:
        drawn = LossModel.of(fit, model.params, model.tokens, None, fit.samples).gamma
        low, high = fit.interval(drawn)
    else:
        place = int(np.flatnonzero(_is_gamma(fit, model))[0])
        error = standard_errors(fit.law, fit.runs, fit.theta, fit.used)[:, place]
        spread = NormalDist().inv_cdf(0.5 + fit.level / 2.0) * error
        low, high = point - spread, point + spread
    return [
        f"gamma of {target} is {point[t]:.3g} ({low[t]:.3g} to {high[t]:.3g} at "
        f"{fit.level:.0%}): these runs do not show that it gains from a larger ratio"
        for t, target in enumerate(fit.targets)
        if goal.weights[t] > 0 and not held[model.own[t]] and low[t] <= 0.0 <= high[t]
    ]


def _is_gamma(fit: Fit, model: LossModel) -> np.ndarray:
    """Which internal coordinate the own ratio's exponent is."""
    marked = np.arange(fit.theta.shape[1], dtype=float)[None, None]
    probe = LossModel.of(fit, model.params, model.tokens, None, marked)
    return np.arange(fit.theta.shape[1]) == probe.gamma[0, 0]


def _levels(fit: Fit, goal: Objective, model: LossModel) -> list[str]:
    """Targets whose level at the requested size rests on an exponent that the runs leave open."""
    beyond = {
        label
        for label, value, seen in (
            ("N", model.params, fit.runs.params),
            ("D", model.tokens, fit.runs.tokens),
        )
        if value > 1.001 * float(seen.max()) or value < 0.999 * float(seen.min())
    }
    stated = {p.symbol: _EXPONENT_OF.get(p.meaning) for p in fit.law.parameters(len(fit.families))}
    return [
        f"the level of {target} at another {stated[symbol]} rests on {symbol}, which these runs do "
        "not determine"
        for target, symbol in loose_exponents(fit.law, fit.runs, fit.theta, fit.used)
        if stated.get(symbol) in beyond and goal.weights[fit.targets.index(target)] > 0
    ]
