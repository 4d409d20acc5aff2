"""How far a requested prediction lies outside the runs: in N, in D, and in the mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import linprog

from apportion.budget import format_count, parse_params, parse_tokens
from apportion.errors import InputError
from apportion.mixture.result import Ratios
from apportion.mixture.runs import RunTable

Request = tuple[float, float, Ratios]

# Share that rounding alone may leave outside the hull.
_INSIDE = 1e-4
# A ratio this far (factor) outside its range relies on the power of p holding there.
_FAR_RATIO = 1.5


def extrapolation(runs: RunTable, requests: Sequence[Request]) -> pd.DataFrame:
    """Distance of every request from the runs.

    Args:
        runs: what the law was or will be fitted to.
        requests: (N, D, ratios) each; ratios by name or in table order.

    Returns:
        One row a request: `params`, `tokens`, `mixture`; `params_factor` and `tokens_factor` (1
        inside the range of the runs, above 1 that many times the largest, below 1 that part of the
        smallest); `hull_distance` (least share that must move to reach a blend of fitted mixtures),
        `nearest_run` and `nearest_distance` (share that must move to reach its mixture),
        `outside_ratios` (families whose ratio is outside its range) and `words`.

    Raises:
        InputError: ratios that do not fit the table, or sizes that are not positive.
    """
    rows: list[dict[str, Any]] = []
    for params, tokens, ratios in requests:
        shares = _shares(runs, ratios)
        params, tokens = parse_params(params), parse_tokens(tokens)
        gaps = 0.5 * np.abs(runs.ratios - shares).sum(axis=1)
        outside = {
            family: factor
            for family, share, seen in zip(runs.families, shares, runs.ratios.T, strict=True)
            if share > 0 and abs((factor := _factor(float(share), seen[seen > 0])) - 1) > 1e-3
        }
        row: dict[str, Any] = {
            "params": params,
            "tokens": tokens,
            "mixture": dict(zip(runs.families, shares.tolist(), strict=True)),
            "params_factor": _factor(params, runs.params),
            "tokens_factor": _factor(tokens, runs.tokens),
            "hull_distance": hull_distance(shares, runs.ratios),
            "nearest_run": runs.run[int(gaps.argmin())],
            "nearest_distance": float(gaps.min()),
            "outside_ratios": outside,
        }
        rows.append(row | {"words": _words(row, runs)})
    return pd.DataFrame(rows)


def hull_distance(
    shares: Float[np.ndarray, " families"], ratios: Float[np.ndarray, "runs families"]
) -> float:
    """Least share that must move to turn `shares` into a blend of the given mixtures.

    A linear programme: weights w >= 0 that sum to 1, least half sum of |shares - w @ ratios|.
    """
    mixtures = np.unique(np.round(ratios, 9), axis=0)
    count, families = mixtures.shape
    slack = np.eye(families)
    equal = np.block(
        [
            [mixtures.T, slack, -slack],
            [np.ones((1, count)), np.zeros((1, 2 * families))],
        ]
    )
    cost = np.r_[np.zeros(count), np.full(2 * families, 0.5)]
    found = linprog(cost, A_eq=equal, b_eq=np.r_[shares, 1.0], method="highs")
    return max(0.0, float(found.fun))


def _factor(value: float, seen: np.ndarray) -> float:
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (np.inf, 0.0)
    if value > high * (1 + 1e-9):
        return value / high if high > 0 else float("inf")
    return value / low if value < low * (1 - 1e-9) else 1.0


def _shares(runs: RunTable, ratios: Ratios) -> np.ndarray:
    if isinstance(ratios, Mapping):
        shares = np.zeros(len(runs.families))
        for family, share in ratios.items():
            shares[runs.family_index(family)] = share
    else:
        shares = np.asarray(ratios, dtype=float)
    wrong = shares.shape != (len(runs.families),) or not np.isfinite(shares).all()
    if wrong or (shares < 0).any() or abs(float(shares.sum()) - 1) > 1e-3:
        raise InputError(
            f"expected {len(runs.families)} ratios >= 0 that sum to 1 in a request "
            f"({', '.join(runs.families)}), got {ratios!r}"
        )
    return shares / shares.sum()


def _words(row: Mapping[str, Any], runs: RunTable) -> str:
    name = f"N = {format_count(row['params'])}, D = {format_count(row['tokens'])}"
    parts = [
        _size_words("N", row["params_factor"], runs.params),
        _size_words("D", row["tokens_factor"], runs.tokens),
    ]
    if row["hull_distance"] > _INSIDE:
        parts.append(
            f"the mixture is outside what blends of fitted mixtures reach: "
            f"{row['hull_distance']:.1%} of the share would have to move (nearest run "
            f"{row['nearest_run']}: {row['nearest_distance']:.1%})"
        )
    else:
        parts.append(
            f"the mixture is among those fitted (nearest run {row['nearest_run']}: "
            f"{row['nearest_distance']:.1%} of the share apart)"
        )
    far = [f for f, x in row["outside_ratios"].items() if max(x, 1 / x) > _FAR_RATIO]
    if far:
        parts.append(f"the ratio of {', '.join(far)} is far outside its range")
    return f"{name}: {'; '.join(parts)}"


def _size_words(label: str, factor: float, seen: np.ndarray) -> str:
    if factor == 1.0:
        return f"{label} is within the runs"
    if factor > 1.0:
        return f"{label} is {factor:.3g} times the largest fitted ({format_count(seen.max())})"
    return f"{label} is {factor:.3g} of the smallest fitted ({format_count(seen.min())})"
