"""A diagnosis in words: every section answers one question, then says what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from apportion.budget import counted
from apportion.errors import option
from apportion.mixture.diagnosis.crosseffect import STEP
from apportion.mixture.diagnosis.gamma import COLLAPSED
from apportion.mixture.result import Fit

_MOST_LINES = 8
_MOST_NAMED = 5
_FOUND = ("large", "small")
Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Section:
    """One question of the report.

    Attributes:
        title: the question.
        answer: one sentence.
        lines: what the answer rests on, one sentence each; two leading blanks make it a detail of
            the line before.
    """

    title: str
    answer: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        points = (f"    {line}" if line.startswith("  ") else f"  - {line}" for line in self.lines)
        return "\n".join([f"{self.title}: {self.answer}", *points])


def hypothesis_verdicts(pairs: pd.DataFrame, spread: pd.DataFrame, alpha: float) -> list[str]:
    """One verdict a family, in the order of `spread`, from its pairs and its within-cell spread."""
    out: list[str] = []
    for row in _rows(spread):
        found = {pair["verdict"] for pair in _rows(pairs) if pair["family"] == row["family"]}
        spreads = row["p_holm"] < alpha
        if "large" in found or spreads:
            out.append("fails")
        elif "small" in found:
            out.append("holds apart from small effects")
        elif "unclear" in found:
            out.append("unclear")
        else:
            out.append("holds" if "none" in found or row["p_holm"] >= alpha else "not testable")
    return out


def sections(tables: Tables, fit: Fit, alpha: float) -> tuple[Section, ...]:
    """The report in words, in the order in which it is read."""
    found = [
        _hypothesis(tables, alpha),
        _gamma(tables, alpha),
        _exponents(tables["exponents"], fit),
        _unusable(tables["unusable"], len(fit.runs)),
    ]
    if len(tables["requests"]):
        lines = tuple(tables["requests"]["words"])
        factor = tables["requests"][["params_factor", "tokens_factor"]].to_numpy(dtype=float)
        outside = (np.abs(factor - 1) > 1e-9).any(axis=1)
        outside |= tables["requests"]["hull_distance"].to_numpy(dtype=float) > 0.01
        count = int(outside.sum())
        answer = f"{count} of {len(lines)} {'lies' if count == 1 else 'lie'} outside the runs"
        found.append(Section("How far do the requested predictions extrapolate?", answer, lines))
    found += _advice(tables)
    return tuple(found)


def _hypothesis(tables: Tables, alpha: float) -> Section:
    title = "Hypothesis 1 (a family's loss depends on its own ratio, not on how the rest is split)"
    frame, pairs = tables["hypothesis"], tables["pairs"]
    by: dict[str, list[str]] = {}
    for row in _rows(frame):
        by.setdefault(row["verdict"], []).append(row["family"])
    if "fails" in by:
        answer = f"FAILS for {', '.join(by['fails'])}"
    elif set(by) == {"not testable"}:
        few = len(pairs) <= 2
        reason = "with fewer than three families there is no split of the rest" if few else (
            "no run changes the split among the others at a fixed own ratio"
        )  # fmt: skip
        answer = f"cannot be tested: {reason}"
    elif "holds apart from small effects" in by:
        answer = "holds apart from effects below the noise of one run"
    elif "unclear" in by:
        answer = "not refuted, but effects above the noise cannot be excluded everywhere"
    else:
        answer = "holds, as far as these runs can tell"
    lines = [_noise_line(frame), *_spread_lines(tables["spread"], alpha)]
    lines += _pair_lines(pairs)
    blind = by.get("not testable", [])
    if blind and set(by) != {"not testable"}:
        lines.append(f"not testable for {', '.join(blind)}: too few splits at a fixed own ratio")
    ways = {row["family"]: row["method"] for row in _rows(frame) if row["method"] != "none"}
    free = [family for family, way in ways.items() if way == "cells"]
    if ways:
        lines.append(
            f"effects come from exact cells (same N, D and own ratio; no law assumed) for "
            f"{', '.join(free) or 'no family'}, and from what the fitted law leaves for "
            f"{', '.join(f for f in ways if f not in free) or 'no family'}"
        )
    return Section(title, answer, tuple(lines))


def _noise_line(frame: pd.DataFrame) -> str:
    first = _rows(frame)[0]
    if not np.isfinite(frame["noise"].to_numpy(dtype=float)).any():
        return (
            "no run was repeated with another seed (to another loss), and these runs leave nothing "
            "else to judge the seed noise by; repeat a few with another seed"
        )
    values = ", ".join(f"{row['family']} {row['noise']:.2%}" for row in _rows(frame))
    if first["noise_source"] == "repeats":
        count = int(first["noise_freedom"])
        return f"seed noise of one run, from {count} repeated run{'s' * (count != 1)}: {values}"
    return (
        "no run was repeated with another seed (to another loss), so the seed noise is not known; "
        f"in its place stand the residuals of law and cross-effects, an upper bound: {values}"
    )


def _spread_lines(spread: pd.DataFrame, alpha: float) -> list[str]:
    lines: list[str] = []
    for row in _rows(spread):
        if row["cells"] and (row["p_holm"] < alpha or (row["ratio"] > 2 and np.isnan(row["p"]))):
            p = "" if np.isnan(row["p"]) else f", corrected p = {row['p_holm']:.2g}"
            lines.append(
                f"{row['family']}: at the same N, D and own ratio the loss spreads by "
                f"{row['spread']:.2%} (up to {row['widest']:.2%}), {row['ratio']:.1f} times what "
                f"noise explains{p}"
            )
    if not any(row["cells"] for row in _rows(spread)):
        lines.append("no two mixtures share N, D and an own ratio: no spread within cells to see")
    return lines


def _pair_lines(pairs: pd.DataFrame) -> list[str]:
    tested = [row for row in _rows(pairs) if row["verdict"] != "not testable"]
    if not tested:
        return []
    found = [row for row in tested if row["verdict"] in _FOUND]
    reach = float(np.median([(row["high"] - row["low"]) / 2 for row in tested]))
    lines = [
        f"{len(found)} of {len(tested)} ordered pairs with an effect (corrected p); "
        f"half-width of an interval: {reach:.2g} nats for {STEP:g} of share moved"
    ]
    affected = list(dict.fromkeys(row["family"] for row in found))
    if affected:
        lines.append(
            f"nats for moving {STEP:g} of share to the family named, from the other families "
            "equally (so a helpful family makes the rest look harmful):"
        )
    for family in affected[:_MOST_LINES]:
        rows = [row for row in found if row["family"] == family]
        rows.sort(key=lambda row: -abs(row["effect"]))
        lines.append(f"  {family}: " + "; ".join(_effect(row) for row in rows[:_MOST_NAMED]))
    if len(affected) > _MOST_LINES:
        lines.append(f"and {len(affected) - _MOST_LINES} more, see the table of pairs")
    return lines


def _effect(row: Mapping[str, Any]) -> str:
    size = "large" if row["verdict"] == "large" else "small: below the noise of a run"
    return (
        f"{row['other']} {row['effect']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] "
        f"p = {row['p_holm']:.1g} ({size})"
    )


def _gamma(tables: Tables, alpha: float) -> Section:
    title = "Is gamma constant over N and D?"
    tests = tables["gamma_tests"]
    known = [row for row in _rows(tests) if np.isfinite(row["gamma"])]
    if not known:
        return Section(title, "cannot be tested: no (N, D) has three different own ratios")
    lines: list[str] = []
    drifting: list[str] = []
    for row in known:
        interval = (
            f"gamma of {row['family']} is {row['gamma']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        )
        lines.append(f"{interval} over {row['cells']} (N, D)")
        causes = _drift(row, alpha)
        if causes:
            drifting.append(row["family"])
            lines.append(f"  it is not constant: {'; '.join(causes)}")
        if row["p_curved_holm"] < alpha:
            lines.append(
                f"  log loss is not straight in log p (corrected p = {row['p_curved_holm']:.2g}): "
                "gamma depends on the ratios that it is measured at"
            )
        if row["low"] <= 0 or row["gamma"] < COLLAPSED:
            lines.append(
                f"  COLLAPSED: its own share hardly lowers its loss{_why_collapsed(tables, row)}; "
                "an optimiser would give it the least that it may, so do not use ratios from this "
                "law for it"
            )
    several = any(row["cells"] > 1 for row in known)
    if drifting:
        answer = f"NO for {', '.join(drifting)}"
    else:
        answer = "yes, as far as these runs can tell" if several else "there is one (N, D) only"
    return Section(title, answer, tuple(lines))


def _drift(row: Mapping[str, Any], alpha: float) -> list[str]:
    causes: list[str] = []
    if row["p_constant_holm"] < alpha:
        causes.append(f"it differs between cells (corrected p = {row['p_constant_holm']:.2g})")
    for name, label in (("params", "N"), ("tokens", "D")):
        if row[f"p_{name}_holm"] < alpha:
            change = row[f"per_log_{name}"] * np.log(10)
            causes.append(
                f"{change:+.3f} for ten times {label} (corrected p = {row[f'p_{name}_holm']:.2g})"
            )
    return causes


def _why_collapsed(tables: Tables, row: Mapping[str, Any]) -> str:
    failed = row["family"] in _failed(tables)
    return " because the split of the rest decides it (hypothesis 1 fails)" if failed else ""


def _exponents(exponents: pd.DataFrame, fit: Fit) -> Section:
    title = "Which exponents do the runs determine?"
    loose = [row for row in _rows(exponents) if not row["identified"]]
    notes = [] if fit.status.ok else [n for n in fit.status.notes if "runs say nothing" not in n]
    if not loose:
        return Section(title, f"all {len(exponents)} of the {fit.law.name} law", tuple(notes))
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in loose:
        error = "unbounded" if not np.isfinite(row["error"]) else f"± {row['error']:.2g}"
        place = f"{row['family']} ({row['value']:.3f} {error})"
        reasons.setdefault((row["parameter"], row["why"]), []).append(place)
    lines = [f"{symbol} of {', '.join(of)}: {why}" for (symbol, why), of in reasons.items()]
    answer = f"{len(loose)} of {len(exponents)} of the {fit.law.name} law are not determined"
    kept = [note for note in notes if not note.startswith("not determined")]
    return Section(title, answer, (*lines, *kept))


def _unusable(unusable: pd.DataFrame, runs: int) -> Section:
    title = "Which runs can a law not use (ratio 0)?"
    if not len(unusable):
        return Section(title, "none")
    lines = []
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in _rows(unusable):
        merged.setdefault((row["family"], tuple(row["runs"])), []).append(row["law"])
    for (family, names), laws in merged.items():
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(
            f"{len(names)} of {runs} say nothing about {family} under {', '.join(laws)}: {listed}"
        )
    leaving = len(set(unusable["law"]))
    answer = f"{counted(leaving, 'law')} {'leaves' if leaving == 1 else 'leave'} runs out"
    return Section(title, f"{answer}; the others can use every run", tuple(lines))


def _advice(tables: Tables) -> list[Section]:
    merges, laws = _rows(tables["merges"]), _rows(tables["laws"])
    failed = _failed(tables)
    lines = [_merge_line(row) for row in merges]
    ways = [f"group as {row['groups']}" for row in merges if row.get("better") is True]
    if laws:
        name = str(laws[1]["law"])
        family, rival = (
            float(np.mean([row["error"] for row in laws if row["law"] == each]))
            for each in ("family", name)
        )
        if rival < family:
            ways.append(f"use {option('law', name)}")
        lines.append(
            f"on held-out mixtures the {name} law, where every family's share counts, errs by "
            f"{rival:.2%} on average, the family law by {family:.2%}"
        )
    if not lines:
        return []
    none = "no grouping tested is clearly better than the families as they are"
    if failed:
        none = (
            "neither a merge nor another law is clearly better; keep to mixtures near those of the "
            f"runs for {', '.join(failed)}"
        )
    title = "What to do about it" if failed else "Other groupings"
    return [Section(title, ", or ".join(ways) or none, tuple(lines))]


def _merge_line(row: Mapping[str, Any]) -> str:
    if not row["groups"]:
        return "no merge leaves clearly less unexplained than the families as they are"
    name = "your grouping" if row["source"] == "given" else "best grouping found"
    text = (
        f"{name}, {row['groups']}: what the group's share leaves unexplained goes from "
        f"{row['spread_before']:.2%} to {row['spread']:.2%} of the loss "
        f"({'clearly' if row['better'] else 'not clearly'} better)"
    )
    if not row["testable"]:
        return f"{text}; fewer than three groups are left: hypothesis 1 cannot be tested on them"
    before, after = int(row["large_before"]), int(row["large"])
    text += f"; large cross-effects on merged runs: {after}, before {before}"
    if np.isfinite(row["worst"]):
        text += f" (the largest left: {row['worst']:.3f} nats)"
    if after < before and not row["better"]:
        text += "; but the split within a group then matters"
    return text


def _failed(tables: Tables) -> list[str]:
    return [row["family"] for row in _rows(tables["hypothesis"]) if row["verdict"] == "fails"]


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")  # pyright: ignore[reportReturnType]
