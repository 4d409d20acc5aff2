"""Effective-data laws: tokens of other families count too, each at a rate of exchange tau.

Two forms. `Transfer` counts every token as new and has no lambda, which unlimited data would leave
undetermined. `Atlas` is the published form, in which tokens that are repeated saturate at a fitted
rate; it needs the unique tokens of every family. Saturation at the published constants of another
study is `transfer+repetition`. Refused: one lambda that is present but idle without unique tokens,
and a common tau for "all other languages", which the split into families already takes care of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from apportion.errors import InputError
from apportion.mixture.laws.base import (
    Conditions,
    Law,
    Need,
    Parameter,
    best_amplitudes,
    effective_tokens,
    grid_points,
    log_amplitude,
    log_sum_exp,
    starting_values,
)
from apportion.mixture.laws.powers import ALPHA, BETA, A, B, E, size_terms

# Tokens that count for the family never fall below this part of D; see `Transfer`.
_EFFECTIVE_FLOOR = 1e-9
_STARTS = 16


class _Parts(NamedTuple):
    value: np.ndarray  # log loss
    shares: np.ndarray  # of the three terms
    effective: np.ndarray  # D_eff / D
    log_effective: np.ndarray  # log D_eff, in billions
    weight: np.ndarray  # d log loss / d (D_eff / D)
    amounts: np.ndarray  # tokens of each family that count, as parts of D
    slopes: np.ndarray  # their derivative by the ratio
    rates: np.ndarray  # worth of a token of each family; the own is 1


class Transfer(Law):
    """L_i = E_i + A_i / N^alpha_i + B_i / D_eff^beta_i, D_eff = D (p_i + sum_j tau_ij p_j).

    The form of Longpre et al., "ATLAS: Adaptive Transfer Scaling Laws for Multilingual Pretraining,
    Finetuning, and Decoding the Curse of Multilinguality", arXiv 2510.22037, without repetition. N
    are parameters in millions, D training tokens in billions, p_i the family's own ratio, p_j those
    of the others. E, A, B >= 0 in nats per token, alpha and beta in [0, 4], every tau in [0, 1]: a
    token of another family is worth at most one of its own.

    Runs without the family are usable, for other families may teach it. Where neither has any worth
    (p_i = 0 and tau_j = 0 for all families present), D_eff is held at 1e-9 D: the loss is large but
    finite, and the slopes point back.
    """

    name = "transfer"
    formula = "E + A / N^alpha + B / (D (p + sum_j tau_j p_j))^beta"
    paper = "Longpre et al., arXiv 2510.22037"
    needs: frozenset[Need] = frozenset({"params", "tokens", "ratio", "others"})
    # Numbers after the five of N and D and before the taus.
    _extra = 0

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        rates = (
            Parameter(f"tau_{j}", f"worth of a token of other family {j}", "coefficient", 0.0, 1.0)
            for j in range(1, families)
        )
        return (E, A, B, ALPHA, BETA, *rates)

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self._parts(theta, at).value

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        parts = self._parts(theta, at)
        out = np.empty((*parts.value.shape, theta.shape[-1]))
        out[..., :3] = parts.shares
        out[..., 3] = -parts.shares[..., 1] * at.log_params
        out[..., 4] = -parts.shares[..., 2] * parts.log_effective
        out[..., 5 + self._extra :] = parts.weight[..., None] * parts.amounts[..., 1:]
        self._extra_gradient(out, parts, at)
        return parts.value, out

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        parts = self._parts(theta, at)
        return parts.weight[..., None] * (parts.rates * parts.slopes)

    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        parts = self._parts(theta, at)
        counted = (parts.rates * parts.slopes * at.ratios).sum(axis=-1)
        # At its floor D_eff is proportional to D.
        counted = np.where(parts.effective > _EFFECTIVE_FLOOR, counted, _EFFECTIVE_FLOOR)
        by_params = -theta[..., 3:4] * parts.shares[..., 1]
        return np.stack([by_params, parts.weight * counted], axis=-1)

    def usable(self, at: Conditions) -> Bool[np.ndarray, "*batch runs"]:
        return at.ratios.max(axis=-1) > 0

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        """One tau for all other families at first; the amplitudes follow by least squares."""
        families = at.ratios.shape[-1]
        tau = (0.02, 0.08, 0.25, 0.6) if families > 1 else (0.0,)
        steps = (0.15, 0.35, 0.7)
        # beta also shapes the ratios' part, so it is scanned at a fixed D too.
        alpha = starting_values(at.log_params, steps)
        grid = grid_points(alpha, steps, tau, *self._extra_grid())
        theta = np.zeros((len(grid), 5 + self._extra + families - 1))
        theta[:, 3:5] = grid[:, :2]
        theta[:, 5 : 5 + self._extra] = grid[:, 3:]
        theta[:, 5 + self._extra :] = grid[:, 2:3]
        used = self.usable(at)
        # With E = A = B = 1 the terms are the basis.
        log_effective = self._parts(theta, at).log_effective
        basis = np.exp(size_terms(theta, at, log_effective))
        amplitudes, error = best_amplitudes(basis[:, used], log_loss[used])
        theta[:, :3] = log_amplitude(amplitudes)
        return theta[np.argsort(error, kind="stable")[:_STARTS]]

    def _extra_grid(self) -> tuple[tuple[float, ...], ...]:
        return ()

    def _extra_gradient(self, out: np.ndarray, parts: _Parts, at: Conditions) -> None:
        """Fill the columns of the extra numbers in `out`."""

    def _amounts(self, theta: np.ndarray, at: Conditions) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each family that count, as parts of D, and their slope by the ratio."""
        return at.ratios, np.ones(())

    def _parts(self, theta: np.ndarray, at: Conditions) -> _Parts:
        amounts, slopes = self._amounts(theta, at)
        own = np.ones((*theta.shape[:-1], 1, 1))
        rates = np.concatenate([own, theta[..., None, 5 + self._extra :]], axis=-1)
        effective = (amounts @ rates.swapaxes(-1, -2))[..., 0]
        effective = np.maximum(effective, _EFFECTIVE_FLOOR)
        log_effective = at.log_tokens + np.log(effective)
        value, shares = log_sum_exp(size_terms(theta, at, log_effective))
        weight = -shares[..., 2] * theta[..., 4:5] / effective
        return _Parts(value, shares, effective, log_effective, weight, amounts, slopes, rates)


