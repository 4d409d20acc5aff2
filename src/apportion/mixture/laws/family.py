"""The multilingual law of He et al.: a family's loss depends on its own sampling ratio only."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float

from apportion.mixture.laws.base import (
    LOG_ZERO,
    PARAMS_UNIT,
    TOKENS_UNIT,
    Conditions,
    Need,
    Parameter,
    SeparableLaw,
    log_amplitude,
    log_sum_exp,
)


class Family(SeparableLaw):
    """L_i(N, D, p_i) = (E_i + A_i / N^alpha_i + B_i / D^beta_i) * p_i^(-gamma_i).

    He et al., "Scaling Laws for Multilingual Language Models", ACL 2025, arXiv 2410.12883. N are
    non-embedding parameters in millions, D training tokens in billions, p_i the family's own
    sampling ratio. Diverges at p_i = 0, so runs without the family say nothing about it.
    """

    name: ClassVar[str] = "family"
    formula: ClassVar[str] = "(E + A / N^alpha + B / D^beta) * p^(-gamma)"
    paper: ClassVar[str] = "He et al., ACL 2025, arXiv 2410.12883"
    needs: ClassVar[frozenset[Need]] = frozenset({"params", "tokens", "ratio"})

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        return (
            Parameter("E", "irreducible loss at p = 1, nats per token", "amplitude", LOG_ZERO, 5.0),
            Parameter("A", "loss from finite N, at N = 1e6", "amplitude", LOG_ZERO, 20.0),
            Parameter("B", "loss from finite D, at D = 1e9", "amplitude", LOG_ZERO, 20.0),
            Parameter("alpha", "exponent of N", "exponent", 0.0, 4.0),
            Parameter("beta", "exponent of D", "exponent", 0.0, 4.0),
            Parameter("gamma", "exponent of the family's own ratio", "exponent", -1.0, 3.0),
        )

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self._parts(theta, at)[0]

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        value, shares, log_n, log_d, log_p = self._parts(theta, at)
        out = np.empty((*value.shape, 6))
        out[..., :3] = shares
        out[..., 3] = -shares[..., 1] * log_n
        out[..., 4] = -shares[..., 2] * log_d
        out[..., 5] = -log_p
        return value, out

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        shape = np.broadcast_shapes((*theta.shape[:-1], 1, 1), at.ratios.shape)
        out = np.zeros(shape)
        out[..., 0] = -theta[..., 5:6] / at.own
        return out

    def usable(self, at: Conditions) -> Bool[np.ndarray, "*batch runs"]:
        return at.own > 0

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        level = float(log_loss.mean())
        return np.array([[level - 1.0, level - 1.0, level - 1.0, 0.3, 0.3, 0.1]])

    def exponent_grid(self) -> Float[np.ndarray, "points exponents"]:
        scale = np.array([0.03, 0.08, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5])
        share = np.array([-0.02, 0.02, 0.06, 0.1, 0.15, 0.22, 0.35, 0.6])
        mesh = np.meshgrid(scale, scale, share, indexing="ij")
        return np.stack([axis.ravel() for axis in mesh], axis=-1)

    def basis(
        self, exponents: Float[np.ndarray, "*batch exponents"], at: Conditions
    ) -> Float[np.ndarray, "*out runs terms"]:
        log_n, log_d, log_p = _logs(at)
        share = np.exp(-exponents[..., 2:3] * log_p)
        by_n = share * np.exp(-exponents[..., 0:1] * log_n)
        by_d = share * np.exp(-exponents[..., 1:2] * log_d)
        return np.stack(np.broadcast_arrays(share, by_n, by_d), axis=-1)

    def assemble(
        self,
        exponents: Float[np.ndarray, "*batch exponents"],
        amplitudes: Float[np.ndarray, "*batch terms"],
    ) -> Float[np.ndarray, "*batch q"]:
        return np.concatenate([log_amplitude(amplitudes), exponents], axis=-1)

    def _parts(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        log_n, log_d, log_p = _logs(at)
        log_e, log_a, log_b, alpha, beta, gamma = (theta[..., k : k + 1] for k in range(6))
        terms = np.broadcast_arrays(log_e, log_a - alpha * log_n, log_b - beta * log_d)
        level, shares = log_sum_exp(np.stack(terms, axis=-1))
        return level - gamma * log_p, shares, log_n, log_d, log_p


def _logs(at: Conditions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # A zero ratio is masked out by `usable`; one stands in so that no infinity meets a zero weight.
    own = np.where(at.own > 0, at.own, 1.0)
    return np.log(at.params / PARAMS_UNIT), np.log(at.tokens / TOKENS_UNIT), np.log(own)
