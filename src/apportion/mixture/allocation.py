"""How large a model, on how many tokens, for a budget: every choice with its best ratios.

A budget is given in training FLOPs (6 N D, Kaplan et al. 2020), in tokens, or in hours of a machine
whose rate is known. Each model size N that fits takes the tokens D that the budget has left for it,
and the sampling ratios that are best at that N and D; what they are ranked by is the mean of the
predicted losses that the objective counts; a loss over one of the same size would not compare.

Refused: a continuous optimum over N. Its last digits would rest on the law far outside the runs,
and nobody builds a model of 1.2371B parameters; sizes that the intervals don't tell from the best
one are marked as being as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.budget import MOST_PARAMS, MOST_TOKENS, parse_params, parse_tokens
from apportion.errors import InputError, option
from apportion.mixture.candidates import training_flops
from apportion.mixture.optimize import Amounts, optimize
from apportion.mixture.proposal.objective import LossModel, Objective, Spec
from apportion.mixture.proposal.optimum import records
from apportion.mixture.supply import parse_supply

if TYPE_CHECKING:
    from apportion.mixture.fit import Fit

SIZES = 9
"""Model sizes that are compared where none are named."""
FEWEST, RATIO = 2.0, 20.0
"""Tokens a parameter: fewer are no training; about so many were best in Hoffmann et al. 2022, and
sizes are spread around it."""
SPREAD = 16.0
"""Times smaller and larger than that size, at most."""


@dataclass(frozen=True)
class Allocation:
    """Model sizes that a budget pays for, best first.

    Attributes:
        table: one row a size: `params`, `tokens`, `tokens_per_param`, `flops`, `hours` (NaN where
            no rate is known), `loss` (with the best ratios, mean over the families, weighted
            as the objective does; nats per token), `low`, `high` (interval of its expectation; NaN
            without a bootstrap), `verdict`.
        ratios: the best sampling ratios of every row, by family.
        notes: what to know, one sentence each.
        budget: what was given, by its name.
        rate: FLOPs a second, if known.
        law: name of the law.
        level: coverage of the intervals.
    """

    table: pd.DataFrame
    ratios: tuple[dict[str, float], ...]
    notes: tuple[str, ...]
    budget: dict[str, float]
    rate: float | None
    law: str
    level: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values; what is not finite becomes null."""
        rows = [
            row | {"ratios": ratios}
            for row, ratios in zip(records(self.table), self.ratios, strict=True)
        ]
        return {
            "budget": self.budget,
            "flops_per_second": self.rate,
            "law": self.law,
            "level": self.level,
            "options": rows,
            "notes": list(self.notes),
        }


def allocate(
    fit: Fit,
    *,
    flops: float | None = None,
    tokens: float | str | None = None,
    hours: float | None = None,
    flops_per_second: float | None = None,
    params: Sequence[float | str] = (),
    objective: Spec = "normalized",
    supply: Amounts | None = None,
    max_epochs: float | None = None,
    force: bool = False,
) -> Allocation:
    """Model sizes N, and the tokens D that a budget leaves them, by predicted loss.

    Args:
        fit: a fit, with a bootstrap for intervals.
        flops: of the whole training, 6 N D.
        tokens: the most there are to train on; alone, every size takes them all.
        hours: of machines with `flops_per_second`.
        flops_per_second: what training reaches on them: 6 N D over the seconds of a known run.
        params: the sizes to choose from; absent: some around 20 tokens a parameter.
        objective: what the ratios of every size are best for, as for `optimize`.
        supply: unique tokens per family.
        max_epochs: the most passes over a family's supply.
        force: go on with a fit that does not support the objective.

    Raises:
        InputError: no budget, one that pays for no size, or a request that `optimize` refuses.
        WeakFitError: the fit does not determine what the objective needs.
    """
    rate = flops_per_second
    budget = _budget(flops, tokens, hours, rate)
    paid = None if hours is None or rate is None else hours * 3600 * rate
    compute = min(budget.get("flops", np.inf), np.inf if paid is None else paid)
    most = budget.get("tokens", MOST_TOKENS)
    named = [parse_params(each) for each in params]
    sizes = sorted(set(named or _sizes(fit, compute, most)))
    plans = [(size, min(most, compute / (6 * size))) for size in sizes]
    amounts = None if supply is None else parse_supply(supply)
    known = None if amounts is None else fit.amounts(amounts)
    unique = known if "unique" in fit.law.needs else None
    # Of the losses themselves: a loss over one of the same size would not compare between sizes.
    counts = replace(Objective.parse(objective, fit.targets), normalized=False, worst=False)
    rows, chosen = [], []
    fitting, notes = _paid_for(plans)
    for size, seen in fitting:
        best = optimize(
            fit, size, seen, objective=objective, supply=amounts, max_epochs=max_epochs,
            refits=0, force=force,
        )  # fmt: skip
        drawn = _mean_losses(fit, counts, (size, seen), unique, best.ratios)
        rows.append(
            {
                "params": size,
                "tokens": seen,
                "tokens_per_param": seen / size,
                "flops": training_flops(size, seen),
                "hours": training_flops(size, seen) / rate / 3600 if rate else np.nan,
                "loss": drawn[0],
                "low": np.nan,
                "high": np.nan,
                "drawn": drawn,
            }
        )
        chosen.append(best.ratios)
        notes += [note for note in best.notes if note not in notes]
    order = sorted(range(len(rows)), key=lambda k: rows[k]["loss"])
    rows = _judged([rows[k] for k in order], fit)
    return Allocation(
        table=pd.DataFrame(rows),
        ratios=tuple(chosen[k] for k in order),
        notes=tuple(notes),
        budget=budget,
        rate=rate,
        law=fit.law.name,
        level=fit.level,
    )


