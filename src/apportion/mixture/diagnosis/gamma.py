"""Is gamma constant? The slope of the log loss in the log of the own ratio, per (N, D).

Within one (N, D) the family law says log L = constant - gamma log p, whatever its other parameters.
So gamma per cell is a regression that needs no fit of the law, and "constant" is an F test of one
slope against one per cell, exact for normal noise. Noise is pooled over cells, for cells are small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import f as fisher
from scipy.stats import t as student

from apportion.mixture.diagnosis.crosseffect import dummies
from apportion.mixture.diagnosis.regression import holm, span
from apportion.mixture.runs import RunTable

# Below this a tenfold share lowers the loss by less than 2.5 %: the ratio hardly matters.
COLLAPSED = 0.01


@dataclass(frozen=True)
class GammaReport:
    """Gamma per cell and the tests of its constancy.

    Attributes:
        cells: columns `family`, `params`, `tokens`, `runs`, `gamma`, `low`, `high`.
        tests: one row a family: `gamma` (common slope), `low`, `high`, `cells`, `p_constant`
            (F test of one slope against one per cell), `per_log_params` and `per_log_tokens`
            (change of gamma for a factor e), `p_params`, `p_tokens`, `p_curved` (is log L curved in
            log p?), and `…_holm`: Holm's correction over families, for the first three p together.
    """

    cells: pd.DataFrame
    tests: pd.DataFrame


def gamma_report(runs: RunTable, alpha: float) -> GammaReport:
    """Gamma of every family per (N, D), with intervals of coverage 1 - alpha.

    Cells with fewer than three different own ratios above 0 have too little to say and are left
    out.
    """
    rows: list[dict[str, object]] = []
    tests: list[dict[str, object]] = []
    for k, target in enumerate(runs.targets):
        view = _Slopes.of(runs, k)
        tests.append({"family": target, **(_NOTHING if view is None else view.tests(alpha))})
        if view is not None:
            rows += [{"family": target, **row} for row in view.cells(alpha)]
    names = ["family", "params", "tokens", "runs", "gamma", "low", "high"]
    frame = pd.DataFrame(tests)
    drifts = ["p_constant", "p_params", "p_tokens"]
    corrected = holm(frame[drifts].to_numpy(dtype=float).ravel()).reshape(-1, len(drifts))
    for place, name in enumerate(drifts):
        frame[f"{name}_holm"] = corrected[:, place]
    frame["p_curved_holm"] = holm(frame["p_curved"].to_numpy(dtype=float))
    return GammaReport(pd.DataFrame(rows, columns=names), frame)


_NOTHING: dict[str, float] = {
    "gamma": np.nan,
    "low": np.nan,
    "high": np.nan,
    "cells": 0,
    "p_constant": np.nan,
    "per_log_params": np.nan,
    "p_params": np.nan,
    "per_log_tokens": np.nan,
    "p_tokens": np.nan,
    "p_curved": np.nan,
}


@dataclass(frozen=True)
class _Slopes:
    """Log losses and log ratios of one target, centred within their cells."""

    y: np.ndarray
    x: np.ndarray
    cell: np.ndarray  # 0 … cells - 1
    params: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, runs: RunTable, k: int) -> _Slopes | None:
        own = runs.ratios[:, runs.family_index(runs.targets[k])]
        cells = runs.cells()
        good = [
            c
            for c in np.unique(cells)
            if len(np.unique(own[(cells == c) & (own > 0)].round(6))) > 2
        ]
        rows = np.flatnonzero(np.isin(cells, good) & (own > 0))
        if not len(rows):
            return None
        _, cell = np.unique(cells[rows], return_inverse=True)
        cell = cell.reshape(-1)
        indicator = dummies(cell)
        average = indicator @ np.diag(1.0 / indicator.sum(axis=0)) @ indicator.T
        y, x = np.log(runs.losses[rows, k]), np.log(own[rows])
        return cls(y - average @ y, x - average @ x, cell, runs.params[rows], runs.tokens[rows])

    @property
    def count(self) -> int:
        return int(self.cell.max()) + 1

    def cells(self, alpha: float) -> list[dict[str, object]]:
        indicator = dummies(self.cell)
        power = indicator.T @ self.x**2
        slope = (indicator.T @ (self.x * self.y)) / power
        residual = self.y - self.x * slope[self.cell]
        freedom = len(self.y) - 2 * self.count
        sigma = np.sqrt(residual @ residual / freedom)
        half = sigma / np.sqrt(power) * student.ppf(1 - alpha / 2, freedom)
        first = [int(np.flatnonzero(self.cell == c)[0]) for c in range(self.count)]
        return [
            {
                "params": float(self.params[row]),
                "tokens": float(self.tokens[row]),
                "runs": int(indicator[:, c].sum()),
                "gamma": -float(slope[c]),
                "low": -float(slope[c] + half[c]),
                "high": -float(slope[c] - half[c]),
            }
            for c, row in enumerate(first)
        ]

    def tests(self, alpha: float) -> dict[str, float]:
        common = self.x[:, None]
        estimate, error, freedom = self.regress(common, 0)
        half = error * float(student.ppf(1 - alpha / 2, freedom))
        out = _NOTHING | {
            "gamma": -estimate,
            "low": -estimate - half,
            "high": -estimate + half,
            "cells": self.count,
            "p_constant": self.compare(common, dummies(self.cell) * common),
            "p_curved": self.compare(common, np.hstack([common, self.centred(self.x**2)])),
        }
        # Both sizes in one regression, where both vary: then neither takes the other's part.
        sizes = {"params": np.log(self.params), "tokens": np.log(self.tokens)}
        varying = {name: v - v.mean() for name, v in sizes.items() if np.ptp(v) > 0}
        drift = np.hstack([common, *(common * v[:, None] for v in varying.values())])
        for place, name in enumerate(varying, 1):
            slope, error, freedom = self.regress(drift, place)
            out[f"per_log_{name}"] = -slope
            if np.isfinite(error) and error > 0:
                out[f"p_{name}"] = float(2 * student.sf(abs(slope) / error, freedom))
        return out

    def centred(self, values: np.ndarray) -> np.ndarray:
        indicator = dummies(self.cell)
        return (values - (indicator @ ((indicator.T @ values) / indicator.sum(axis=0))))[:, None]

    def regress(self, columns: np.ndarray, place: int) -> tuple[float, float, int]:
        """One coefficient, its standard error and degrees of freedom; NaN if not identified."""
        freedom = len(self.y) - self.count - span(columns).shape[1]
        others = span(np.delete(columns, place, axis=1))
        left = columns[:, place] - others @ (others.T @ columns[:, place])
        if freedom < 1 or left @ left < 1e-12 * (columns[:, place] @ columns[:, place]):
            return float("nan"), float("nan"), max(freedom, 1)
        basis = span(columns)
        residual = self.y - basis @ (basis.T @ self.y)
        estimate = float(left @ self.y / (left @ left))
        return estimate, float(np.sqrt(residual @ residual / freedom / (left @ left))), freedom

    def compare(self, small: np.ndarray, large: np.ndarray) -> float:
        """p of the F test of the larger model against the smaller."""
        bases = [span(small), span(np.hstack([small, large]))]
        squares = [float(((self.y - b @ (b.T @ self.y)) ** 2).sum()) for b in bases]
        extra = bases[1].shape[1] - bases[0].shape[1]
        freedom = len(self.y) - self.count - bases[1].shape[1]
        if extra < 1 or freedom < 1:
            return float("nan")
        return float(
            fisher.sf((squares[0] - squares[1]) / extra / (squares[1] / freedom), extra, freedom)
        )
