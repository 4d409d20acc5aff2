"""What every mixture law offers: the fit, the intervals and the optimum know only this file.

A law predicts the log loss of one *target* family from the size of the run and its sampling ratios.
Every family is fitted by itself; the fit stacks families and bootstrap samples along leading batch
axes, so a law is written once for arrays of any leading shape and never loops.

Axis legend used in suffixes and shapes: B batch (families × samples), R runs, F families (the
target's own ratio first), Q parameters, T linear terms.

Parameters live in *internal coordinates*: positive amplitudes as their logarithm, exponents as they
are. There the objective is smooth, signs cannot go wrong, and a vanishing term is a coordinate that
runs to its lower bound instead of a sign flip. Bounds are part of the law, stated per symbol.
Refused: one law object holding all families at once. No published form here shares parameters
between target families, and independent fits batch better than one large one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls

# N counts in millions and D in billions inside every law: with raw counts log A and alpha are
# almost collinear, and the fit stalls.
PARAMS_UNIT = 1e6
TOKENS_UNIT = 1e9

# exp(LOG_ZERO) is far below any loss that can be measured: a coordinate there means "no such term".
LOG_ZERO = -30.0

# The slope of p^gamma, gamma < 1, is infinite at p = 0. Laws that are finite there report the slope
# at this ratio instead: large, of the right sign, and safe to compute with.
RATIO_FLOOR = 1e-8

Need = Literal["params", "tokens", "ratio", "others", "unique"]


@dataclass(frozen=True)
class Parameter:
    """One fitted number of a law.

    Attributes:
        symbol: the paper's symbol in ASCII, for example `"alpha"`.
        meaning: one phrase, with the unit.
        kind: `"amplitude"` (positive; the internal coordinate is the logarithm), `"exponent"` or
            `"coefficient"` (a multiplier of ratios, of either sign where the bounds allow it); the
            last two are their own coordinates.
        lower, upper: bounds in internal coordinates.
    """

    symbol: str
    meaning: str
    kind: Literal["amplitude", "exponent", "coefficient"]
    lower: float
    upper: float

    def named(self, order: Sequence[str]) -> Parameter:
        """The parameter with the families' names in place of their positions (the target first)."""
        symbol, _, position = self.symbol.rpartition("_")
        if not symbol or not position.isdigit():
            return self
        name = order[int(position)]
        meaning = self.meaning.replace(f"other family {position}", name)
        return replace(self, symbol=f"{symbol}_{name}", meaning=meaning)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a set of runs, seen from one target family.

    Attributes:
        params: non-embedding parameters N.
        tokens: training tokens D.
        ratios: sampling ratios; column 0 is the target family's own.
        unique: unique tokens that each family has (same order as `ratios`); None means unlimited.

    Leading batch axes broadcast against each other and against those of the parameters.
    """

    params: Float[np.ndarray, "*#batch runs"]
    tokens: Float[np.ndarray, "*#batch runs"]
    ratios: Float[np.ndarray, "*#batch runs families"]
    unique: Float[np.ndarray, "*#batch families"] | None = None

    @property
    def own(self) -> Float[np.ndarray, "*batch runs"]:
        """The target family's own sampling ratio."""
        return self.ratios[..., 0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value per run, batch axes included."""
        unique = () if self.unique is None else (*self.unique.shape[:-1], 1)
        return np.broadcast_shapes(
            self.params.shape, self.tokens.shape, self.ratios.shape[:-1], unique
        )

    @cached_property
    def log_params(self) -> Float[np.ndarray, "*batch runs"]:
        """log N, N in millions."""
        return np.log(self.params / PARAMS_UNIT)

    @cached_property
    def log_tokens(self) -> Float[np.ndarray, "*batch runs"]:
        """log D, D in billions."""
        return np.log(self.tokens / TOKENS_UNIT)

    @cached_property
    def safe_own(self) -> Float[np.ndarray, "*batch runs"]:
        """The own ratio with 1 in place of 0, for laws whose `usable` masks zero ratios.

        A stand-in keeps infinities away from zero weights.
        """
        return np.where(self.own > 0, self.own, 1.0)

    @cached_property
    def log_own(self) -> Float[np.ndarray, "*batch runs"]:
        """log of `safe_own`."""
        return np.log(self.safe_own)


class Law(ABC):
    """A published form of the loss of one family; see `Conditions` for its inputs.

    A subclass states `name`, `formula`, `paper`, `needs` and `fixed`, and implements the abstract
    methods. Instances hold no fitted state; two with the same type and name are equal.

    Attributes:
        needs: what must vary among the runs (`"others"`: the split among the other families;
            `"unique"`: the families' unique tokens must be known).
        fixed: what must NOT vary among the runs of one fit, because the form has no term for it.
    """

    name: str
    formula: str
    paper: str
    needs: frozenset[Need]
    fixed: frozenset[Need] = frozenset()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Law) and (type(self), self.name) == (type(other), other.name)

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    @abstractmethod
    def parameters(self, families: int) -> tuple[Parameter, ...]:
        """The Q parameters, in the order of internal coordinates, for that many families."""

    @abstractmethod
    def log_loss(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs"]:
        """Log of the predicted loss (nats per token)."""

    @abstractmethod
    def gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> tuple[Float[np.ndarray, "*out runs"], Float[np.ndarray, "*out runs q"]]:
        """Log loss and its analytic derivative by every internal coordinate."""

    @abstractmethod
    def ratio_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs families"]:
        """Derivative of the log loss by every sampling ratio, each taken as a free variable.

        Only differences between families matter while the ratios sum to 1.
        """

    @abstractmethod
    def size_gradient(
        self, theta: Float[np.ndarray, "*batch q"], at: Conditions
    ) -> Float[np.ndarray, "*out runs 2"]:
        """Derivative of the log loss by log N and by log D (0 where the law has no such term)."""

    @abstractmethod
    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        """Deterministic starting points, best guess first, from runs without batch axes.

        Separable laws are started from variable projection instead and return their fallback.
        """

    def usable(self, at: Conditions) -> Bool[np.ndarray, "*batch runs"]:
        """Which runs carry information for this law (the power of a zero ratio does not)."""
        return np.ones(at.own.shape, dtype=bool)


class SeparableLaw(Law):
    """A law that is linear in non-negative amplitudes once its exponents are fixed.

    L = sum over t of c_t * basis_t(exponents), c >= 0. Variable projection searches the exponents
    and solves for the amplitudes inside.
    """

    @abstractmethod
    def exponent_grid(self) -> Float[np.ndarray, "points exponents"]:
        """Deterministic grid of exponents that covers the plausible range."""

    @abstractmethod
    def basis(
        self, exponents: Float[np.ndarray, "*batch exponents"], at: Conditions
    ) -> Float[np.ndarray, "*out runs terms"]:
        """The terms that the amplitudes multiply."""

    @abstractmethod
    def assemble(
        self,
        exponents: Float[np.ndarray, "*batch exponents"],
        amplitudes: Float[np.ndarray, "*batch terms"],
    ) -> Float[np.ndarray, "*batch q"]:
        """Internal coordinates from exponents and amplitudes (see `log_amplitude`)."""


def grid_points(*axes: Iterable[float]) -> Float[np.ndarray, "points axes"]:
    """Every combination of the values of each axis, the last axis fastest."""
    mesh = np.meshgrid(*(np.array(list(axis)) for axis in axes), indexing="ij")
    return np.stack([axis.ravel() for axis in mesh], axis=-1)


def starting_values(
    log_size: Float[np.ndarray, " runs"], values: tuple[float, ...]
) -> tuple[float, ...]:
    """Starting exponents of N or D; the middle one alone where that size never varies.

    The others would give the same start again.
    """
    middle = len(values) // 2
    return values if np.ptp(log_size) > 0 else values[middle : middle + 1]


def log_amplitude(value: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Logarithm with zero mapped to `LOG_ZERO` + 20: off the plateau where gradients vanish.

    A term that variable projection sets to zero must be able to come back in the joint polish.
    """
    return np.log(np.maximum(value, np.exp(LOG_ZERO + 20.0)))


def log_sum_exp(
    terms: Float[np.ndarray, "*shape terms"],
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape terms"]]:
    """log(sum(exp(terms))) over the last axis, and the share of each term (its derivative)."""
    top = terms.max(axis=-1, keepdims=True)
    shares = np.exp(terms - top)
    total = shares.sum(axis=-1, keepdims=True)
    shares /= total
    return (top + np.log(total))[..., 0], shares


def best_amplitudes(
    basis: Float[np.ndarray, "points runs terms"], log_loss: Float[np.ndarray, " runs"]
) -> tuple[Float[np.ndarray, "points terms"], Float[np.ndarray, " points"]]:
    """Non-negative amplitudes with the least relative error, for a few candidate bases.

    Laws that are not separable use it for their starting points.

    Returns:
        The amplitudes and the root of the summed squared relative errors (0 is a perfect fit).
    """
    target = np.ones(len(log_loss))
    found = [nnls(each * np.exp(-log_loss)[:, None], target) for each in basis]
    return np.array([c for c, _ in found]), np.array([error for _, error in found])


def effective_tokens(
    tokens: Float[np.ndarray, "*#shape"],
    unique: Float[np.ndarray, "*#shape"],
    scale: float | Float[np.ndarray, "*#shape"],
) -> tuple[Float[np.ndarray, "*out"], Float[np.ndarray, "*out"]]:
    """What repeated tokens are worth: S = U + U scale (1 - exp(-R / scale)), R = D / U - 1.

    Up to one epoch (D <= U) every token counts, S = D. `scale` is the number of repetitions after
    which a further one is worth 1/e; S and its slope are continuous at one epoch.

    Args:
        tokens: tokens trained on, D.
        unique: different tokens among them at most, U; may be 0 or infinite.
        scale: decay of the worth of repetitions, > 0.

    Returns:
        S and dS/dD, in the unit of `tokens`.
    """
    once = np.minimum(tokens, unique)
    finite = (unique > 0) & np.isfinite(unique)
    supply = np.where(finite, unique, 1.0)
    decay = -np.where(finite, (tokens - once) / supply, 0.0) / scale
    value = once - np.where(finite, supply * scale * np.expm1(decay), 0.0)
    return value, np.where(unique > 0, np.exp(decay), 0.0)
