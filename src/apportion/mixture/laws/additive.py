"""The additive law of Shukor et al.: every family's ratio enters, apart from N and D.

Refused: their joint form, in which A and B depend on the mixture too: it adds more parameters per
family than sweeps of ordinary size determine. Refused as well: negative gamma, under which training
without a family would give an infinite benefit.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apportion.mixture.laws.base import (
    LOG_ZERO,
    RATIO_FLOOR,
    Conditions,
    Law,
    Need,
    Parameter,
    best_amplitudes,
    grid_points,
    log_amplitude,
    log_sum_exp,
    starting_values,
)
from apportion.mixture.laws.powers import ALPHA, BETA, A, B, E, size_terms

# Stands for log 0; far below every finite term, yet safe to subtract and to multiply by 0.
_NOTHING = -1e4
_STARTS = 16


class Additive(Law):
    """L_i(N, D, h) = E_i + 1 / (sum_j C_ij h_j^gamma_ij) + A_i / N^alpha_i + B_i / D^beta_i.

    Shukor et al., "Scaling Laws for Optimal Data Mixtures", arXiv 2507.09404. N are parameters in
    millions, D training tokens in billions, h_j the ratio of family j (0 is the target itself).
    E, A, B >= 0 in nats per token; C_j >= 0 in tokens per nat, so that 1 / C_j is the mixture's
    part of the loss at h_j = 1; alpha, beta, gamma_j in [0, 4].

    A family with h_j = 0 contributes nothing to the sum, whatever its gamma. There the slope by h_j
    is infinite for gamma_j < 1; the slope at h_j = 1e-8 is reported. The best mixture does not
    depend on N or D.
    """

    name = "additive"
    formula = "E + 1 / (sum_j C_j h_j^gamma_j) + A / N^alpha + B / D^beta"
    paper = "Shukor et al., arXiv 2507.09404"
    needs: frozenset[Need] = frozenset({"params", "tokens", "ratio", "others"})

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        whose = ["the family itself", *(f"other family {j}" for j in range(1, families))]
        weights = (
            Parameter(f"C_{j}", f"benefit of {who}, tokens per nat", "amplitude", LOG_ZERO, 20.0)
            for j, who in enumerate(whose)
        )
        return (E, A, B, ALPHA, BETA, *weights, *self._exponents(whose))

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self._parts(theta, at)[0]

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        value, shares, benefit, log_h, _ = self._parts(theta, at)
        families = at.ratios.shape[-1]
        out = np.empty((*value.shape, theta.shape[-1]))
        out[..., :3] = shares[..., :3]
        out[..., 3] = -shares[..., 1] * at.log_params
        out[..., 4] = -shares[..., 2] * at.log_tokens
        out[..., 5 : 5 + families] = -shares[..., 3:] * benefit
        out[..., 5 + families :] = self._collect(out[..., 5 : 5 + families] * log_h)
        return value, out

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        _, shares, _, _, log_total = self._parts(theta, at)
        log_c, gamma = _mixture(theta, at)
        floored = np.log(np.maximum(at.ratios, RATIO_FLOOR))
        slope = gamma * np.exp(log_c + (gamma - 1.0) * floored - log_total[..., None])
        return -shares[..., 3:] * slope

    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        shares = self._parts(theta, at)[1]
        return -shares[..., 1:3] * theta[..., None, 3:5]

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        """N and D first, blind to the mixture; then the benefits from what is left of the loss."""
        families = at.ratios.shape[-1]
        steps = (0.15, 0.35, 0.7)
        exponents = grid_points(
            *(starting_values(x, steps) for x in (at.log_params, at.log_tokens))
        )
        by_n = np.exp(-exponents[:, :1] * at.log_params)
        by_d = np.exp(-exponents[:, 1:] * at.log_tokens)
        basis = np.stack(np.broadcast_arrays(np.ones_like(by_n), by_n, by_d), axis=-1)
        amplitudes, _ = best_amplitudes(basis, log_loss)
        found: list[np.ndarray] = []
        for (_, a, b), x, (alpha, beta) in zip(amplitudes, basis, exponents, strict=True):
            rest = np.exp(log_loss) - a * x[:, 1] - b * x[:, 2]
            rest = np.maximum(rest, 0.05 * np.exp(log_loss))
            for kept, gamma in grid_points((0.1, 0.5, 0.9), (0.15, 0.4, 0.9)):
                # E takes a part of the least remainder; 1 / (what is left) is linear in C.
                e = kept * rest.min()
                benefit = np.where(at.ratios > 0, at.ratios, 0.0) ** gamma
                c, _ = best_amplitudes(benefit[None], -np.log(rest - e))
                size = log_amplitude(np.array([e, a, b]))
                shape = np.full(len(self.parameters(families)) - 5 - families, gamma)
                found.append(np.r_[size, alpha, beta, log_amplitude(c[0]), shape])
        theta = np.array(found)
        error = ((self.log_loss(theta, at) - log_loss) ** 2).sum(axis=-1)
        return theta[np.argsort(error, kind="stable")[:_STARTS]]

    def _exponents(self, whose: list[str]) -> tuple[Parameter, ...]:
        """The exponents of the ratios, which stand last in `theta`."""
        return tuple(
            Parameter(f"gamma_{j}", f"exponent of the ratio of {who}", "exponent", 0.0, 4.0)
            for j, who in enumerate(whose)
        )

    def _collect(self, by_family: np.ndarray) -> np.ndarray:
        """Derivatives by the exponents, from the derivatives by every family's exponent."""
        return by_family

    def _parts(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Log loss, shares of the four terms, shares of the families in the sum, log h, log sum."""
        log_c, gamma = _mixture(theta, at)
        present = at.ratios > 0
        log_h = np.log(np.where(present, at.ratios, 1.0))
        log_total, benefit = log_sum_exp(np.where(present, log_c + gamma * log_h, _NOTHING))
        size = size_terms(theta, at, at.log_tokens)
        mixture = np.broadcast_to(-log_total, size.shape[:-1])[..., None]
        value, shares = log_sum_exp(np.concatenate([size, mixture], axis=-1))
        return value, shares, benefit, log_h, log_total


class AdditivePooled(Additive):
    """L_i(N, D, h) = E_i + 1 / (sum_j C_ij h_j^gamma_i) + A_i / N^alpha_i + B_i / D^beta_i.

    The additive law (Shukor et al., arXiv 2507.09404) with one gamma_i for the ratios of all
    families: for F families F - 1 numbers fewer per target, which small sweeps could hardly tell
    apart. Symbols, units, bounds and zero ratios as in `Additive`.
    """

    name = "additive-pooled"
    formula = "E + 1 / (sum_j C_j h_j^gamma) + A / N^alpha + B / D^beta"

    def _exponents(self, whose: list[str]) -> tuple[Parameter, ...]:
        return (Parameter("gamma", "exponent of all ratios", "exponent", 0.0, 4.0),)

    def _collect(self, by_family: np.ndarray) -> np.ndarray:
        return by_family.sum(axis=-1, keepdims=True)


def _mixture(theta: np.ndarray, at: Conditions) -> tuple[np.ndarray, np.ndarray]:
    families = at.ratios.shape[-1]
    return theta[..., None, 5 : 5 + families], theta[..., None, 5 + families :]
