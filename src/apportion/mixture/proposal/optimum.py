"""The result of `optimize`: ratios, what they rest on, and what they gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from apportion.budget import format_count

NO_GAIN = "no significant gain"
GAIN = "significant gain"
SMALL = "smaller than what another seed changes"
WORSE = "worse than it"
UNKNOWN = "no interval"
# No loss or ratio is larger; the digits of such a number say nothing.
_LONG = 1e6


@dataclass(frozen=True)
class Gain:
    """How much lower the objective is than that of a baseline, relative to the baseline.

    Attributes:
        over: the baseline: the best of those that keep the constraints.
        value: (objective of the baseline - objective of the proposal) / objective of the baseline.
        low, high: interval; NaN without a bootstrap.
        verdict: in words; `"no significant gain"` where the interval covers 0, `"smaller than what
            another seed changes"` where it does not and the gain is not above `another_seed`.
        another_seed: by how much, relative, the objective changes with the seed of a run (see
            `gains.another_seed`); NaN where no run was repeated.
    """

    over: str
    value: float
    low: float
    high: float
    verdict: str
    another_seed: float = math.nan

    @property
    def significant(self) -> bool:
        """Whether the interval lies above 0 and the gain above what another seed changes."""
        return self.verdict == GAIN

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" ({self.low:+.2%} to {self.high:+.2%})"
        seed = f" ({self.another_seed:.2%})" if self.verdict == SMALL else ""
        return f"{self.value:+.2%}{interval} over {self.over}: {self.verdict}{seed}"


@dataclass(frozen=True)
class Optimum:
    """Optimal sampling ratios for one model size and token budget.

    Attributes:
        ratios: the proposal, per family.
        table: one row a family: `family`, `ratio`, `low`, `high`, `held_by` (the bound that holds
            it, if any), `unconstrained` (the ratio without floors, caps and supply), `epochs` (with
            a supply; NaN where it is unlimited), `loss`, `loss_low`, `loss_high` (nats per token;
            NaN where the law says nothing, at ratio 0).
        comparison: one row a mixture: `mixture`, `objective`, `gain`, `low`, `high` (relative gain
            of the proposal over it), `verdict`, `feasible`.
        gain: the gain over the best baseline that keeps the constraints.
        kkt: residual of the optimality conditions (see `kkt.kkt_residual`).
        notes: what to know, one sentence each.
        objective: name of the objective.
        value: the objective at the proposal.
        law: name of the law.
        params, tokens: N and D.
        level: coverage of the intervals.
        mixtures: ratios of every compared mixture, per family.
        supply: tokens per family, if given.
        max_epochs: limit on passes over a family, if given.
    """

    ratios: dict[str, float]
    table: pd.DataFrame
    comparison: pd.DataFrame
    gain: Gain
    kkt: float
    notes: tuple[str, ...]
    objective: str
    value: float
    law: str
    params: float
    tokens: float
    level: float
    mixtures: Mapping[str, Mapping[str, float]]
    supply: Mapping[str, float] | None = None
    max_epochs: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values; what is not finite becomes null."""
        return {
            "objective": self.objective,
            "value": _plain(self.value),
            "law": self.law,
            "params": self.params,
            "tokens": self.tokens,
            "level": self.level,
            "ratios": self.ratios,
            "table": records(self.table),
            "comparison": records(self.comparison),
            "mixtures": {name: dict(ratios) for name, ratios in self.mixtures.items()},
            "gain": {
                "over": self.gain.over,
                "value": _plain(self.gain.value),
                "low": _plain(self.gain.low),
                "high": _plain(self.gain.high),
                "verdict": self.gain.verdict,
                "another_seed": _plain(self.gain.another_seed),
            },
            "kkt": self.kkt,
            "supply": None if self.supply is None else dict(self.supply),
            "max_epochs": self.max_epochs,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        known = bool(self.table["low"].notna().any())
        head = (
            f"Optimal ratios for N = {format_count(self.params)}, D = {format_count(self.tokens)} "
            f"({self.law} law, objective {self.objective}"
            f"{f', intervals at {self.level:.0%}' if known else ''})"
        )
        parts = [head, "", _text(self._shown_table()), "", _text(self._shown_comparison())]
        parts += ["", f"gain: {self.gain}", f"KKT residual {self.kkt:.1e}"]
        return "\n".join(parts + [f"- {note}" for note in self.notes])

    def _shown_table(self) -> pd.DataFrame:
        shown = pd.DataFrame({"family": self.table["family"]})
        for name, low, high, digits in (
            ("ratio", "low", "high", 3),
            ("loss", "loss_low", "loss_high", 4),
        ):
            shown[name] = [
                _interval(*values, digits)
                for values in zip(self.table[name], self.table[low], self.table[high], strict=True)
            ]
            if name == "ratio":
                shown["held by"] = self.table["held_by"]
                shown["unconstrained"] = [f"{value:.3f}" for value in self.table["unconstrained"]]
                if "epochs" in self.table:
                    shown["epochs"] = [shown_epochs(value) for value in self.table["epochs"]]
        return shown

    def _shown_comparison(self) -> pd.DataFrame:
        rows = self.comparison
        shown = pd.DataFrame(
            {
                "mixture": rows["mixture"]
                + ["" if ok else " (breaks a bound)" for ok in rows["feasible"]],
                "objective": [_number(value, ".5g") for value in rows["objective"]],
                "gain": [_number(value, "+.2%") for value in rows["gain"]],
                "interval": [
                    "" if math.isnan(low) else f"{low:+.2%} to {high:+.2%}"
                    for low, high in zip(rows["low"], rows["high"], strict=True)
                ],
                "verdict": rows["verdict"],
            }
        )
        return shown if bool(rows["low"].notna().any()) else shown.drop(columns="interval")


def shown_epochs(value: float) -> str:
    """Passes over a supply; NaN is one without a limit."""
    return "unlimited" if math.isnan(value) else f"{value:.3g}"


def _interval(value: float, low: float, high: float, digits: int) -> str:
    if not math.isfinite(value):
        return "—"
    text = _fixed(value, digits)
    if math.isnan(low):
        return text
    return f"{text} ({_fixed(low, digits)}–{_fixed(high, digits)})"


def _fixed(value: float, digits: int) -> str:
    """So many digits behind the point, unless there are too many before it."""
    return f"{value:.{digits}f}" if abs(value) < _LONG else f"{value:.1e}".replace("e+", "e")


def _number(value: float, form: str) -> str:
    if math.isnan(value):
        return ""
    return format(value, form) if math.isfinite(value) else "infinite"


def _text(frame: pd.DataFrame) -> str:
    return frame.to_string(index=False)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain JSON values; what is not finite becomes None."""
    return [
        {str(name): _plain(value) for name, value in row.items()}
        for row in frame.to_dict(orient="records")
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
