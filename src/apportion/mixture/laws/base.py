"""What every mixture law offers, so that the fit, the intervals and the optimum know only this file.

A law predicts the log loss of one *target* family from the size of the run and its sampling ratios.
Every family is fitted by itself; the fit stacks families and bootstrap samples along leading batch
axes, so a law is written once for arrays of any leading shape and never loops.

Axis legend used in suffixes and shapes: B batch (families × samples), R runs, F families (the
target's own ratio first), Q parameters, T linear terms.

Parameters live in *internal coordinates*: positive amplitudes as their logarithm, exponents as they
are. There the objective is smooth, signs cannot go wrong, and a vanishing term is a coordinate that
runs to its lower bound instead of a sign flip. Bounds are part of the law and are stated per symbol.
Refused: one law object holding all families at once. No published form here shares parameters
between target families, and independent fits batch better than one large one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float

# N counts in millions and D in billions inside every law: with raw counts log A and alpha are
# almost collinear, and the fit stalls.
PARAMS_UNIT = 1e6
TOKENS_UNIT = 1e9

# exp(LOG_ZERO) is far below any loss that can be measured: a coordinate there means "no such term".
LOG_ZERO = -30.0

Need = Literal["params", "tokens", "ratio", "others", "unique"]


@dataclass(frozen=True)
class Parameter:
    """One fitted number of a law.

    Attributes:
        symbol: the paper's symbol in ASCII, for example `"alpha"`.
        meaning: one phrase, with the unit.
        kind: `"amplitude"` (internal coordinate is the logarithm) or `"exponent"` (as it is).
        lower, upper: bounds in internal coordinates.
    """

    symbol: str
    meaning: str
    kind: Literal["amplitude", "exponent"]
    lower: float
    upper: float


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


class Law(ABC):
    """A published form of the loss of one family; see `Conditions` for its inputs.

    A subclass states `name`, `formula`, `paper` and `needs` (what must vary among the runs), and
    implements the abstract methods. Instances hold no fitted state and compare by their type.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[frozenset[Need]]

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
        """Derivative of the log loss by every sampling ratio, each taken as a free variable."""

    @abstractmethod
    def starts(
        self, at: Conditions, log_loss: Float[np.ndarray, " runs"]
    ) -> Float[np.ndarray, "starts q"]:
        """Deterministic starting points, best guess first, for a law without linear terms.

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
