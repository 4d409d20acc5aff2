"""From a fit to sampling ratios: the optimum, its uncertainty, and what it gains over baselines.

Refused: a proposal without its rivals. Uniform, proportional, temperature and UniMax mixtures stand
in the same table, each with the interval of the proposal's gain over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from apportion.budget import parse_params, parse_tokens
from apportion.errors import InputError, WeakFitError, option
from apportion.mixture.laws import with_repetition
from apportion.mixture.proposal.baselines import TEMPERATURE, UNIMAX_EPOCHS, baselines
from apportion.mixture.proposal.constraints import Box, box
from apportion.mixture.proposal.gains import (
    PROPOSED,
    UNCONSTRAINED,
    another_seed,
    best_gain,
    compare_mixtures,
)
from apportion.mixture.proposal.notes import (
    epoch_notes,
    fit_notes,
    outside_notes,
    reach_notes,
    unlimited_notes,
)
from apportion.mixture.proposal.objective import LossModel, Objective, Spec, own_power
from apportion.mixture.proposal.optimum import Optimum
from apportion.mixture.proposal.solve import batches, best_mixture, best_mixtures
from apportion.mixture.proposal.strength import weak_points
from apportion.mixture.supply import parse_supply

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

Amounts = str | Path | Mapping[str, Any]
Ratios = Mapping[str, float] | Sequence[float] | np.ndarray


def optimize(
    fit: Fit,
    params: float | str,
    tokens: float | str,
    *,
    objective: Spec = "normalized",
    floors: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    supply: Amounts | None = None,
    max_epochs: float | None = None,
    repetition: bool = False,
    sizes: Amounts | None = None,
    mixtures: Mapping[str, Ratios] | None = None,
    temperature: float = TEMPERATURE,
    refits: int = 200,
    progress: bool = False,
    force: bool = False,
) -> Optimum:
    """The sampling ratios that minimise the predicted losses of all families.

    Args:
        fit: a fit, with a bootstrap for intervals.
        params: non-embedding parameters N, a number or as `"1.2B"`.
        tokens: training tokens D.
        objective: `"normalized"` (sum of losses, each over the family's loss at p = 1), `"total"`
            (sum of losses), `"worst"` (the largest normalized loss), `"target:FAMILY"`, or weights
            of the normalized losses per family.
        floors: least share per family.
        caps: largest share per family.
        fixed: given share per family.
        supply: unique tokens per family, as a mapping, `"a=3B,b=400M"` or a JSON file.
        max_epochs: the most passes over a family's supply.
        repetition: discount repeated tokens (Muennighoff et al., arXiv 2305.16264) instead of, or
            besides, the hard limit of `max_epochs`.
        sizes: tokens per family for the proportional, temperature and UniMax mixtures; the supply
            when absent.
        mixtures: further mixtures to compare with, by name (none of the names in the table).
        temperature: exponent of the temperature mixture.
        refits: bootstrap samples that are optimised again for the interval of the ratios, under
            laws without a closed form; the others use every sample.
        progress: show a progress bar for these on stderr.
        force: go on with a fit that does not support the objective.

    Raises:
        InputError: a request that cannot be met (see `constraints.box`, `Objective.parse`).
        WeakFitError: the fit does not determine what the objective needs.
    """
    bounds = {"floors": floors or {}, "caps": caps or {}, "fixed": fixed or {}}
    _check_kinds(fit, bounds)
    size = parse_params(params), parse_tokens(tokens)
    goal = Objective.parse(objective, fit.targets)
    amounts = None if supply is None else fit.amounts(parse_supply(supply))
    fit = _discounted(fit, repetition, amounts)
    room = box(fit.families, size[1], supply=amounts, max_epochs=max_epochs, **bounds)
    unique = amounts if "unique" in fit.law.needs else None
    asked = _Request(fit, goal, room, size, unique, amounts, max_epochs)
    weak = _weak_points(asked, force)
    ratios, kkt = best_mixture(goal, asked.model, room)
    named = {PROPOSED: ratios}
    if _binds(room):
        named[UNCONSTRAINED] = best_mixture(goal, asked.model, Box.free(len(ratios)))[0]
    base = amounts if sizes is None else fit.amounts(parse_supply(sizes))
    epochs = UNIMAX_EPOCHS if max_epochs is None else max_epochs
    named |= baselines(fit.families, base, size[1], alpha=temperature, epochs=epochs)
    named |= _further(fit, mixtures or {}, {*named, UNCONSTRAINED})
    change = another_seed(fit.runs, goal, asked.model, ratios)
    comparison = compare_mixtures(fit, goal, asked.model, asked.samples, room, named, change)
    table = _table(asked, ratios, named.get(UNCONSTRAINED, ratios), refits, progress)
    notes = [*(f"weak: {reason}" for reason in weak), *fit_notes(fit), *_odd_intervals(fit, table)]
    return Optimum(
        ratios=_by_family(fit, ratios),
        table=table,
        comparison=comparison,
        gain=best_gain(comparison, change),
        kkt=kkt,
        notes=(*notes, *_notes(asked, ratios, repetition)),
        objective=goal.name,
        value=float(comparison["objective"].iloc[0]),
        law=fit.law.name,
        params=size[0],
        tokens=size[1],
        level=fit.level,
        mixtures={name: _by_family(fit, shares) for name, shares in named.items()},
        supply=None if amounts is None else _by_family(fit, amounts),
        max_epochs=max_epochs,
    )


def _weak_points(asked: _Request, force: bool) -> list[str]:
    """What the objective needs and the fit does not determine; an error unless forced."""
    weak = weak_points(asked.fit, asked.goal, asked.model, asked.room.held)
    if weak and not force:
        raise WeakFitError(
            f"the fit does not support the objective {asked.goal.name!r}: {'; '.join(weak)}. "
            f"Add runs, use another objective or law, or go on with {option('force', True)}"
        )
    return weak


def _odd_intervals(fit: Fit, table: pd.DataFrame) -> list[str]:
    """Intervals of the proposal that leave out their own value."""
    notes: list[str] = []
    for what, value, low, high in (
        ("the ratio", "ratio", "low", "high"),
        ("the loss", "loss", "loss_low", "loss_high"),
    ):
        columns = table[[value, low, high]].to_numpy(dtype=float).T
        notes += outside_notes(fit, [f"{what} of {f}" for f in fit.families], *columns)
    return notes


@dataclass(frozen=True)
class _Request:
    fit: Fit
    goal: Objective
    room: Box
    size: tuple[float, float]
    unique: np.ndarray | None
    supply: np.ndarray | None
    max_epochs: float | None

    @cached_property
    def model(self) -> LossModel:
        """The losses at the point estimate."""
        return LossModel.of(self.fit, *self.size, self.unique, self.fit.theta[None])

    @cached_property
    def samples(self) -> LossModel | None:
        """The losses at every bootstrap sample."""
        if self.fit.samples is None:
            return None
        return LossModel.of(self.fit, *self.size, self.unique, self.fit.samples)


def _check_kinds(fit: object, bounds: Mapping[str, object]) -> None:
    if isinstance(fit, str | Path):
        raise InputError(f"expected a fit, got the path {str(fit)!r}; read the file first: load")
    for name, value in bounds.items():
        if not isinstance(value, Mapping):
            raise InputError(
                f"expected {option(name)} by family, such as {option(name, {'romance': 0.1})}; got "
                f"{value!r}"
            )


def _discounted(fit: Fit, repetition: bool, amounts: np.ndarray | None) -> Fit:
    """The fit with repeated tokens discounted, if asked and not so already."""
    if not repetition:
        return fit
    if amounts is None and fit.runs.unique_tokens is None:
        raise InputError(
            "repetition needs the unique tokens of every family: "
            f"give {option('supply', {fit.families[0]: 3e9})}"
        )
    if "unique" in fit.law.needs:
        return fit
    # Sound where the runs repeated nothing: there the wrapped law and the plain one agree.
    return replace(fit, law=with_repetition(fit.law))


def _further(fit: Fit, given: Mapping[str, Ratios], taken: set[str]) -> dict[str, np.ndarray]:
    """The user's mixtures to compare with, under names of their own."""
    clash = [name for name in given if name in taken]
    if clash:
        raise InputError(
            f"expected other names for the mixtures to compare with than {', '.join(sorted(taken))}"
            f", which stand in the table already; got {', '.join(clash)}"
        )
    return {name: fit.shares(ratios) for name, ratios in given.items()}


def _binds(room: Box) -> bool:
    return bool((room.lower > 0).any() or (room.upper < 1).any())


def _table(
    asked: _Request, ratios: np.ndarray, wish: np.ndarray, refits: int, progress: bool
) -> pd.DataFrame:
    fit, nothing = asked.fit, np.full(len(ratios), np.nan)
    low, high = nothing, nothing
    if fit.samples is not None:
        drawn = _refits(asked, ratios, refits, progress)
        low, high = fit.interval(drawn)
        low, high = (np.clip(end, asked.room.lower, asked.room.upper) for end in (low, high))
    columns: dict[str, object] = {
        "family": list(fit.families),
        "ratio": ratios,
        "low": low,
        "high": high,
        "held_by": asked.room.binding(ratios),
        "unconstrained": wish,
    }
    if asked.supply is not None:
        known = np.isfinite(asked.supply)
        columns["epochs"] = np.where(known, ratios * asked.size[1] / asked.supply, np.nan)
    losses = [np.full(len(ratios), np.nan) for _ in range(3)]
    own = list(asked.model.own)
    for column, value in zip(losses, _losses(asked, ratios), strict=True):
        column[own] = value
    columns |= dict(zip(("loss", "loss_low", "loss_high"), losses, strict=True))
    return pd.DataFrame(columns)


def _losses(asked: _Request, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted loss per target with its interval; NaN where the law says nothing."""
    fit, usable = asked.fit, np.ones(len(asked.fit.targets), dtype=bool)
    if asked.model.separable:
        usable = ratios[list(asked.model.own)] > 0
    point = np.exp(fit.log_loss(*asked.size, ratios[None], unique=asked.unique))[0]
    low = high = np.full(len(point), np.nan)
    if fit.samples is not None:
        drawn = np.exp(fit.log_loss(*asked.size, ratios[None], fit.samples, asked.unique))
        low, high = fit.interval(drawn[:, 0])
    point, low, high = (np.where(usable, value, np.nan) for value in (point, low, high))
    return point, low, high


def _refits(asked: _Request, ratios: np.ndarray, refits: int, progress: bool) -> np.ndarray:
    """Optimal ratios of every bootstrap sample (of the first `refits`, without closed form)."""
    model = asked.samples
    assert model is not None
    if not model.separable:
        model = model.take(np.arange(min(refits, len(model.theta))))
    parts: Iterable[np.ndarray] = best_mixtures(asked.goal, model, asked.room, ratios)
    if progress and not model.separable:
        from rich.console import Console
        from rich.progress import track

        what, bar = "optimising bootstrap samples", Console(stderr=True)
        parts = track(parts, what, total=batches(model), console=bar)
    return np.concatenate(list(parts))


def _notes(asked: _Request, ratios: np.ndarray, repetition: bool) -> list[str]:
    fit = asked.fit
    notes = _share_notes(asked, ratios)
    empty = [family for k, family in enumerate(fit.families) if ratios[k] == 0.0]
    if empty:
        notes.append(
            f"{', '.join(empty)}: no tokens at all; trainers refuse a weight of 0, so give a floor "
            "or leave the data out"
        )
    if asked.supply is not None:
        notes += unlimited_notes(fit, asked.supply)
        if asked.max_epochs is None:
            notes += epoch_notes(fit, asked.size[1], ratios, asked.supply)
    if fit.samples is None:
        notes.append(
            f"no intervals: the fit has no bootstrap; fit with {option('bootstrap', 1000)}"
        )
    if repetition and asked.unique is None:
        notes.append("unique tokens are those of the runs; give a supply for the real ones")
    if "unique" in fit.law.needs and asked.unique is None and not repetition:
        known = fit.runs.unique_tokens is not None
        what = "discounted against the unique tokens of the runs" if known else "not discounted"
        notes.append(f"no supply given: repeated tokens are {what}")
    return notes + reach_notes(fit, *asked.size, ratios)


def _share_notes(asked: _Request, ratios: np.ndarray) -> list[str]:
    """What the shares are not a choice of: one mixture only, or losses that do not gain."""
    fit, room, place = asked.fit, asked.room, own_power(asked.fit.law)
    if len(fit.families) == 1:
        return ["there is one family, so nothing to share out: its ratio is 1"]
    if (~room.held).sum() < 2:
        return ["the bounds leave one mixture only, so nothing was chosen"]
    notes: list[str] = []
    for t, target in enumerate(fit.targets):
        k = asked.model.own[t]
        if place is None or fit.theta[t, place] > 0 or room.held[k] or not asked.goal.weights[t]:
            continue
        low = float(room.lower[k])
        gets = f"its floor ({low:.3g})" if ratios[k] <= low else "what the others leave over"
        notes.append(
            f"{target} does not gain from its ratio under this fit, so it gets {gets}; "
            "set a floor, or look at `diagnose`: its loss may depend on other families"
        )
    return notes


def _by_family(fit: Fit, values: np.ndarray) -> dict[str, float]:
    """Values by family; without those that are unlimited."""
    return {
        family: float(value)
        for family, value in zip(fit.families, values, strict=True)
        if np.isfinite(value)
    }
