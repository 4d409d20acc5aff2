"""Predicted against observed losses of runs that a fit has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from apportion.errors import InputError
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable

_LARGEST_ERROR = 0.01
_WORSE = 2.0


def heldout_table(fit: Fit, runs: RunTable) -> pd.DataFrame:
    """Prediction, interval and error for every run and family.

    Args:
        fit: the fit.
        runs: other runs with the same families; those that the law cannot use are left out.

    Returns:
        Columns `run`, `family`, `params`, `tokens`, `ratio` (the family's own), `observed` and
        `predicted` (nats per token), `low`, `high` (NaN without a bootstrap), `error` (predicted
        over observed, minus 1).

    Raises:
        InputError: other families than those of the fit, or no run that the law can use.
    """
    if set(runs.families) != set(fit.families):
        raise InputError(
            f"expected held-out runs with the families of the fit ({', '.join(fit.families)}), "
            f"got {', '.join(runs.families)}"
        )
    targets = [target for target in fit.targets if target in runs.targets]
    # Laws with cross-terms read the other families in the order of the fit's own table.
    order = [runs.family_index(family) for family in fit.families]
    unique = runs.unique_tokens
    at_fit = replace(
        runs,
        families=fit.families,
        ratios=runs.ratios[:, order],
        unique_tokens=fit.runs.unique_tokens if unique is None else unique[order],
    )
    frames = [_of_target(fit, at_fit, target) for target in targets]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if not len(frame):
        raise InputError(f"the {fit.law.name} law can use none of the {len(runs)} held-out runs")
    return frame


def unseen_warning(fit: Fit, table: pd.DataFrame) -> str | None:
    """What `heldout_table` says against the fit; None where it predicts as well as it fits.

    Too far off is a mean relative error above one per cent (mixtures differ by little more) and
    above twice that on the fitted runs.
    """
    columns = ["error", "observed", "low", "high"]
    errors, observed, low, high = table[columns].to_numpy(dtype=float).T
    error = float(np.abs(errors).mean())
    fitted = float(fit.quality()["mean_relative_error"].to_numpy(dtype=float).mean())
    if error <= max(_LARGEST_ERROR, _WORSE * fitted):
        return None
    text = f"but it errs by {error:.2%} on runs that it has not seen, by {fitted:.2%} on its own"
    if fit.samples is not None:
        inside = float(((observed >= low) & (observed <= high)).mean())
        text += f"; {inside:.0%} of their losses lie in its {fit.level:.0%} intervals"
    return text


def _of_target(fit: Fit, runs: RunTable, target: str) -> pd.DataFrame:
    k = fit.targets.index(target)
    conditions = runs.conditions(target)
    rows = np.flatnonzero(fit.law.usable(conditions))
    runs = runs.take(rows)
    conditions = runs.conditions(target)
    observed = runs.losses[:, runs.targets.index(target)]
    predicted = np.exp(fit.law.log_loss(fit.theta[k], conditions))
    low = high = np.full(len(rows), np.nan)
    if fit.samples is not None:
        drawn = np.exp(fit.law.log_loss(fit.samples[:, k], conditions))
        low, high = fit.interval(drawn)
    return pd.DataFrame(
        {
            "run": list(runs.run),
            "family": target,
            "params": runs.params,
            "tokens": runs.tokens,
            "ratio": conditions.own,
            "observed": observed,
            "predicted": predicted,
            "low": low,
            "high": high,
            "error": predicted / observed - 1.0,
        }
    )
