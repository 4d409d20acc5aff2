"""Laws side by side on runs that they have not seen.

A law that cannot be fitted to the runs is a row with its reason: the user asked which law to use,
and "not this one, because" is part of the answer. Refused: information criteria on the fitted runs;
they rank laws within the range of the runs, and a proposal is an extrapolation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.budget import counted
from apportion.errors import InputError
from apportion.mixture.comparison.holdout import divide
from apportion.mixture.comparison.regressors import Regressor, regressors
from apportion.mixture.comparison.scores import explained, mean_relative_error, mixture_rank
from apportion.mixture.comparison.verdict import Candidate, Verdict, judge
from apportion.mixture.fit import fit
from apportion.mixture.laws import LAWS, get_law
from apportion.mixture.laws.base import Law
from apportion.mixture.runs import RunTable
from apportion.mixture.table.required import require_table, require_varied

# The mean over targets, and the mean loss, in the column `target` of the table.
AVERAGE, MEAN_LOSS = "average of targets", "mean loss"


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        table: one row a law and target: `law`, `target`, `mean_relative_error`, `r2`, `rank`
            (Spearman's correlation over mixtures, within every (N, D) and then averaged),
            `predicted` (share of the held-out runs that the law can predict), `parameters` (per
            target), `seconds` (one fit of all targets), `status`. Two further targets:
            "average of targets" (of the figures above) and "mean loss" (the figures of the mean
            over targets, which is what an unweighted optimum minimises). A law that could not be
            fitted has one row.
        predictions: one row a held-out run, target and law: `run`, `target`, `law`, `observed`,
            `predicted` (NaN where the law cannot say anything).
        verdict: which law to use and whether that is certain, in words; `str` gives the text.
        holdout: what was held out.
        fitted: how many runs were fitted (on average over folds).
        held_out: how many were predicted.
    """

    table: pd.DataFrame
    predictions: pd.DataFrame
    verdict: Verdict
    holdout: str
    fitted: float
    held_out: int

    def __str__(self) -> str:
        columns = ["law", "mean_relative_error", "r2", "rank", "parameters", "seconds", "status"]
        summary = self.table.loc[self.table["target"].isin(["", AVERAGE]), columns]
        # What stands behind the colon explains; it goes below, where it has room.
        said = summary["status"].str.partition(":")
        shown = summary.assign(status=said[0])
        reasons = [
            f"- {law}: {status}"
            for law, status, why in zip(summary["law"], summary["status"], said[2], strict=True)
            if why
        ]
        lines = [
            f"held out: {self.holdout} ({counted(self.held_out, 'run')}; {self.fitted:.4g} fitted)",
            shown.to_string(index=False, float_format="%.4g"),
            *reasons,
            str(self.verdict),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the predictions, for JSON; unknown numbers are None."""
        table = self.table.astype(object).where(self.table.notna(), None)
        return {
            "holdout": self.holdout,
            "fitted": int(self.fitted) if self.fitted.is_integer() else self.fitted,
            "held_out": self.held_out,
            "best": self.verdict.best,
            "significant": self.verdict.significant,
            "beats_baselines": self.verdict.beats_baselines,
            "verdict": self.verdict.text,
            "table": table.to_dict(orient="records"),
        }


@dataclass
class _Entry:
    """One law or regressor through all divisions."""

    name: str
    baseline: bool
    predicted: Float[np.ndarray, "runs targets"]
    parameters: int | None = None
    seconds: float = 0.0
    status: str = "ok"
    failed: bool = False


def compare(
    runs: RunTable,
    laws: Sequence[str | Law] | None = None,
    *,
    holdout: str | None = None,
    test: RunTable | None = None,
    baselines: bool = True,
    seed: int = 0,
) -> Comparison:
    """Fit every law to a part of the runs and predict the rest.

    Args:
        runs: the run table.
        laws: names or laws; all laws of the package by default.
        holdout: which runs to predict: a condition such as `"params>=1e9"`, `"largest-params"`,
            `"largest-tokens"`, `"folds:5"` (the default) or `"unseen-mixtures:0.2"`; see
            `holdout.splits`.
        test: predict these runs instead, with everything in `runs` fitted.
        baselines: also the nearest mixture, a linear regression, and RegMix's regressor (needs
            lightgbm).
        seed: of random divisions, and of the intervals in the verdict.

    Raises:
        InputError: no law, an unknown one, or one twice; a holdout that is not understood or leaves
            nothing; test runs of other families or targets, or that are among the fitted ones; a
            family with one loss in all runs.
    """
    require_table(runs)
    if seed < 0:
        raise InputError(f"expected a seed from 0 up, got {seed}")
    require_varied(runs)
    chosen = _chosen(laws)
    divisions, what = divide(runs, holdout, test, seed)
    held = [after for _, after in divisions]
    observed = np.concatenate([table.losses for table in held])
    entries = [_run(law.name, False, _of_law(law), divisions) for law in chosen]
    if baselines:
        entries += [
            _run(each.name, True, _of_regressor(each), divisions) for each in regressors(seed)
        ]
    names = [name for table in held for name in table.run]
    cells, mixtures = _groups(held)
    rows = [row for entry in entries for row in _rows(entry, runs, observed, cells, mixtures)]
    verdict = judge(
        [Candidate(e.name, e.baseline, e.parameters, e.predicted) for e in entries if not e.failed],
        observed,
        cells,
        mixtures,
        rank_only=all(_levels_unknown(*division) for division in divisions),
        seed=seed,
    )
    return Comparison(
        table=pd.DataFrame(rows),
        predictions=_long(entries, names, runs.targets, observed),
        verdict=verdict,
        holdout=what,
        fitted=float(np.mean([len(before) for before, _ in divisions])),
        held_out=len(names),
    )


def _chosen(laws: Sequence[str | Law] | None) -> list[Law]:
    """The laws to compare, each once."""
    if laws is not None and (isinstance(laws, str | Law) or not laws):
        raise InputError(
            f'expected a list of laws, such as ["family", "transfer"], got {laws!r}; leave it out '
            "for all laws"
        )
    chosen = [get_law(law) for law in (list(LAWS) if laws is None else laws)]
    names = [law.name for law in chosen]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"expected every law once, got {', '.join(twice)} more than once")
    return chosen


def _groups(held: Sequence[RunTable]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the (N, D) and of the mixture of every held-out run, over all divisions."""
    params, tokens, ratios, losses = (
        np.concatenate([getattr(table, name) for table in held])
        for name in ("params", "tokens", "ratios", "losses")
    )
    together = RunTable.of(params, tokens, ratios, losses, held[0].families, held[0].targets)
    return together.cells(), together.mixtures()