class Atlas(Transfer):
    """L_i = E_i + A_i / N^alpha_i + B_i / D_eff^beta_i, D_eff = S(D_i) + sum_j tau_ij S(D_j).

    Longpre et al., "ATLAS: Adaptive Transfer Scaling Laws for Multilingual Pretraining, Finetuning,
    and Decoding the Curse of Multilinguality", arXiv 2510.22037. D_j = p_j D are the tokens of
    family j and U_j its unique tokens: S(D) = D up to U, then U (1 + (1 - exp(-lambda (D / U - 1)))
    / lambda), with one lambda in [e^-7, e^7] for all families. Other symbols, units and bounds as
    in `Transfer`; zero ratios as there.

    Needs the unique tokens of every family, and some runs that repeat some family.
    """

    name = "atlas"
    formula = "E + A / N^alpha + B / (S(p D) + sum_j tau_j S(p_j D))^beta"
    needs: frozenset[Need] = frozenset({"params", "tokens", "ratio", "others", "unique"})
    _extra = 1

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        rate = Parameter("lambda", "decay of the worth per repetition", "amplitude", -7.0, 7.0)
        plain = super().parameters(families)
        return (*plain[:5], rate, *plain[5:])

    def _extra_grid(self) -> tuple[tuple[float, ...], ...]:
        return ((-2.7, -0.7, 1.0),)

    def _extra_gradient(self, out: np.ndarray, parts: _Parts, at: Conditions) -> None:
        # dS / dlog(lambda) = (D - U) S'(D) - (S - U) beyond one epoch, 0 before.
        once = np.minimum(at.ratios, self._unique(at))
        by_rate = (at.ratios - once) * parts.slopes - (parts.amounts - once)
        out[..., 5] = parts.weight * (parts.rates * by_rate).sum(axis=-1)

    def _amounts(self, theta: np.ndarray, at: Conditions) -> tuple[np.ndarray, np.ndarray]:
        return effective_tokens(at.ratios, self._unique(at), np.exp(-theta[..., None, 5:6]))

    def _unique(self, at: Conditions) -> np.ndarray:
        """Unique tokens as parts of D."""
        if at.unique is None:
            raise InputError(
                f"expected the unique tokens of every family for the law {self.name!r}, got none; "
                "give unique tokens, or use the law 'transfer', which has no repetition"
            )
        return at.unique[..., None, :] / at.tokens[..., None]
