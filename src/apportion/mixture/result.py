"""What a fit returns: parameters, samples, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from apportion.budget import parse_params, parse_tokens
from apportion.errors import InputError
from apportion.mixture.interval import percentiles
from apportion.mixture.laws.base import LOG_ZERO, Conditions, Law, Parameter
from apportion.mixture.runs import RunTable, conditions

if TYPE_CHECKING:
    from apportion.mixture.optimize import Optimum

# Closer to its bound than this, in internal coordinates, a parameter is on it.
_ROUNDING = 1e-9
Ratios = Mapping[str, float] | Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Status:
    """Whether the fit can be trusted, in words.

    Attributes:
        ok: converged, and every parameter is identified by the runs.
        text: one sentence.
        notes: what to know, one sentence each (unidentified exponents, rows left out, …).
        undetermined: (target, symbol) of the parameters whose numbers mean nothing.
    """

    ok: bool
    text: str
    notes: tuple[str, ...] = ()
    undetermined: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.text, *(f"- {note}" for note in self.notes)])


@dataclass(frozen=True)
class Fit:
    """A law fitted to runs: parameters, their bootstrap samples and what follows from them.

    Attributes:
        law: the law.
        runs: the runs that it was fitted to.
        theta: the law's internal coordinates per target.
        objective: the Huber sum per target at its minimum.
        used: which runs each target's fit could use.
        samples: bootstrap refits, or None; all targets of a sample saw the same weights.
        status: whether to trust it.
        level: coverage of the intervals.
        seed: seed of the bootstrap.
    """

    law: Law
    runs: RunTable
    theta: Float[np.ndarray, "targets q"]
    objective: Float[np.ndarray, " targets"]
    used: Bool[np.ndarray, "targets runs"]
    samples: Float[np.ndarray, "samples targets q"] | None
    status: Status
    level: float = 0.9
    seed: int = 0

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the ratio columns."""
        return self.runs.families

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the families with a loss."""
        return self.runs.targets

    def log_loss(
        self,
        params: float,
        tokens: float,
        ratios: Float[np.ndarray, "mixtures families"],
        theta: Float[np.ndarray, "*batch targets q"] | None = None,
        unique: Float[np.ndarray, " families"] | None = None,
    ) -> Float[np.ndarray, "*batch mixtures targets"]:
        """Log of the predicted loss for many mixtures at one size (`samples` may be `theta`)."""
        theta = self.theta if theta is None else theta
        return np.stack(
            [
                self.law.log_loss(theta[..., k, :], at)
                for k, at in enumerate(self._conditions(params, tokens, ratios, unique))
            ],
            axis=-1,
        )

    def _conditions(
        self, params: float, tokens: float, ratios: np.ndarray, unique: np.ndarray | None
    ) -> list[Conditions]:
        shape = np.ones(len(ratios))
        if unique is None:
            unique = self.runs.unique_tokens
        return [
            conditions(
                params * shape, tokens * shape, ratios, self.runs.family_index(target), unique
            )
            for target in self.targets
        ]

    def predict(
        self,
        params: float | str,
        tokens: float | str,
        ratios: Ratios,
        *,
        supply: Mapping[str, float] | None = None,
    ) -> pd.DataFrame:
        """Predicted loss of every family, with the interval of its expectation.

        Args:
            params: non-embedding parameters N, a number or as `"1.2B"`.
            tokens: training tokens D.
            ratios: share of every family, by name or in table order; they sum to 1.
            supply: unique tokens per family, for laws that know repetition.

        Returns:
            Columns `family`, `loss` (nats per token; NaN where the law says nothing, such as at
            ratio 0), `low`, `high` (NaN without a bootstrap), and `bits_per_byte` where the runs
            have bytes per token. What to know about the numbers is in `attrs["notes"]`.

        Raises:
            InputError: unknown families, ratios that do not sum to 1, or no sound N or D.
        """
        from apportion.mixture.proposal.notes import (
            blind_notes,
            fit_notes,
            outside_notes,
            reach_notes,
            unlimited_notes,
        )

        params, tokens = parse_params(params), parse_tokens(tokens)
        shares = self.shares(ratios)[None]
        unique = None if supply is None else self.amounts(supply)
        point = np.exp(self.log_loss(params, tokens, shares, unique=unique))[0]
        low = high = np.full(len(point), np.nan)
        if self.samples is not None:
            drawn = np.exp(self.log_loss(params, tokens, shares, self.samples, unique))[:, 0]
            low, high = self.interval(drawn)
        frame = pd.DataFrame({"family": self.targets, "loss": point, "low": low, "high": high})
        views = self._conditions(params, tokens, shares, unique)
        silent = [not self.law.usable(at).all() for at in views]
        frame.loc[silent, ["loss", "low", "high"]] = np.nan
        point, low, high = frame[["loss", "low", "high"]].to_numpy(dtype=float).T
        names = [f"the loss of {target}" for target in self.targets]
        notes = fit_notes(self) + outside_notes(self, names, point, low, high)
        if unique is not None:
            notes += blind_notes(self) or unlimited_notes(self, unique)
        frame.attrs["notes"] = notes + reach_notes(self, params, tokens, shares[0])
        if self.runs.bytes_per_token is not None:
            density = self.runs.bytes_per_token.mean(axis=0)
            frame["bits_per_byte"] = point / density / np.log(2.0)
        return frame

    def interval(
        self, samples: Float[np.ndarray, "samples *shape"]
    ) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
        """Interval at `level` from bootstrap values."""
        return percentiles(samples, self.level)

    def shares(self, ratios: Ratios) -> Float[np.ndarray, " families"]:
        """Ratios in table order, checked.

        Raises:
            InputError: unknown family, wrong count, negative, or a sum that is not 1.
        """
        if isinstance(ratios, Mapping):
            values = np.zeros(len(self.families))
            for family, share in ratios.items():
                values[self.runs.family_index(family)] = share
        else:
            values = _numbers(ratios)
        if values.shape != (len(self.families),):
            raise InputError(
                f"expected {len(self.families)} ratios ({', '.join(self.families)}), "
                f"got {values.size}"
            )
        named = [f"{f}={v:g}" for f, v in zip(self.families, values, strict=True)]
        wrong = [each for each, v in zip(named, values, strict=True) if not 0 <= v <= 1 + 1e-3]
        if wrong:
            raise InputError(f"expected every ratio between 0 and 1, got {', '.join(wrong)}")
        total = float(values.sum())
        if abs(total - 1) > 1e-3:
            raise InputError(
                f"expected ratios that sum to 1, got a sum of {total:g} ({', '.join(named)})"
            )
        return values / total

    def amounts(self, supply: Mapping[str, float]) -> Float[np.ndarray, " families"]:
        """Tokens per family in table order; families that are not named are unlimited."""
        values = np.full(len(self.families), np.inf)
        for family, amount in supply.items():
            if not amount > 0:
                raise InputError(f"expected a positive number of tokens for {family}: {amount!r}")
            values[self.runs.family_index(family)] = float(amount)
        return values

    @property
    def parameters(self) -> pd.DataFrame:
        """One row a target and parameter: `family`, `parameter`, `value`, `low`, `high`, …

        Amplitudes are shown on their own scale (N counts in millions, D in billions). Where
        `determined` is False the runs leave the parameter open, and its number means nothing: so
        it is for every parameter on a bound of the law, or whose interval reaches one. `bound` is
        `"lower"` or `"upper"` where the value lies on that bound; `meaning` says what it is.
        """
        stated = self.law.parameters(len(self.families))
        bounds = np.array([(p.lower, p.upper) for p in stated]).T
        theta, bound = settled(self.theta, bounds)
        lower, upper = _shown(bounds, stated)
        value = _shown(theta, stated)
        low = high = np.full(value.shape, np.nan)
        if self.samples is not None:
            ends = self.interval(_shown(settled(self.samples, bounds)[0], stated))
            low, high = (np.clip(end, lower, upper) for end in ends)
        open_ended = (bound != "") | ((upper > lower) & ((low <= lower) | (high >= upper)))
        rows = [
            (
                target,
                p.named(self.runs.order(target)).symbol,
                value[t, q],
                low[t, q],
                high[t, q],
                (target, p.symbol) not in self.status.undetermined and not open_ended[t, q],
                bound[t, q],
                p.named(self.runs.order(target)).meaning,
            )
            for t, target in enumerate(self.targets)
            for q, p in enumerate(stated)
        ]
        names = ["family", "parameter", "value", "low", "high", "determined", "bound", "meaning"]
        return pd.DataFrame(rows, columns=names)

    def residuals(self) -> Float[np.ndarray, "runs targets"]:
        """log predicted - log observed; NaN for runs that the law cannot use."""
        out = np.full(self.runs.losses.shape, np.nan)
        for k, target in enumerate(self.targets):
            value = self.law.log_loss(self.theta[k], self.runs.conditions(target))
            keep = self.used[k]
            out[keep, k] = (value - np.log(self.runs.losses[:, k]))[keep]
        return out

    def quality(self) -> pd.DataFrame:
        """Fit of every target: `family`, `runs`, `r2` (of the loss), `mean_relative_error`."""
        residual = self.residuals()
        rows: list[tuple[str, int, float, float]] = []
        for k, target in enumerate(self.targets):
            keep = self.used[k]
            seen = self.runs.losses[keep, k]
            error = seen * np.expm1(residual[keep, k])
            total = float(((seen - seen.mean()) ** 2).sum())
            r2 = 1.0 - float((error**2).sum()) / total if total > 0 else float("nan")
            rows.append((target, int(keep.sum()), r2, float(np.abs(error / seen).mean())))
        return pd.DataFrame(rows, columns=["family", "runs", "r2", "mean_relative_error"])

    def optimize(self, params: float, tokens: float, **options: Any) -> Optimum:
        """The optimal sampling ratios at that size; see `apportion.mixture.optimize.optimize`."""
        from apportion.mixture.optimize import optimize

        return optimize(self, params, tokens, **options)

    def save(self, path: str | Path) -> None:
        """Write the fit as JSON, with its runs, so that one file is enough to go on."""
        from apportion.mixture.fitfile import save_fit

        save_fit(self, path)


def _numbers(ratios: object) -> np.ndarray:
    try:
        return np.asarray(ratios, dtype=float)
    except (TypeError, ValueError):
        raise InputError(
            'expected ratios by family, such as {"romance": 0.6, "slavic": 0.4}, or numbers in '
            f"table order; got {ratios!r}"
        ) from None


def settled(theta: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Internal coordinates, on a bound exactly where they are within rounding of it, and which."""
    lower, upper = bounds
    free = upper > lower
    # A vanishing amplitude creeps towards its bound and never arrives.
    reach = np.where(lower <= LOG_ZERO, LOG_ZERO + 5 - lower, _ROUNDING)
    below, above = free & (theta - lower <= reach), free & (upper - theta < _ROUNDING)
    settled = np.where(below, lower, np.where(above, upper, theta))
    return settled, np.where(below, "lower", np.where(above, "upper", ""))


def _shown(theta: np.ndarray, stated: Sequence[Parameter]) -> np.ndarray:
    """Internal coordinates on the scale of the formula; a vanished amplitude is zero."""
    amplitude = np.array([p.kind == "amplitude" for p in stated])
    gone = np.array([p.lower <= LOG_ZERO for p in stated]) & (theta <= LOG_ZERO + 5)
    with np.errstate(over="ignore"):
        return np.where(amplitude, np.where(gone, 0.0, np.exp(theta)), theta)