def _run(
    name: str,
    baseline: bool,
    predict: Callable[[RunTable, RunTable], tuple[np.ndarray, int | None]],
    divisions: Sequence[tuple[RunTable, RunTable]],
) -> _Entry:
    shape = (sum(len(after) for _, after in divisions), len(divisions[0][0].targets))
    entry = _Entry(name, baseline, np.full(shape, np.nan))
    parts: list[np.ndarray] = []
    began = time.perf_counter()
    try:
        for before, after in divisions:
            part, entry.parameters = predict(before, after)
            parts.append(part)
    except InputError as error:
        entry.failed = True
        entry.status = f"not fitted: {error}"
        return entry
    entry.seconds = (time.perf_counter() - began) / len(divisions)
    entry.predicted = np.concatenate(parts)
    known = int(np.isfinite(entry.predicted).sum())
    if known < entry.predicted.size:
        entry.status = (
            f"predicts {known} of {entry.predicted.size} losses: it says nothing at a ratio of 0"
        )
    elif all(_levels_unknown(*division) for division in divisions):
        entry.status = (
            "order only: N or D never varied in the fitted runs, and differs in the others"
        )
    return entry


def _of_law(law: Law) -> Callable[[RunTable, RunTable], tuple[np.ndarray, int | None]]:
    def predict(before: RunTable, after: RunTable) -> tuple[np.ndarray, int | None]:
        found = fit(before, law)
        columns: list[np.ndarray] = []
        for k, target in enumerate(before.targets):
            at = after.conditions(target)
            value = np.exp(law.log_loss(found.theta[k], at))
            columns.append(np.where(law.usable(at), value, np.nan))
        return np.stack(columns, axis=-1), found.theta.shape[-1]

    return predict


def _of_regressor(
    regressor: Regressor,
) -> Callable[[RunTable, RunTable], tuple[np.ndarray, int | None]]:
    def predict(before: RunTable, after: RunTable) -> tuple[np.ndarray, int | None]:
        found = regressor.fit(before)
        return found.predict(after), found.parameters

    return predict


def _levels_unknown(before: RunTable, after: RunTable) -> bool:
    """Whether the fitted runs have one N (or D) and the others another: only order carries over."""
    return any(
        len(np.unique(fitted)) == 1 and bool((predicted != fitted[0]).any())
        for fitted, predicted in ((before.params, after.params), (before.tokens, after.tokens))
    )


def _rows(
    entry: _Entry, runs: RunTable, observed: np.ndarray, cells: np.ndarray, mixtures: np.ndarray
) -> list[dict[str, Any]]:
    """Rows of the table for one law: its targets, their average, and the mean loss."""

    def row(target: str, error: float, r2: float, rank: float, share: float) -> dict[str, Any]:
        return {
            "law": entry.name,
            "target": target,
            "mean_relative_error": error,
            "r2": r2,
            "rank": rank,
            "predicted": share,
            "parameters": entry.parameters,
            "seconds": entry.seconds,
            "status": entry.status,
        }

    if entry.failed:
        return [row("", np.nan, np.nan, np.nan, 0.0)]
    columns = [*zip(entry.predicted.T, observed.T, strict=True)]
    columns.append((entry.predicted.mean(axis=1), observed.mean(axis=1)))
    found = [
        (
            mean_relative_error(predicted, seen),
            explained(predicted, seen),
            mixture_rank(predicted, seen, cells, mixtures),
            float(np.isfinite(predicted).mean()),
        )
        for predicted, seen in columns
    ]
    average = np.array(found[:-1]).mean(axis=0).tolist()
    return [
        *(row(target, *each) for target, each in zip(runs.targets, found[:-1], strict=True)),
        row(AVERAGE, *average),
        row(MEAN_LOSS, *found[-1]),
    ]


def _long(
    entries: Sequence[_Entry], names: Sequence[str], targets: Sequence[str], observed: np.ndarray
) -> pd.DataFrame:
    parts = [
        pd.DataFrame(
            {
                "run": np.repeat(np.array(names, dtype=object), len(targets)),
                "target": np.tile(np.array(targets, dtype=object), len(names)),
                "law": entry.name,
                "observed": observed.reshape(-1),
                "predicted": entry.predicted.reshape(-1),
            }
        )
        for entry in entries
        if not entry.failed
    ]
    columns = ["run", "target", "law", "observed", "predicted"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
