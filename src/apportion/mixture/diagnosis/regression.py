"""Least squares that asks for contrasts: nuisance columns out, few clusters taken seriously.

Run tables are small and unbalanced, and what a mixture does beyond the model comes back in every
run with that mixture. So standard errors are cluster-robust with the bias reduction CR2, and every
contrast gets its own degrees of freedom (Bell and McCaffrey, Survey Methodology 28, 2002). With
independent, equal noise both are right on average even for a handful of clusters. Refused: plain
sandwich errors, which reject a true hypothesis far too often here, and permutation, which needs an
exchangeable design.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import t as student

# A column that its nuisance explains to this part of its length counts as explained.
_RANK_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Contrasts:
    """Estimates of linear combinations of coefficients.

    Attributes:
        estimate, error, freedom, p: per contrast; NaN where the design does not identify it.
        design: standard error per unit of independent noise, a property of the design alone.
        residual: what model and nuisance leave of y.
        sigma: standard deviation of the residual, for its degrees of freedom.
        residual_freedom: runs minus everything that was fitted.
        explained: variance that the columns explain beyond the nuisance, less what noise alone
            would explain; may fall below 0.
    """

    estimate: Float[np.ndarray, " contrasts"]
    error: Float[np.ndarray, " contrasts"]
    freedom: Float[np.ndarray, " contrasts"]
    p: Float[np.ndarray, " contrasts"]
    design: Float[np.ndarray, " contrasts"]
    residual: Float[np.ndarray, " runs"]
    sigma: float
    residual_freedom: int
    explained: float

    def half_width(self, alpha: float) -> Float[np.ndarray, " contrasts"]:
        """Half the interval of coverage 1 - alpha."""
        return self.error * student.ppf(1.0 - alpha / 2.0, self.freedom)


def span(columns: Float[np.ndarray, "runs columns"]) -> Float[np.ndarray, "runs rank"]:
    """Orthonormal basis of what the columns span; dependent columns are dropped."""
    length = np.linalg.norm(columns, axis=0)
    kept = columns[:, length > 0] / length[length > 0]
    left, singular, _ = np.linalg.svd(kept, full_matrices=False)
    return left[:, singular > _RANK_TOLERANCE * max(1.0, float(singular.max(initial=0.0)))]


def contrasts(
    y: Float[np.ndarray, " runs"],
    nuisance: Float[np.ndarray, "runs _"],
    columns: Float[np.ndarray, "runs columns"],
    lines: Float[np.ndarray, "contrasts columns"],
    clusters: Int[np.ndarray, " runs"],
) -> Contrasts:
    """Regress y on nuisance and columns, and estimate `lines @ coefficients of the columns`.

    Args:
        y: observations.
        nuisance: columns to hold fixed; may be dependent.
        columns: the regressors of interest.
        lines: one contrast a row.
        clusters: runs whose errors may depend on each other.
    """
    basis = span(nuisance)
    left = columns - basis @ (basis.T @ columns)
    rest = y - basis @ (basis.T @ y)
    u, singular, vt = np.linalg.svd(left, full_matrices=False)
    keep = singular > 1e-5 * max(float(np.linalg.norm(columns)), 1e-300)
    u, singular, vt = u[:, keep], singular[keep], vt[keep]
    scores = u.T @ rest
    residual = rest - u @ scores
    freedom = len(y) - basis.shape[1] - len(singular)
    sigma = float(np.sqrt((residual @ residual) / freedom)) if freedom > 0 else float("nan")
    explained = float(scores @ scores - len(singular) * sigma**2) / len(y)
    identified = np.linalg.norm(lines - lines @ vt.T @ vt, axis=1) < 1e-6 * (
        np.linalg.norm(lines, axis=1) + 1e-300
    )
    identified &= freedom > 0
    weights = (lines @ vt.T / singular) @ u.T  # contrasts × runs: estimate = weights @ y
    hat = np.hstack([basis, u])
    error, effective = _cluster_robust(weights, hat, residual, clusters)
    estimate = weights @ rest
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2.0 * student.sf(np.abs(estimate) / error, effective)
    blank = np.where(identified, 0.0, np.nan)
    return Contrasts(
        estimate + blank,
        error + blank,
        effective + blank,
        p + blank,
        np.linalg.norm(weights, axis=1) + blank,
        residual,
        sigma,
        freedom,
        explained,
    )


def _cluster_robust(
    weights: np.ndarray, hat: np.ndarray, residual: np.ndarray, clusters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """CR2 standard errors and Bell–McCaffrey degrees of freedom of every contrast."""
    names = np.unique(clusters)
    count = len(weights)
    scores = np.empty((count, len(names)))
    sizes = np.empty((count, len(names)))
    pulls = np.empty((count, len(names), hat.shape[1]))
    for g, name in enumerate(names):
        rows = np.flatnonzero(clusters == name)
        own = hat[rows]
        values, vectors = np.linalg.eigh(np.eye(len(rows)) - own @ own.T)
        # A direction that the fit absorbs whole has no residual to learn from.
        root = np.where(values > 1e-8, 1.0 / np.sqrt(np.maximum(values, 1e-8)), 0.0)
        adjusted = weights[:, rows] @ (vectors * root) @ vectors.T
        scores[:, g] = adjusted @ residual[rows]
        sizes[:, g] = (adjusted**2).sum(axis=1)
        pulls[:, g] = adjusted @ own
    error = np.sqrt((scores**2).sum(axis=1))
    effective = np.empty(count)
    for k in range(count):
        product = np.diag(sizes[k]) - pulls[k] @ pulls[k].T
        square = float((product**2).sum())
        effective[k] = np.trace(product) ** 2 / square if square > 0 else 1.0
    return error, np.maximum(effective, 1.0)


def holm(p: Float[np.ndarray, " tests"]) -> Float[np.ndarray, " tests"]:
    """p-values corrected for their number (Holm 1979); NaN stays NaN and does not count."""
    out = np.full(len(p), np.nan)
    valid = np.flatnonzero(np.isfinite(p))
    order = valid[np.argsort(p[valid])]
    steps = (len(order) - np.arange(len(order))) * p[order]
    out[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return out
