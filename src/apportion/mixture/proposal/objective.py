"""What `optimize` minimises: a weighted sum, or the worst, of family losses, for many mixtures.

Axis legend: B problems (starting points or bootstrap samples, each with its own parameters and its
own mixture), T targets, F families, Q parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from apportion.errors import InputError, option
from apportion.mixture.laws.base import Conditions, Law
from apportion.mixture.laws.powers import PowerLaw
from apportion.mixture.laws.repetition import Repetition
from apportion.mixture.runs import conditions

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

Spec = str | Mapping[str, float]


def own_power(law: Law) -> int | None:
    """Which coordinate is gamma, where a loss is a constant times a power p^(-gamma) of its ratio.

    None for other laws. Under repetition p is the ratio that counts.
    """
    law = law.inner if isinstance(law, Repetition) else law
    if not isinstance(law, PowerLaw):
        return None
    own = [place for place, power in enumerate(law.powers) if power.of == "ratio"]
    if len(own) != 1 or set(law.powers[own[0]].terms) != set(range(len(law.amplitudes))):
        return None
    return len(law.amplitudes) + own[0]


@dataclass(frozen=True)
class LossModel:
    """The fitted law at one size, as a function of the mixture alone.

    Attributes:
        law: the law.
        families: names of the ratios.
        own: column of every target's own ratio.
        params, tokens: N and D.
        unique: unique tokens per family, for laws that know repetition.
        theta: internal coordinates of every problem.
    """

    law: Law
    families: tuple[str, ...]
    own: tuple[int, ...]
    params: float
    tokens: float
    unique: Float[np.ndarray, " families"] | None
    theta: Float[np.ndarray, "problems targets q"]

    @classmethod
    def of(
        cls,
        fit: Fit,
        params: float,
        tokens: float,
        unique: Float[np.ndarray, " families"] | None,
        theta: Float[np.ndarray, "problems targets q"],
    ) -> LossModel:
        """The model of a fit, at its point estimate or at samples.

        A gamma below 0 counts as 0: more data never helps there, but that less of it would help is
        beyond what such a fit can show.
        """
        own = tuple(fit.runs.family_index(target) for target in fit.targets)
        if unique is None:
            unique = fit.runs.unique_tokens
        place = own_power(fit.law)
        if place is not None:
            below = (np.arange(theta.shape[-1]) == place) & (theta < 0.0)
            theta = np.where(below, 0.0, theta)
        return cls(fit.law, fit.families, own, float(params), float(tokens), unique, theta)

    def log_loss(
        self, ratios: Float[np.ndarray, "#problems families"]
    ) -> Float[np.ndarray, "problems targets"]:
        """Log loss of every target; infinite where the law diverges (its own ratio is 0)."""
        if self.separable:
            with np.errstate(divide="ignore"):
                log = np.log(ratios[:, list(self.own)])
            return self.log_alone - self.gamma * np.where(self.gamma > 0, log, 0.0)
        return self._raw(ratios)

    def _raw(self, ratios: np.ndarray) -> np.ndarray:
        out = np.empty((max(len(self.theta), len(ratios)), len(self.own)))
        place = own_power(self.law)
        for t in range(len(self.own)):
            at = self._at(t, ratios)
            value = self.law.log_loss(self.theta[:, t], at)
            known = self.law.usable(at)
            if place is not None:
                # p^0 is 1 at p = 0 too.
                known = known | (self.theta[:, t, place, None] == 0.0)
            out[:, t] = np.where(known, value, np.inf)[:, 0]
        return out

    def slopes(
        self, ratios: Float[np.ndarray, "#problems families"]
    ) -> Float[np.ndarray, "problems targets families"]:
        """Derivative of every log loss by every ratio, as free variables."""
        count = len(self.families)
        out = np.zeros((max(len(self.theta), len(ratios)), len(self.own), count))
        if self.separable:
            share = np.maximum(ratios[:, list(self.own)], 1e-300)
            out[:, np.arange(len(self.own)), list(self.own)] = -self.gamma / share
            return out
        for t, own in enumerate(self.own):
            order = np.r_[own, np.delete(np.arange(count), own)]
            value = self.law.ratio_gradient(self.theta[:, t], self._at(t, ratios))
            out[:, t, order] = value[:, 0]
        return out

    @cached_property
    def log_alone(self) -> Float[np.ndarray, "problems targets"]:
        """Log loss of every target when all tokens are its own (p = 1)."""
        eye = np.eye(len(self.families))
        alone = [self._raw(eye[own : own + 1])[:, t] for t, own in enumerate(self.own)]
        return np.stack(alone, axis=1)

    @property
    def mixed(self) -> bool:
        """Whether the law has a term that the mixture can move."""
        return bool({"ratio", "others", "unique"} & self.law.needs)

    @property
    def separable(self) -> bool:
        """Whether every loss is a constant times a power of the own ratio (a closed form)."""
        return isinstance(self.law, PowerLaw) and own_power(self.law) is not None

    @property
    def gamma(self) -> Float[np.ndarray, "problems targets"]:
        """Exponent of the own ratio, for laws that are a power of it (see `own_power`)."""
        place = own_power(self.law)
        assert place is not None
        return self.theta[..., place]

    def take(self, rows: np.ndarray) -> LossModel:
        """Some of the problems."""
        return replace(self, theta=self.theta[rows])

    def _at(self, target: int, ratios: np.ndarray) -> Conditions:
        one = np.ones((1, 1))
        unique = None if self.unique is None else self.unique[None]
        return conditions(
            one * self.params, one * self.tokens, ratios[:, None, :], self.own[target], unique
        )


@dataclass(frozen=True)
class Objective:
    """Minimise sum_t w_t L_t / s_t, or max_t L_t / s_t over targets with w_t > 0.

    Attributes:
        name: as it is shown.
        weights: w_t.
        normalized: whether s_t is the target's loss at p = 1 (1 otherwise).
        worst: whether the maximum is minimised.
    """

    name: str
    weights: Float[np.ndarray, " targets"]
    normalized: bool
    worst: bool

    @classmethod
    def parse(cls, spec: Spec, targets: tuple[str, ...]) -> Objective:
        """The objective that a user names.

        Args:
            spec: `"normalized"`, `"total"`, `"worst"`, `"target:FAMILY"`, or weights of the
                normalized losses per family.
            targets: families with a loss.

        Raises:
            InputError: anything else, unknown families, weights that are negative or all zero.
        """
        every = np.ones(len(targets))
        if isinstance(spec, Mapping):
            return cls("weighted", _weights(spec, targets), True, False)
        name = str(spec)
        if name in ("normalized", "worst"):
            return cls(name, every, True, name == "worst")
        if name == "total":
            return cls(name, every, False, False)
        kind, colon, family = name.partition(":")
        if kind == "target" and colon:
            return cls(name, _weights({family: 1.0}, targets), True, False)
        raise InputError(
            "expected an objective out of normalized, total, worst, target:FAMILY, or weights such "
            f"as {option('objective', {targets[0]: 2})}; got {spec!r}"
        )

    def log_scale(self, model: LossModel) -> Float[np.ndarray, "problems targets"]:
        """log s_t."""
        return model.log_alone if self.normalized else np.zeros_like(model.log_alone)

    def terms(
        self,
        model: LossModel,
        ratios: Float[np.ndarray, "#problems families"],
        log_scale: Float[np.ndarray, "problems targets"] | None = None,
    ) -> Float[np.ndarray, "problems targets"]:
        """w_t L_t / s_t; 0 for targets of weight 0, also where the law diverges."""
        if log_scale is None:
            log_scale = self.log_scale(model)
        log = model.log_loss(ratios) - log_scale
        with np.errstate(over="ignore"):
            return self.weights * np.exp(np.where(self.weights > 0, log, 0.0))

    def value(
        self, model: LossModel, ratios: Float[np.ndarray, "#problems families"]
    ) -> Float[np.ndarray, " problems"]:
        """The objective."""
        terms = self.terms(model, ratios)
        return terms.max(axis=1) if self.worst else terms.sum(axis=1)


def _weights(given: Mapping[str, float], targets: tuple[str, ...]) -> np.ndarray:
    out = np.zeros(len(targets))
    for family, weight in given.items():
        if family not in targets:
            raise InputError(f"expected a family out of {', '.join(targets)}; got {family!r}")
        if not (np.isfinite(weight) and weight >= 0):
            raise InputError(f"expected a weight >= 0 for {family}, got {weight!r}")
        out[targets.index(family)] = weight
    if not out.any():
        raise InputError("expected at least one weight above 0, got none")
    return out
