"""Which exponents a design identifies, and the reason for each that it does not; unusable runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.mixture.identify import standard_errors
from apportion.mixture.laws import LAWS
from apportion.mixture.laws.base import Law
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable

# Two estimates that move together this closely are one number to the data.
_TIED = 0.98
_DECADE = 10.0


def exponent_table(fit: Fit) -> pd.DataFrame:
    """Every exponent of the fit: can these runs tell it?

    Returns:
        Columns `family`, `parameter`, `value`, `error` (standard error by linearisation),
        `identified`, `why` (one phrase; empty where identified).
    """
    law, runs = fit.law, fit.runs
    errors = standard_errors(law, runs, fit.theta, fit.used)
    loose = set(fit.status.undetermined)
    rows: list[tuple[object, ...]] = []
    stated = law.parameters(len(runs.families))
    for k, target in enumerate(fit.targets):
        ties = _correlations(fit, k)
        for q, parameter in enumerate(stated):
            if parameter.kind != "exponent" or parameter.upper <= parameter.lower:
                continue
            open_end = (target, parameter.symbol) in loose
            partner = int(np.argmax(np.abs(ties[q])))
            tie = (stated[partner].symbol, float(ties[q, partner]))
            why = _why(fit, parameter.symbol, tie) if open_end else ""
            value = float(fit.theta[k, q])
            rows.append((target, parameter.symbol, value, errors[k, q], not open_end, why))
    names = ["family", "parameter", "value", "error", "identified", "why"]
    return pd.DataFrame(rows, columns=names)


def unusable_runs(runs: RunTable, laws: list[Law] | None = None) -> pd.DataFrame:
    """Runs that say nothing about a family under a law, because its ratio is 0 there.

    Args:
        runs: the table.
        laws: laws to ask; all that need no unique tokens by default.

    Returns:
        Columns `law`, `family`, `count`, `runs` (their names); only rows with a count above 0.
    """
    if laws is None:
        known = [make() for make in LAWS.values()]
        laws = [law for law in known if "unique" not in law.needs]
    rows: list[tuple[str, str, int, list[str]]] = []
    for law in laws:
        for target in runs.targets:
            left = np.flatnonzero(~law.usable(runs.conditions(target)))
            if len(left):
                rows.append((law.name, target, len(left), [runs.run[row] for row in left]))
    return pd.DataFrame(rows, columns=["law", "family", "count", "runs"])


def _correlations(fit: Fit, k: int) -> Float[np.ndarray, "q q"]:
    """Correlations between the estimates of one target, 0 on the diagonal."""
    jacobian = fit.law.gradient(fit.theta[k], fit.runs.conditions(fit.targets[k]))[1][fit.used[k]]
    size = np.linalg.norm(jacobian, axis=0)
    scaled = jacobian / np.where(size > 1e-9, size, np.inf)
    covariance = np.linalg.pinv(scaled.T @ scaled, rcond=1e-13)
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    out = covariance / spread[:, None] / spread[None]
    np.fill_diagonal(out, 0.0)
    return np.clip(out, -1.0, 1.0)


def _why(fit: Fit, symbol: str, tie: tuple[str, float]) -> str:
    of = {"alpha": ("N", fit.runs.params), "beta": ("D", fit.runs.tokens)}
    reasons: list[str] = []
    if symbol in of:
        label, values = of[symbol]
        factor = float(values.max() / values.min())
        if factor == 1.0:
            return f"all runs have one {label}"
        if factor < _DECADE:
            reasons.append(f"{label} spans a factor of {factor:.3g} only, a decade is the least")
        if len(np.unique(values)) < 3:
            reasons.append(f"only {len(np.unique(values))} values of {label}")
    if abs(tie[1]) > _TIED:
        reasons.append(f"it moves together with {tie[0]} (correlation {tie[1]:.3f})")
    return "; ".join(reasons) or "too much noise for so few runs"
