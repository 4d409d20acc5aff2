"""The law of Fernandes et al.: the own ratio decides how many of the N parameters serve a family.

Refused: c1 < 0, with which the effective number of parameters could vanish inside the simplex. So a
family gets at least its share of the parameters.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

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
)
from apportion.mixture.laws.powers import ALPHA

# Stands for the logarithm of the bonus where it is exactly zero.
_NOTHING = -1e4
_STARTS = 16


class Fernandes(Law):
    """L_i(N, p_i) = beta_i (f(p_i) N)^(-alpha_i) + Linf_i, f(p) = p + c1 p^c2 (1 - p)^c3, at one D.

    Fernandes et al., "Scaling Laws for Multilingual Neural Machine Translation", ICML 2023, arXiv
    2302.09650. N are parameters in millions, p_i the family's own ratio, f(p) the fraction of the
    parameters that works for it; f(1) = 1. beta, Linf >= 0 in nats per token, c1 in [0, e^5], c2,
    c3 and alpha in [0, 4].

    Diverges at p_i = 0, so runs without the family say nothing about it. At p_i = 1 the bonus is 0
    whatever c3 is; where its slope is infinite there (c3 < 1), the slope at 1 - 1e-8 is reported.
    The form has no term in D: runs of several D do not belong in one fit.
    """

    name = "fernandes"
    formula = "Linf + beta ((p + c1 p^c2 (1 - p)^c3) N)^(-alpha)"
    paper = "Fernandes et al., ICML 2023, arXiv 2302.09650"
    needs: frozenset[Need] = frozenset({"params", "ratio"})
    fixed: frozenset[Need] = frozenset({"tokens"})

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        return (
            Parameter("Linf", "irreducible loss, nats per token", "amplitude", LOG_ZERO, 5.0),
            Parameter("beta", "reducible loss at p = 1, N = 1e6", "amplitude", LOG_ZERO, 20.0),
            ALPHA,
            Parameter("c1", "size of the bonus over p", "amplitude", LOG_ZERO, 5.0),
            Parameter("c2", "exponent of p in the bonus", "exponent", 0.0, 4.0),
            Parameter("c3", "exponent of 1 - p in the bonus", "exponent", 0.0, 4.0),
        )

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self._parts(theta, at)[0]

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        value, shares, log_f, bonus = self._parts(theta, at)
        by_bonus = -shares[..., 1] * theta[..., 2:3] * bonus
        out = np.empty((*value.shape, 6))
        out[..., :2] = shares
        out[..., 2] = -shares[..., 1] * (log_f + at.log_params)
        out[..., 3] = by_bonus
        out[..., 4] = by_bonus * at.log_own
        out[..., 5] = by_bonus * _log_rest(at)
        return value, out

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        value, shares, log_f, _ = self._parts(theta, at)
        alpha, log_c1, c2, c3 = (theta[..., k : k + 1] for k in range(2, 6))
        log_p, log_q = at.log_own, np.log(np.maximum(1.0 - at.safe_own, RATIO_FLOOR))
        common = log_c1 - log_f
        rise = c2 * np.exp(common + (c2 - 1.0) * log_p + c3 * log_q)
        fall = c3 * np.exp(common + c2 * log_p + (c3 - 1.0) * log_q)
        by_p = np.exp(-log_f) + np.where(at.safe_own < 1.0, rise, 0.0) - fall
        out = np.zeros((*value.shape, at.ratios.shape[-1]))
        out[..., 0] = -alpha * shares[..., 1] * by_p
        return out

    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        by_n = -theta[..., 2:3] * self._parts(theta, at)[1][..., 1]
        return np.stack([by_n, np.zeros_like(by_n)], axis=-1)

    def usable(self, at: Conditions) -> Bool[np.ndarray, "*batch runs"]:
        return at.own > 0

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        used = self.usable(at)
        grid = grid_points((0.1, 0.2, 0.35, 0.6, 1.0), (-4.0, -1.0, 1.0), (0.4, 1.0), (0.5, 1.5))
        log_f, _ = _effective(grid[:, 1:], at)
        by_n = np.exp(-grid[:, :1] * (log_f + at.log_params))
        basis = np.stack([np.ones_like(by_n), by_n], axis=-1)
        amplitudes, error = best_amplitudes(basis[:, used], log_loss[used])
        best = np.argsort(error, kind="stable")[:_STARTS]
        return np.concatenate([log_amplitude(amplitudes[best]), grid[best]], axis=-1)

    def _parts(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Log loss, shares of Linf and the reducible part, log f, share of the bonus in f."""
        log_f, bonus = _effective(theta[..., 3:], at)
        reducible = theta[..., 1:2] - theta[..., 2:3] * (log_f + at.log_params)
        shape = np.broadcast_shapes(reducible.shape, at.shape)
        terms = [np.broadcast_to(term, shape) for term in (theta[..., :1], reducible)]
        value, shares = log_sum_exp(np.stack(terms, axis=-1))
        return value, shares, log_f, bonus


def _effective(bonus: np.ndarray, at: Conditions) -> tuple[np.ndarray, np.ndarray]:
    """log f and the share of the bonus in it, from log c1, c2, c3."""
    log_c1, c2, c3 = (bonus[..., k : k + 1] for k in range(3))
    extra = log_c1 + c2 * at.log_own + c3 * _log_rest(at)
    extra = np.where(at.safe_own < 1.0, extra, _NOTHING)
    log_f = np.logaddexp(at.log_own, extra)
    return log_f, np.exp(extra - log_f)


def _log_rest(at: Conditions) -> np.ndarray:
    rest = 1.0 - at.safe_own
    return np.log(np.where(rest > 0, rest, 1.0))
