"""Laws that are plain sums of powers: all their arithmetic, so that such a law is only a table.

Everything happens on logarithms (log-sum-exp), so no exponent inside its bounds can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from apportion.mixture.laws.base import (
    LOG_ZERO,
    Conditions,
    Parameter,
    SeparableLaw,
    grid_points,
    log_amplitude,
    log_sum_exp,
)

E = Parameter("E", "irreducible loss, nats per token", "amplitude", LOG_ZERO, 5.0)
A = Parameter("A", "loss from finite N, at N = 1e6", "amplitude", LOG_ZERO, 20.0)
B = Parameter("B", "loss from finite D, at D = 1e9", "amplitude", LOG_ZERO, 20.0)
ALPHA = Parameter("alpha", "exponent of N", "exponent", 0.0, 4.0)
BETA = Parameter("beta", "exponent of D", "exponent", 0.0, 4.0)


@dataclass(frozen=True)
class Power:
    """One exponent of a `PowerLaw`: what it raises, and in which terms.

    Attributes:
        parameter: the fitted exponent.
        of: N, D or the own ratio.
        terms: indices of the terms divided by that power.
        grid: exponents that variable projection scans.
    """

    parameter: Parameter
    of: Literal["params", "tokens", "ratio"]
    terms: tuple[int, ...]
    grid: tuple[float, ...]


class PowerLaw(SeparableLaw):
    """A sum of amplitudes, each divided by powers of N, D and the own ratio.

    A subclass only states its `amplitudes` (one a term) and `powers`; the order of internal
    coordinates is amplitudes, then exponents. With a power of the ratio the law diverges at p = 0,
    so runs without the family are not usable.
    """

    amplitudes: tuple[Parameter, ...]
    powers: tuple[Power, ...]

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        return (*self.amplitudes, *(power.parameter for power in self.powers))

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self._parts(theta, at)[0]

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        value, shares = self._parts(theta, at)
        count = len(self.amplitudes)
        out = np.empty((*value.shape, count + len(self.powers)))
        out[..., :count] = shares
        for k, power in enumerate(self.powers, count):
            out[..., k] = -_share(shares, power) * _log_of(at, power)
        return value, out

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        value, shares = self._parts(theta, at)
        out = np.zeros((*value.shape, at.ratios.shape[-1]))
        out[..., 0] = self._slope(theta, shares, "ratio") / at.safe_own
        return out

    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        shares = self._parts(theta, at)[1]
        by_size = (self._slope(theta, shares, "params"), self._slope(theta, shares, "tokens"))
        return np.stack(by_size, axis=-1)

    def usable(self, at: Conditions) -> Bool[np.ndarray, "*batch runs"]:
        if any(power.of == "ratio" for power in self.powers):
            return at.own > 0
        return super().usable(at)

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        level = float(log_loss.mean()) - np.log(len(self.amplitudes))
        middle = [power.grid[len(power.grid) // 2] for power in self.powers]
        return np.array([[level] * len(self.amplitudes) + middle])

    def exponent_grid(self) -> Float[np.ndarray, "points exponents"]:
        return grid_points(*(power.grid for power in self.powers))

    def basis(
        self, exponents: Float[np.ndarray, "*batch exponents"], at: Conditions
    ) -> Float[np.ndarray, "*out runs terms"]:
        return np.exp(self._log_basis(exponents, at))

    def assemble(
        self,
        exponents: Float[np.ndarray, "*batch exponents"],
        amplitudes: Float[np.ndarray, "*batch terms"],
    ) -> Float[np.ndarray, "*batch q"]:
        return np.concatenate([log_amplitude(amplitudes), exponents], axis=-1)

    def _log_basis(self, exponents: np.ndarray, at: Conditions) -> np.ndarray:
        # Terms are stacked in front and moved behind: reductions over a few terms then run over
        # long rows of memory.
        shape = np.broadcast_shapes((*exponents.shape[:-1], 1), at.shape)
        terms = np.zeros((len(self.amplitudes), *shape))
        for k, power in enumerate(self.powers):
            step = exponents[..., k : k + 1] * _log_of(at, power)
            for term in power.terms:
                terms[term] -= step
        return np.moveaxis(terms, 0, -1)

    def _parts(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[np.ndarray, np.ndarray]:
        count = len(self.amplitudes)
        terms = self._log_basis(theta[..., count:], at)
        terms += theta[..., None, :count]
        return log_sum_exp(terms)

    def _slope(self, theta: np.ndarray, shares: np.ndarray, of: str) -> np.ndarray:
        """Derivative of the log loss by the logarithm of `of`."""
        out = np.zeros(shares.shape[:-1])
        for k, power in enumerate(self.powers, len(self.amplitudes)):
            if power.of == of:
                out -= theta[..., k : k + 1] * _share(shares, power)
        return out


def _log_of(at: Conditions, power: Power) -> np.ndarray:
    if power.of == "ratio":
        return at.log_own
    return at.log_params if power.of == "params" else at.log_tokens


def _share(shares: np.ndarray, power: Power) -> np.ndarray:
    first, *rest = power.terms
    total = shares[..., first]
    for term in rest:
        total = total + shares[..., term]
    return total


def size_terms(
    theta: Float[np.ndarray, "*batch q"],
    at: Conditions,
    log_tokens: Float[np.ndarray, "*#sizes runs"],
) -> Float[np.ndarray, "*out runs 3"]:
    """Logarithms of E, A / N^alpha and B / D^beta, which stand first in `theta` in the order
    E, A, B, alpha, beta; D is given by its logarithm (in billions)."""
    log_e, log_a, log_b, alpha, beta = (theta[..., k : k + 1] for k in range(5))
    terms = (log_e, log_a - alpha * at.log_params, log_b - beta * log_tokens)
    shape = np.broadcast_shapes(at.shape, *(term.shape for term in terms))
    return np.moveaxis(np.stack([np.broadcast_to(term, shape) for term in terms]), 0, -1)
