"""A fit, and what was made of it, as plain sections for a page: text, tables and figures.

Nothing here knows about HTML; `apportion.report.write_page` sets these sections, and anything else
may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from apportion.budget import counted, format_count
from apportion.mixture.diagnose import Diagnosis
from apportion.mixture.figures.heldout import heldout_table, unseen_warning
from apportion.mixture.figures.parts import Page, Picture, Section, Table
from apportion.mixture.figures.section_diagnosis import diagnosis_sections
from apportion.mixture.figures.section_fit import made, parameters, residuals, summary, trust
from apportion.mixture.figures.wording import intervals, percent
from apportion.mixture.plot import plot_heldout, plot_losses, plot_ratios, svg
from apportion.mixture.proposal.optimum import Optimum, shown_epochs
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable


def report_page(
    fit: Fit,
    *,
    optimum: Optimum | None = None,
    diagnosis: Diagnosis | None = None,
    heldout: RunTable | None = None,
    predictions: Mapping[str, pd.DataFrame] | None = None,
) -> Page:
    """Everything that is known about a fit, for one page.

    Args:
        fit: the fit.
        optimum: proposed ratios, from `fit.optimize`.
        diagnosis: of the same runs, from `diagnose(fit.runs, fit=fit)`.
        heldout: runs that the fit has not seen.
        predictions: tables of `fit.predict`, by what was asked.

    Raises:
        InputError: held-out runs with other families.
        MissingExtraError: matplotlib is not installed.
    """
    unseen = None if heldout is None else heldout_table(fit, heldout)
    warning = None if unseen is None else unseen_warning(fit, unseen)
    sections = [trust(fit, diagnosis is not None, warning)]
    data: dict[str, Any] = {"fit": summary(fit)}
    if optimum is not None:
        sections.append(_proposal(optimum))
        data["optimum"] = optimum.to_dict()
    if predictions:
        tables = tuple(Table(name, _losses(frame)) for name, frame in predictions.items())
        sections.append(Section("Predicted losses", tables=tables))
        data["predictions"] = dict(predictions)
    sections.append(_lines(fit))
    if heldout is not None and unseen is not None:
        sections.append(_heldout(fit, heldout, unseen, warning is None))
        data["heldout"] = unseen
    if diagnosis is not None:
        sections += diagnosis_sections(diagnosis)
        data["diagnosis"] = diagnosis.to_dict()
    sections += [parameters(fit), residuals(fit), made(fit)]
    size = f"{counted(len(fit.families), 'family', 'families')}, {counted(len(fit.runs), 'run')}"
    title = f"Data mixture: {size}"
    lead = f"{', '.join(fit.families)}; {fit.runs.spans()}; {fit.law.name} law."
    return Page(title, lead, tuple(sections), {"results.json": data})


def _proposal(optimum: Optimum) -> Section:
    table, rows = optimum.table, optimum.comparison
    ratios = pd.DataFrame({"family": table["family"]})
    ratios["ratio"] = intervals(table, "ratio", "low", "high", 3)
    ratios["predicted loss"] = intervals(table, "loss", "loss_low", "loss_high", 3)
    if any(table["held_by"].tolist()):
        ratios["held by"] = table["held_by"]
        ratios["unconstrained"] = [f"{value:.3f}" for value in table["unconstrained"]]
    if "epochs" in table:
        ratios["epochs"] = [shown_epochs(value) for value in table["epochs"]]
    compared = pd.DataFrame(
        {
            "mixture": rows["mixture"],
            "objective": [f"{value:.4f}" for value in rows["objective"]],
            "gain of the proposal": [percent(value) for value in rows["gain"]],
            "interval": [
                "–" if np.isnan(low) else f"{percent(low)} to {percent(high)}"
                for low, high in zip(rows["low"], rows["high"], strict=True)
            ],
            "verdict": rows["verdict"],
            "keeps the bounds": rows["feasible"],
        }
    )
    known = bool(table[["low", "high"]].notna().to_numpy().all())
    if not known:
        compared = compared.drop(columns="interval")
    size = f"N = {format_count(optimum.params)}, D = {format_count(optimum.tokens)}"
    caption = (
        f"Proposed sampling ratios for {size} under the {optimum.law} law, beside mixtures that "
        f"need no runs{f'; intervals at {optimum.level:.0%}' if known else ''}."
    )
    mixtures = pd.DataFrame(
        [
            {"mixture": name, **{family: f"{share:.4f}" for family, share in shares.items()}}
            for name, shares in optimum.mixtures.items()
        ]
    )
    return Section(
        f"Sampling ratios for {size}",
        f"Gain: {optimum.gain}",
        "good" if optimum.gain.significant else "care",
        points=optimum.notes,
        pictures=(Picture(svg(plot_ratios(optimum)), caption),),
        tables=(
            Table("Proposal", ratios, f"Loss in nats per token; objective: {optimum.objective}."),
            Table("Compared with", compared, "The objective is minimised: less is better."),
            Table("Ratios of all mixtures", mixtures, folded=True),
        ),
    )


def _lines(fit: Fit) -> Section:
    band = "" if fit.samples is None else f" The bands are {fit.level:.0%} bootstrap intervals."
    rest = (
        " The law looks at the other families too: the rest is split as on average in the runs."
        if "others" in fit.law.needs
        else ""
    )
    pictures = tuple(
        Picture(
            svg(plot_losses(fit, [target])),
            f"Loss of {target} against its own sampling ratio, observed and fitted per (N, D).",
        )
        for target in fit.targets
    )
    text = f"Points are runs, lines the fitted {fit.law.name} law. Both axes are logarithmic."
    return Section("Loss against the own ratio", text=(text + band + rest,), pictures=pictures)


def _heldout(fit: Fit, runs: RunTable, table: pd.DataFrame, good: bool) -> Section:
    names = ["observed", "low", "high", "error"]
    observed, low, high, error = table[names].to_numpy(dtype=float).T
    points = [
        f"the largest error is {np.abs(error).max():.2%}; on average the predictions are "
        f"{percent(float(error.mean()))} off (below 0: too low)"
    ]
    if fit.samples is not None:
        inside = float(((observed >= low) & (observed <= high)).mean())
        points.append(
            f"{inside:.0%} of the observed losses lie in the {fit.level:.0%} interval of the "
            "expected loss, which leaves out the noise of the single run"
        )
    own = {family: error[(table["family"] == family).to_numpy()] for family in fit.targets}
    by_family = pd.DataFrame(
        [
            {
                "family": family,
                "losses": len(each),
                "mean relative error": f"{np.abs(each).mean():.2%}",
                "mean error with its sign": percent(float(each.mean())),
            }
            for family, each in own.items()
            if len(each)
        ]
    )
    caption = "Predicted against observed loss of held-out runs, and the relative error."
    return Section(
        "Runs that the fit has not seen",
        f"mean relative error {np.abs(error).mean():.2%} over {counted(len(runs), 'run')}",
        "good" if good else "bad",
        points=tuple(points),
        pictures=(Picture(svg(plot_heldout(fit, runs)), caption),),
        tables=(Table("By family", by_family), Table("Every prediction", table, folded=True)),
    )


def _losses(frame: pd.DataFrame) -> pd.DataFrame:
    shown = pd.DataFrame({"family": frame["family"]})
    shown["loss (nats per token)"] = intervals(frame, "loss", "low", "high", 3)
    if "bits_per_byte" in frame:
        shown["bits per byte"] = [f"{value:.4f}" for value in frame["bits_per_byte"]]
    return shown
