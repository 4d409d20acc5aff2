"""Repetition after Muennighoff et al., put around any law that has a term in D.

Tokens of family j beyond its unique tokens U_j lose their worth with every epoch: D_j tokens count
as D'_j. A law that uses the ratios sees p'_j = D'_j / D, and D as it is: by hypothesis 1 the loss
of a family depends on its own share, whatever fills the rest, and repeats that teach nothing are
part of that rest. A law blind to the mixture, such as the published form, sees D' = sum_j D'_j.

Refused: D' with p'_j = D'_j / D' for laws of the ratios. Worthless repeats shrink D', so the share
of a scarce family would grow by repeating, and the optimum read a text dozens of times. Refused:
fitting rd and rn together with the law. They are identified by runs of many epochs only,
which mixture sweeps rarely hold, and fixed constants keep a separable law separable. Refused too: G
from the fitted law's own A, B, alpha, beta; family laws often leave A or B at zero, where G is zero
or infinite. With excess parameters, G comes from the published constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from apportion.errors import InputError
from apportion.mixture.laws.base import (
    Conditions,
    Law,
    Need,
    Parameter,
    SeparableLaw,
    effective_tokens,
)

# The published fit, for N in parameters and D in tokens: L = E + A / N'^alpha + B / D'^beta.
PUBLISHED_LOG_A = 6.255414
PUBLISHED_LOG_B = 7.3049974
PUBLISHED_LOG_E = 0.6254804
PUBLISHED_ALPHA = 0.3526596
PUBLISHED_BETA = 0.3526596
# How many repetitions (of tokens), or multiples (of parameters), until one more is worth 1/e.
RD = 15.387756
RN = 5.309743

_UNIQUE: frozenset[Need] = frozenset({"unique"})
_RATIOS: frozenset[Need] = frozenset({"ratio", "others"})


class Repetition(Law):
    """A law on the tokens that count: D'_j = min(D_j, U_j) + U_j rd (1 - exp(-R_j / rd)).

    Muennighoff et al., "Scaling Data-Constrained Language Models", NeurIPS 2023, arXiv 2305.16264.
    D_j = p_j D are the tokens of family j, U_j its unique tokens, R_j = max(D_j / U_j - 1, 0) its
    repetitions; rd is the number of repetitions after which one more is worth 1/e of new data. Laws
    that use the ratios (`needs` has `"ratio"` or `"others"`) see p'_j = D'_j / D in their place,
    with a sum below 1 where something is repeated, and the whole D. Laws that do not use them see
    D' = sum_j D'_j in place of D, as published.

    With `rn`, parameters in excess of what the unique data can use lose worth alike: N' = U_N +
    U_N rn (1 - exp(-R_N / rn)), R_N = max(N / U_N - 1, 0), U_N = min(N, (U_D G)^(beta / alpha) G),
    U_D = sum_j min(D_j, U_j), G = (alpha A / (beta B))^(1 / (alpha + beta)).

    Parameters, bounds and behaviour at zero ratios are those of the wrapped law. Families without
    a limit have infinite unique tokens; without any unique tokens nothing changes. At exactly one
    epoch U_D has a kink; its slope by further tokens, 0, is reported there. Use `with_repetition`
    to build one: it keeps separable laws separable.

    Attributes:
        inner: the wrapped law.
        rd: decay of the worth of repeated tokens, in repetitions.
        rn: decay of the worth of excess parameters; None leaves N as it is.
    """

    def __init__(self, inner: Law, rd: float = RD, rn: float | None = None) -> None:
        if "tokens" not in inner.needs or "unique" in inner.needs:
            problem = "has no term in D" if "tokens" not in inner.needs else "handles repetition"
            raise InputError(
                "expected a law with a term in D and none for repetition; "
                f"got {inner.name!r}, which {problem}; "
                f"use {inner.name!r} as it is, or for example 'family+repetition'"
            )
        if not rd > 0 or (rn is not None and not rn > 0):
            raise InputError(
                f"expected rd and rn above 0, got rd={rd!r}, rn={rn!r}; published: {RD}, {RN}"
            )
        self.inner = inner
        self.rd = float(rd)
        self.rn = None if rn is None else float(rn)
        changed = [] if self.rd == RD else [f"rd={self.rd!r}"]
        changed += [] if self.rn is None else [f"rn={self.rn!r}"]
        self.name = f"{inner.name}+repetition" + (f"({','.join(changed)})" if changed else "")
        seen = "p_j = D'_j / D" if self._by_ratio else "D = sum_j D'_j"
        self.formula = f"{inner.formula}, repeated tokens discounted: {seen}"
        self.paper = f"{inner.paper}; Muennighoff et al., NeurIPS 2023, arXiv 2305.16264"
        self.needs = inner.needs | _UNIQUE
        self.fixed = inner.fixed

    @property
    def _by_ratio(self) -> bool:
        """Whether the wrapped law uses the ratios, so that discounted shares replace them."""
        return bool(self.inner.needs & _RATIOS)

    def parameters(self, families: int) -> tuple[Parameter, ...]:
        return self.inner.parameters(families)

    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        return self.inner.log_loss(theta, self.counted(at))

    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        return self.inner.gradient(theta, self.counted(at))

    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        if at.unique is None:
            return self.inner.ratio_gradient(theta, at)
        return self._slopes(theta, at).by_ratio

    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        if at.unique is None:
            return self.inner.size_gradient(theta, at)
        slopes = self._slopes(theta, at)
        # The tokens of every family grow with D; shares, and what D itself does, besides.
        by_tokens = (slopes.by_ratio * at.ratios).sum(axis=-1) + slopes.by_tokens
        return np.stack([slopes.by_params, by_tokens], axis=-1)

    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        return self.inner.starts(self.counted(at), log_loss)

    def usable(self, at: Conditions) -> Bool[np.ndarray, "*batch runs"]:
        return self.inner.usable(self.counted(at))

    def counted(self, at: Conditions) -> Conditions:
        """The conditions that the wrapped law sees: N', and D and p' or D' and p."""
        return at if at.unique is None else self._count(at).at

    def _count(self, at: Conditions) -> _Counted:
        assert at.unique is not None
        amounts = at.ratios * at.tokens[..., None]
        unique = at.unique[..., None, :]
        worth, slopes = effective_tokens(amounts, unique, self.rd)
        new = np.where(amounts < unique, 1.0, 0.0)
        params, by_params, by_unique = self._count_params(at, np.minimum(amounts, unique))
        if self._by_ratio:
            seen = Conditions(params, at.tokens, worth / at.tokens[..., None])
        else:
            total = worth.sum(axis=-1)
            # Nothing counts only where every family present has no unique tokens at all.
            seen = Conditions(params, np.where(total > 0, total, 1.0), at.ratios)
        return _Counted(seen, slopes, new, by_params, by_unique)

    def _count_params(
        self, at: Conditions, once: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | float, np.ndarray | float]:
        """N', d log N' / d log N and d log N' / d U_D."""
        if self.rn is None:
            return at.params, 1.0, 0.0
        log_ratio = np.log(PUBLISHED_ALPHA / PUBLISHED_BETA) + PUBLISHED_LOG_A - PUBLISHED_LOG_B
        g = np.exp(log_ratio / (PUBLISHED_ALPHA + PUBLISHED_BETA))
        power = PUBLISHED_BETA / PUBLISHED_ALPHA
        unique = np.maximum(once.sum(axis=-1), 1.0)
        usable = (unique * g) ** power * g
        params, slope = effective_tokens(at.params, usable, self.rn)
        # d N' / d U_N at a given N, beyond U_N: 1 + rn (1 - e) - e N / U_N = (N' - e N) / U_N.
        by_usable = np.where(at.params > usable, (params - slope * at.params) / usable, 0.0)
        by_unique = by_usable * power * usable / unique / params
        return params, slope * at.params / params, by_unique

    def _slopes(self, theta: np.ndarray, at: Conditions) -> _Slopes:
        counted = self._count(at)
        by_size = self.inner.size_gradient(theta, counted.at)
        if self._by_ratio:
            # dp'_j / dp_j = S'_j; at given tokens of every family p'_j falls as 1 / D.
            inner = self.inner.ratio_gradient(theta, counted.at)
            by_ratio = inner * counted.slopes
            by_tokens = by_size[..., 1] - (inner * counted.at.ratios).sum(axis=-1)
        else:
            # d log D' / dp_j = S'_j D / D'; D enters through the tokens of the families alone.
            slope = counted.slopes * (at.tokens / counted.at.tokens)[..., None]
            by_ratio, by_tokens = by_size[..., 1:] * slope, np.zeros(())
        by_unique = by_size[..., 0] * counted.params_by_unique * at.tokens
        by_ratio = by_ratio + by_unique[..., None] * counted.new
        return _Slopes(by_ratio, by_size[..., 0] * counted.params_by_params, by_tokens)


