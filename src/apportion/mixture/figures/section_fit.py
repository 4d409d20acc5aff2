"""What stands on the page of every fit: trust, parameters, residuals, and how it was made."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import numpy as np
import pandas as pd
import scipy

import apportion
from apportion.budget import counted, format_count
from apportion.mixture.figures.parts import Section, Table
from apportion.mixture.figures.wording import fitted, percent
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable

_WORST = 12
UNTESTED = (
    "whether a family's loss depends on its own ratio alone (hypothesis 1) and whether gamma is "
    "constant is not tested by a fit: apportion mixture diagnose RUNS"
)


def runs_digest(runs: RunTable) -> str:
    """SHA-256 of the runs in their file layout: says whether two results rest on the same runs."""
    return hashlib.sha256(runs.to_frame().to_csv(index=False).encode("utf-8")).hexdigest()


def trust(fit: Fit, diagnosed: bool, warning: str | None = None) -> Section:
    """The status of the fit in words, and its quality on the fitted runs.

    Args:
        fit: the fit.
        diagnosed: the page also has a diagnosis; otherwise it is said where to get one.
        warning: what speaks against the fit on runs that it has not seen.
    """
    quality = fit.quality()
    frame = pd.DataFrame(
        {
            "family": quality["family"],
            "runs": quality["runs"],
            "R²": [f"{value:.4f}" for value in quality["r2"]],
            "mean relative error": [f"{value:.2%}" for value in quality["mean_relative_error"]],
        }
    )
    tone = "good" if fit.status.ok else "bad" if "not to be trusted" in fit.status.text else "care"
    notes = fit.status.notes if diagnosed else (*fit.status.notes, UNTESTED)
    return Section(
        "Can this fit be trusted?",
        fit.status.text if warning is None else f"{fit.status.text}; {warning}",
        tone if warning is None else "bad",
        points=notes,
        tables=(Table("On the fitted runs", frame),),
    )


def parameters(fit: Fit) -> Section:
    """The parameters with intervals; those that the runs leave open are not shown as numbers."""
    rows = fit.parameters.to_dict("records")
    meanings: dict[str, str] = {}
    for row in rows:
        meanings.setdefault(str(row["parameter"]), str(row["meaning"]))
    # Not every family has every parameter: none has a term for what it takes from itself.
    shown = pd.DataFrame("", index=list(fit.targets), columns=list(meanings))
    for row in rows:
        numbers = row["value"], row["low"], row["high"]
        text = fitted(*numbers, row["bound"], 3) if row["determined"] or row["bound"] else "open"
        shown.loc[row["family"], row["parameter"]] = text
    shown = shown.rename_axis("family").reset_index()
    note = f"Intervals at {fit.level:.0%}. " if fit.samples is not None else ""
    if not all(row["determined"] for row in rows):
        note += "“open”: these runs do not determine it; the full table has the fitted number."
    listed = pd.DataFrame({"parameter": list(meanings), "meaning": list(meanings.values())})
    plain = fit.parameters.drop(columns="meaning")
    return Section(
        "Parameters",
        text=(f"L = {fit.law.formula}, N in millions, D in billions of tokens.",),
        tables=(
            Table("", shown, note),
            Table("What they mean", listed, folded=True),
            Table("All parameters with intervals", plain, folded=True),
        ),
    )


def residuals(fit: Fit) -> Section:
    """Spread of the residuals, and the largest."""
    residual = fit.residuals()
    order = np.argsort(-np.abs(np.nan_to_num(residual)), axis=None, kind="stable")[:_WORST]
    rows: list[dict[str, object]] = []
    for run, k in zip(*np.unravel_index(order, residual.shape), strict=True):
        if np.isnan(residual[run, k]):
            continue
        observed = float(fit.runs.losses[run, k])
        rows.append(
            {
                "run": fit.runs.run[run],
                "family": fit.targets[k],
                "N": format_count(float(fit.runs.params[run])),
                "D": format_count(float(fit.runs.tokens[run])),
                "own ratio": float(fit.runs.ratios[run, fit.runs.family_index(fit.targets[k])]),
                "observed": f"{observed:.4f}",
                "fitted": f"{observed * np.exp(residual[run, k]):.4f}",
                "error": percent(float(np.expm1(residual[run, k]))),
            }
        )
    spread = pd.DataFrame(
        [
            {
                "family": target,
                "mean": percent(float(np.nanmean(residual[:, k]))),
                "standard deviation": f"{np.nanstd(residual[:, k]):.2%}",
                "largest": f"{np.nanmax(np.abs(residual[:, k])):.2%}",
            }
            for k, target in enumerate(fit.targets)
        ]
    )
    return Section(
        "Residuals",
        text=("log fitted − log observed loss, which is about the relative error.",),
        tables=(
            Table("By family", spread),
            Table("The largest", pd.DataFrame(rows), folded=True),
        ),
    )


def made(fit: Fit) -> Section:
    """Law, method, runs and versions."""
    samples = (
        "none" if fit.samples is None else f"{counted(len(fit.samples), 'refit')}, seed {fit.seed}"
    )
    facts = {
        "law": f"{fit.law.name}: {fit.law.formula}",
        "paper": fit.law.paper,
        "objective": "Huber (delta 0.001) on log losses, summed over runs",
        "bootstrap": samples,
        "intervals": "none" if fit.samples is None else f"{fit.level:.0%}",
        "runs": str(fit.runs),
        "SHA-256 of the runs": runs_digest(fit.runs),
        "versions": (
            f"apportion {apportion.__version__}, Python {platform.python_version()}, "
            f"numpy {np.__version__}, scipy {scipy.__version__}, pandas {pd.__version__}"
        ),
    }
    frame = pd.DataFrame({"what": list(facts), "value": list(facts.values())})
    return Section("How this was made", tables=(Table("", frame),))


def summary(fit: Fit) -> dict[str, Any]:
    """The fit without its bootstrap, to be saved from the page."""
    return {
        "apportion": apportion.__version__,
        "law": fit.law.name,
        "formula": fit.law.formula,
        "paper": fit.law.paper,
        "status": {"ok": fit.status.ok, "text": fit.status.text, "notes": fit.status.notes},
        "runs": str(fit.runs),
        "runs_sha256": runs_digest(fit.runs),
        "level": fit.level,
        "bootstrap": 0 if fit.samples is None else len(fit.samples),
        "seed": fit.seed,
        "parameters": fit.parameters,
        "quality": fit.quality(),
    }
