"""The data mixing law of Ye et al.: an exponential of all ratios, at one N and one D.

Published as c + k exp(sum_j t_j r_j). Ratios sum to 1, so adding a constant to every t_j and
dividing k by its exponential changes no prediction; k = 1 is fixed here and the t_j absorb log k.
Then exp(t_j) is the reducible loss of a run on family j alone. Refused: leaving out one family's t
to make k unique, which would make the numbers depend on the order of families.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apportion.mixture.laws.base import (
    LOG_ZERO,
    Conditions,
    Law,
    Need,
    Parameter,
    log_amplitude,
    log_sum_exp,
)

# Fractions of the least loss that starting points try as c.
_LEVELS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985, 0.995)
_T_BOUNDS = (-30.0, 20.0)


class Mixing(Law):
    """L_i(r) = c_i + exp(sum_j t_ij r_j), at one N and one D; every t_ij may have either sign.

    Ye et al., "Data Mixing Laws: Optimizing Data Mixtures by Predicting Language Modeling
    Performance", ICLR 2025, arXiv 2403.16952, with their k_i absorbed into the t_ij. r_j is the
    ratio of family j (0 is the target itself). c >= 0 in nats per token, t_j in [-30, 20]. Zero
    ratios are ordinary. The form has no term in N or D: runs of several sizes do not belong in one
    fit.
    """

    name = "mixing"
    formula = "c + exp(sum_j t_j r_j)"
    paper = "Ye et al., ICLR 2025, arXiv 2403.16952"
    needs: frozenset[Need] = frozenset({"ratio", "others"})
    fixed: frozenset[Need] = frozenset({"params", "tokens"})

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        whose = ["the family itself", *(f"other family {j}" for j in range(1, families))]
        slopes = (
            Parameter(f"t_{j}", f"log reducible loss on {who} alone", "coefficient", *_T_BOUNDS)
            for j, who in enumerate(whose)
        )
        c = Parameter("c", "irreducible loss, nats per token", "amplitude", LOG_ZERO, 5.0)
        return (c, *slopes)

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self._parts(theta, at)[0]

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        value, shares = self._parts(theta, at)
        out = np.empty((*value.shape, theta.shape[-1]))
        out[..., 0] = shares[..., 0]
        out[..., 1:] = shares[..., 1:] * at.ratios
        return value, out

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        return self._parts(theta, at)[1][..., 1:] * theta[..., None, 1:]

    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        return np.zeros((*np.broadcast_shapes((*theta.shape[:-1], 1), at.shape), 2))

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        """For a given c, log(L - c) is linear in the ratios."""
        loss = np.exp(log_loss)
        found: list[np.ndarray] = []
        for level in _LEVELS:
            c = level * loss.min()
            weight = 1.0 - c / loss  # d log L / d log(L - c)
            t, *_ = np.linalg.lstsq(
                at.ratios * weight[:, None], np.log(loss - c) * weight, rcond=None
            )
            found.append(np.r_[log_amplitude(np.array([c])), np.clip(t, *_T_BOUNDS)])
        theta = np.array(found)
        error = ((self.log_loss(theta, at) - log_loss) ** 2).sum(axis=-1)
        return theta[np.argsort(error, kind="stable")]

    def _parts(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[np.ndarray, np.ndarray]:
        power = (at.ratios @ theta[..., 1:, None])[..., 0]
        shape = np.broadcast_shapes(power.shape, at.shape)
        terms = [np.broadcast_to(term, shape) for term in (theta[..., :1], power)]
        return log_sum_exp(np.stack(terms, axis=-1))