class SeparableRepetition(Repetition, SeparableLaw):
    """`Repetition` around a separable law, which stays separable."""

    inner: SeparableLaw

    def exponent_grid(self) -> Float[np.ndarray, "points exponents"]:
        return self.inner.exponent_grid()

    def basis(
        self, exponents: Float[np.ndarray, "*batch exponents"], at: Conditions
    ) -> Float[np.ndarray, "*out runs terms"]:
        return self.inner.basis(exponents, self.counted(at))

    def assemble(
        self,
        exponents: Float[np.ndarray, "*batch exponents"],
        amplitudes: Float[np.ndarray, "*batch terms"],
    ) -> Float[np.ndarray, "*batch q"]:
        return self.inner.assemble(exponents, amplitudes)


@dataclass(frozen=True)
class _Counted:
    at: Conditions  # what the wrapped law sees
    slopes: np.ndarray  # dD'_j / dD_j
    new: np.ndarray  # 1 where further tokens of the family are still new
    params_by_params: np.ndarray | float  # d log N' / d log N
    params_by_unique: np.ndarray | float  # d log N' / d U_D


@dataclass(frozen=True)
class _Slopes:
    by_ratio: np.ndarray  # of the log loss, by every ratio
    by_params: np.ndarray  # by log N
    by_tokens: np.ndarray  # by log D at given tokens of every family


def with_repetition(law: Law, rd: float = RD, rn: float | None = None) -> Repetition:
    """The law on the tokens that count (see `Repetition`); separable laws stay separable.

    Raises:
        InputError: the law has no term in D, or handles repetition already, or rd, rn <= 0.
    """
    kind = SeparableRepetition if isinstance(law, SeparableLaw) else Repetition
    return kind(law, rd, rn)
