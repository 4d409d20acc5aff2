"""Whether a fit is strong enough for what an optimum takes from it.

Normalized losses under a law with a closed form need gamma alone. Sums of plain losses also need
their levels at the requested N and D, and so exponents as soon as that lies beyond the runs.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from apportion.mixture.identify import loose_exponents, on_bound, standard_errors
from apportion.mixture.proposal.objective import LossModel, Objective, own_power

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

# Smaller slopes of the log loss by a ratio are none: no mixture moves a loss by 0.0001 %.
_FLAT = 1e-6
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
    gamma = own_power(fit.law)
    if gamma is None and model.mixed:
        reasons += _flat(goal, model)
    if gamma is not None:
        reasons += _gammas(fit, goal, model.own, held, gamma)
    if not goal.normalized:
        reasons += _levels(fit, goal, model)
    return reasons


def _gammas(
    fit: Fit, goal: Objective, own: tuple[int, ...], held: np.ndarray, place: int
) -> list[str]:
    """Targets whose gamma is not above 0 beyond doubt, or stands where the law ends."""
    point = fit.theta[:, place]
    if fit.samples is not None:
        low, high = fit.interval(fit.samples[..., place])
    else:
        error = standard_errors(fit.law, fit.runs, fit.theta, fit.used)[:, place]
        spread = NormalDist().inv_cdf(0.5 + fit.level / 2.0) * error
        low, high = point - spread, point + spread
    bound = on_bound(fit.law, fit.theta, len(fit.families))[:, place]
    reasons: list[str] = []
    for t, target in enumerate(fit.targets):
        if goal.weights[t] == 0 or held[own[t]]:
            continue
        said = f"gamma of {target} is {point[t]:.3g}"
        if low[t] <= 0.0:
            reasons.append(
                f"{said} ({low[t]:.3g} to {high[t]:.3g} at {fit.level:.0%}): these runs do not "
                "show that it gains from a larger ratio"
            )
        elif bound[t]:
            reasons.append(f"{said}, the largest that the law allows: these runs do not bound it")
    return reasons


def _flat(goal: Objective, model: LossModel) -> list[str]:
    """That no loss which counts depends on the mixture, under a law without gamma."""
    count = len(model.families)
    uniform = np.full((1, count), 1.0 / count)
    slopes = model.slopes(np.concatenate([uniform, 0.7 * np.eye(count) + 0.3 * uniform]))
    # Ratios sum to 1, so only differences between families move a loss.
    moved = np.ptp(slopes, axis=-1)[:, goal.weights > 0]
    if (moved > _FLAT).any():
        return []
    return ["no loss depends on the mixture under this fit"]


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
