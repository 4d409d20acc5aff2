"""What the runs can and cannot tell: which parameters a fit determines, and why not the others.

The classic trap is a table with one token budget, or model sizes within a factor of a few: the fit
converges, prints exponents, and they mean nothing. Here every such case is a sentence.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from apportion.budget import counted, format_count
from apportion.mixture.laws.base import LOG_ZERO, Law
from apportion.mixture.result import Status, settled
from apportion.mixture.runs import RunTable

# A decade: below it a power law and a constant can hardly be told apart at usual noise.
_DECADE = 10.0
# An exponent whose standard error is above this share of its value is not determined.
_LARGEST_ERROR = 0.5
# Runs or families that a note names before it counts.
_NAMED = 5
# The constants of the laws, by their symbols.
_CONSTANTS = ("E", "C", "Linf", "c")


def status_of(
    law: Law,
    runs: RunTable,
    theta: Float[np.ndarray, "targets q"],
    used: Bool[np.ndarray, "targets runs"],
    converged: bool,
) -> Status:
    """The status of a fit in words: converged, identified, rows left out, terms that vanished."""
    blocking = [] if converged else ["the solver did not settle; treat every number as a guess"]
    single, narrow, open_terms = _design_notes(law, runs)
    count = sum(p.upper > p.lower for p in law.parameters(len(runs.families)))
    exact = [t for t, rows in zip(runs.targets, used.sum(axis=1), strict=True) if rows <= count]
    blocking += single
    if exact:
        blocking.append(
            f"no more runs than the {count} parameters for {', '.join(exact)}: the law passes "
            "through such runs whatever the truth, so that its errors and R² say nothing; add runs"
        )
    notes = [*narrow, *_unused_notes(law, runs, used), *_vanished_notes(law, runs, theta)]
    loose = {(target, s) for target in runs.targets for s in open_terms}
    loose |= set(loose_exponents(law, runs, theta, used))
    held = _held(law, runs, theta)
    notes += _held_notes(law, runs, theta, held)
    symbols = [p.symbol for p in law.parameters(len(runs.families))]
    named = [(t, s) for t in runs.targets for s in symbols if (t, s) in loose - held]
    if named and not single:
        stated = {p.symbol: p for p in law.parameters(len(runs.families))}
        listed = ", ".join(
            f"{stated[symbol].named(runs.order(target)).symbol} of {target}"
            for target, symbol in named
        )
        notes.append(
            f"not determined by these runs (standard error above half the value): {listed}; "
            "predictions within the range of the runs hold, the exponents themselves do not"
        )
    loose = [(t, s) for t in runs.targets for s in symbols if t in exact or (t, s) in loose | held]
    families = counted(len(runs.targets), "family", "families")
    text = f"{law.name}: converged on {counted(len(runs), 'run')} for {families}"
    if blocking:
        text = f"{law.name}: fitted, but not to be trusted"
    elif loose:
        text += ", not all parameters determined"
    return Status(not (blocking or loose), text, (*blocking, *notes), tuple(loose))


def standard_errors(
    law: Law,
    runs: RunTable,
    theta: Float[np.ndarray, "targets q"],
    used: Bool[np.ndarray, "targets runs"],
) -> Float[np.ndarray, "targets q"]:
    """Standard errors of the internal coordinates by linearisation at the minimum.

    Infinite where the runs do not determine a coordinate at all. Quick, for judging identification;
    the bootstrap is the interval to report.
    """
    out = np.full(theta.shape, np.inf)
    for k, target in enumerate(runs.targets):
        value, jacobian = law.gradient(theta[k], runs.conditions(target))
        residual = (value - np.log(runs.losses[:, k]))[used[k]]
        rows = jacobian[used[k]]
        freedom = max(1, len(rows) - theta.shape[1])
        # Mean absolute deviation: what the Huber fit minimises, and not ruled by outliers.
        noise = 1.2533 * float(np.abs(residual).sum()) / freedom
        size = np.linalg.norm(rows, axis=0)
        active = size > 1e-9
        if not active.any():
            continue
        scaled = rows[:, active] / size[active]
        _, singular, right = np.linalg.svd(scaled, full_matrices=False)
        known = singular > 1e-7 * singular[0]
        spread = np.sqrt(((right[known].T / singular[known]) ** 2).sum(axis=1)) / size[active]
        # A direction that no run moves along leaves open whatever takes part in it.
        spread[(np.abs(right[~known]) > 1e-5).any(axis=0)] = np.inf
        error = noise * spread
        out[k, active] = error
    return out


def on_bound(
    law: Law, theta: Float[np.ndarray, "targets q"], families: int
) -> Bool[np.ndarray, "targets q"]:
    """Which exponents and coefficients stand on a bound of the law: there the fit stopped, and
    the runs may ask for more. (An amplitude on its bound is a term that vanished.)"""
    stated = law.parameters(families)
    _, bound = settled(theta, np.array([(p.lower, p.upper) for p in stated]).T)
    return (bound != "") & np.array([p.kind != "amplitude" for p in stated])


def loose_exponents(
    law: Law,
    runs: RunTable,
    theta: Float[np.ndarray, "targets q"],
    used: Bool[np.ndarray, "targets runs"],
) -> list[tuple[str, str]]:
    """(target, symbol) of every exponent that the runs leave open."""
    error = standard_errors(law, runs, theta, used)
    bound = on_bound(law, theta, len(runs.families))
    return [
        (target, p.symbol)
        for k, target in enumerate(runs.targets)
        for q, p in enumerate(law.parameters(len(runs.families)))
        if p.kind == "exponent"
        and p.upper > p.lower
        and (bound[k, q] or error[k, q] > _LARGEST_ERROR * max(abs(theta[k, q]), 0.05))
    ]


def _design_notes(law: Law, runs: RunTable) -> tuple[list[str], list[str], list[str]]:
    """Notes on sizes that do not vary, on sizes that vary little, and symbols left open."""
    single: list[str] = []
    narrow: list[str] = []
    open_terms: list[str] = []
    for need, label, exponent, amplitude, values in (
        ("params", "N", "alpha", "A", runs.params),
        ("tokens", "D", "beta", "B", runs.tokens),
    ):
        if need not in law.needs:
            continue
        span = float(values.max() / values.min())
        if span == 1.0:
            # The term and the constant are one number here.
            open_terms += [exponent, amplitude, *_CONSTANTS]
            single.append(
                f"all runs have one {label} ({format_count(float(values[0]))}): {exponent} and its "
                f"term cannot be told from the constant, so nothing follows for another {label}; "
                f"add runs at a second and third {label}"
            )
        elif span < _DECADE:
            narrow.append(
                f"{label} spans a factor of {span:.3g} only (a decade is the least that separates "
                f"a power law from a constant): {exponent} is weakly determined, and predictions "
                f"for another {label} rest on the form of the law"
            )
    if "ratio" in law.needs and len(np.unique(runs.mixtures())) == 1:
        single.append("all runs have one mixture: nothing follows for other ratios; vary them")
        # Amplitudes are stated at p = 1, which gamma alone leads to.
        open_terms += ["gamma", "A", "B", *_CONSTANTS]
    return single, narrow, open_terms


def _held(law: Law, runs: RunTable, theta: np.ndarray) -> set[tuple[str, str]]:
    """(target, symbol) of the parameters that stand on a bound."""
    stated = law.parameters(len(runs.families))
    rows = np.argwhere(on_bound(law, theta, len(runs.families))).tolist()
    return {(runs.targets[k], stated[q].symbol) for k, q in rows}


def _held_notes(
    law: Law, runs: RunTable, theta: np.ndarray, held: set[tuple[str, str]]
) -> list[str]:
    if not held:
        return []
    listed = [
        # The bound itself: the fit may have stopped within rounding of it.
        f"{p.named(runs.order(target)).symbol} of {target} "
        f"({min((p.lower, p.upper), key=lambda bound: abs(bound - theta[k, q])):.3g})"
        for k, target in enumerate(runs.targets)
        for q, p in enumerate(law.parameters(len(runs.families)))
        if (target, p.symbol) in held
    ]
    said = ", ".join(listed[:_NAMED])
    if len(listed) > _NAMED:
        said += f" and {len(listed) - _NAMED} more"
    return [f"on a bound of the law, and so not determined by these runs: {said}"]


def _unused_notes(law: Law, runs: RunTable, used: np.ndarray) -> list[str]:
    left = [(target, np.flatnonzero(~used[k])) for k, target in enumerate(runs.targets)]
    left = [(target, rows) for target, rows in left if len(rows)]
    if len(left) > _NAMED:
        counts = ", ".join(f"{target} {len(rows)}" for target, rows in left)
        return [
            f"runs whose ratio of a family is 0 say nothing about it under the {law.name} law; "
            f"left out of {len(runs)}: {counts}"
        ]
    notes: list[str] = []
    for target, rows in left:
        listed = ", ".join(runs.run[row] for row in rows[:_NAMED])
        if len(rows) > _NAMED:
            listed += f" and {len(rows) - _NAMED} more"
        notes.append(
            f"{len(rows)} of {len(runs)} runs say nothing about {target} under the {law.name} "
            f"law, because its ratio is 0 there: {listed}"
        )
    return notes


def _vanished_notes(law: Law, runs: RunTable, theta: np.ndarray) -> list[str]:
    notes: list[str] = []
    for q, p in enumerate(law.parameters(len(runs.families))):
        if p.kind != "amplitude" or p.upper <= p.lower:
            continue
        gone = [t for k, t in enumerate(runs.targets) if theta[k, q] <= LOG_ZERO + 10]
        if gone and p.lower <= LOG_ZERO:
            notes.append(f"{p.symbol} ({p.meaning}) is zero for {', '.join(gone)}")
    return notes