def _budget(
    flops: float | None, tokens: float | str | None, hours: float | None, rate: float | None
) -> dict[str, float]:
    """What was given, checked."""
    found: dict[str, float] = {}
    for name, value in (("flops", flops), ("hours", hours), ("flops_per_second", rate)):
        if value is None:
            continue
        if not 0 < value < np.inf:
            raise InputError(f"expected {option(name)} above 0, got {value}")
        if name != "flops_per_second":
            found[name] = float(value)
    if tokens is not None:
        found["tokens"] = parse_tokens(tokens)
    if not found:
        raise InputError(
            f"expected a budget: {option('flops', 1e20)}, {option('tokens', '50B')} or "
            f"{option('hours', 24)}"
        )
    if hours is not None and rate is None:
        raise InputError(
            f"expected the FLOPs a second that training reaches beside {option('hours')}: "
            f"{option('flops_per_second', 4e13)}"
        )
    return found


def _sizes(fit: Fit, compute: float, most: float) -> list[float]:
    """Sizes to compare: powers of two around 20 tokens a parameter, in round numbers."""
    middle = min((compute / (6 * RATIO)) ** 0.5, most / RATIO)
    grid = [float(f"{size:.1g}") for size in middle * np.geomspace(1 / SPREAD, SPREAD, SIZES)]
    smallest = float(np.min(fit.runs.params))
    # Of sizes far below any run the law knows nothing.
    kept = [size for size in grid if smallest / SPREAD <= size <= MOST_PARAMS]
    return kept or [smallest]


def _mean_losses(
    fit: Fit,
    goal: Objective,
    size: tuple[float, float],
    unique: Float[np.ndarray, " families"] | None,
    ratios: dict[str, float],
) -> Float[np.ndarray, " draws"]:
    """Mean loss over the families that count: of the fit, then of every bootstrap sample."""
    theta = fit.theta[None]
    if fit.samples is not None:
        theta = np.concatenate([theta, fit.samples])
    model = LossModel.of(fit, *size, unique, theta)
    return goal.value(model, fit.shares(ratios)[None]) / goal.weights.sum()


def _judged(rows: list[dict[str, Any]], fit: Fit) -> list[dict[str, Any]]:
    """Rows with their intervals, and how each compares with the best, draw by draw."""
    best = rows[0]["drawn"]
    for k, row in enumerate(rows):
        drawn = row.pop("drawn")
        if len(drawn) > 1:
            row["low"], row["high"] = (float(end[0]) for end in fit.interval(drawn[1:, None]))
        if k == 0:
            row["verdict"] = "best"
        elif len(drawn) < 2:
            row["verdict"] = "no interval"
        else:
            # Both sides of a draw rest on the same refit.
            low, _ = fit.interval(((drawn - best) / best)[1:, None])
            row["verdict"] = "worse" if low[0] > 0 else "as good"
    return rows


def _paid_for(plans: list[tuple[float, float]]) -> tuple[list[tuple[float, float]], list[str]]:
    """Sizes that see enough tokens, and a note about the others.

    Raises:
        InputError: there are none.
    """
    fitting = [(size, seen) for size, seen in plans if seen >= FEWEST * size]
    if not fitting:
        size, seen = plans[0]
        raise InputError(
            f"expected a budget that gives some size {FEWEST:g} tokens a parameter at least; the "
            f"smallest, of {size:.3g} parameters, would see {seen:.3g} tokens: raise the budget, "
            f"or give a smaller size: {option('params', f'{size / 10:.0f}')}"
        )
    lost = [f"{size:.3g}" for size, seen in plans if seen < FEWEST * size]
    if not lost:
        return fitting, []
    return fitting, [f"left out, with under {FEWEST:g} tokens a parameter: N = {', '.join(lost)}"]
