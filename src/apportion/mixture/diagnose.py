"""Do the runs support the law? Hypothesis 1, gamma, exponents, extrapolation: words and numbers.

Nothing here trusts the law that it judges: gamma and within-cell spreads come from regressions, and
cross-effects from exact cells where the design has them. Refused: one grade for a table. Each
question gets its own answer, the size of what was found, and what could not be tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from apportion.errors import InputError
from apportion.mixture.diagnosis.advice import law_errors, merge_outcome, suggested_law
from apportion.mixture.diagnosis.crosseffect import CrossEffects, cross_effects
from apportion.mixture.diagnosis.exponents import exponent_table, unusable_runs
from apportion.mixture.diagnosis.extrapolate import Request, extrapolation
from apportion.mixture.diagnosis.findings import Section, hypothesis_verdicts, sections
from apportion.mixture.diagnosis.gamma import gamma_report
from apportion.mixture.diagnosis.noise import Noise, seed_noise, within_cell_spread
from apportion.mixture.diagnosis.regroup import find_grouping, judge_grouping
from apportion.mixture.fit import fit as fit_law
from apportion.mixture.laws.base import Law
from apportion.mixture.result import Fit
from apportion.mixture.runs import RunTable
from apportion.mixture.table.required import require_table


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; `str()` gives the report, `to_dict()` all numbers.

    Attributes:
        runs: the table in one line.
        alpha: level of the tests; intervals cover 1 - alpha.
        hypothesis: per family `verdict` (`"holds"`, `"holds apart from small effects"`, `"fails"`,
            `"unclear"`, `"not testable"`), `noise` (sd of one run's log loss), `noise_source`,
            `method`, `runs`, `mixtures`, `cross_spread`; see `crosseffect`.
        spread: within-cell spread per family; see `noise.within_cell_spread`.
        pairs: effect of every ordered pair; see `crosseffect.CrossEffects`.
        gamma: gamma per (N, D); `gamma_tests`: its constancy per family; see `gamma.GammaReport`.
        exponents: which exponents the runs identify; see `exponents.exponent_table`.
        unusable: runs that laws cannot use; see `exponents.unusable_runs`.
        requests: how far requests extrapolate; see `extrapolate.extrapolation`.
        merges: tested groupings, the user's and the one searched for; see `advice.merge_outcome`.
        laws: error per family of the family law and of a law with cross-terms on held-out mixtures.
        sections: the report in words.
    """

    runs: str
    alpha: float
    hypothesis: pd.DataFrame
    spread: pd.DataFrame
    pairs: pd.DataFrame
    gamma: pd.DataFrame
    gamma_tests: pd.DataFrame
    exponents: pd.DataFrame
    unusable: pd.DataFrame
    requests: pd.DataFrame
    merges: pd.DataFrame
    laws: pd.DataFrame
    sections: tuple[Section, ...]

    @property
    def holds(self) -> str:
        """Hypothesis 1 over all families: `"holds"`, `"fails"` or `"unclear"`.

        It fails if it does for one family, and holds if no effect above the noise of one run is
        left open for any; what was not tested, or leaves one open, is unclear.
        """
        found = set(self.hypothesis["verdict"])
        if "fails" in found:
            return "fails"
        return "unclear" if found & {"unclear", "not testable"} else "holds"

    def __str__(self) -> str:
        head = f"Diagnosis of {self.runs}"
        return "\n\n".join([head, *(str(section) for section in self.sections)]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, text and lists; what is not known is None."""
        tables = (
            "hypothesis",
            "spread",
            "pairs",
            "gamma",
            "gamma_tests",
            "exponents",
            "unusable",
            "requests",
            "merges",
            "laws",
        )
        words = [{"title": s.title, "answer": s.answer, "lines": s.lines} for s in self.sections]
        out: dict[str, Any] = {"runs": self.runs, "alpha": self.alpha, "holds": self.holds}
        out |= {name: getattr(self, name).to_dict("records") for name in tables}
        return _plain(out | {"words": words})


def diagnose(
    runs: RunTable,
    *,
    fit: Fit | None = None,
    group_by: Mapping[str, str] | None = None,
    regroup: bool = False,
    requests: Sequence[Request] = (),
    seed: int = 0,
    alpha: float = 0.05,
) -> Diagnosis:
    """Test what the family law takes for granted on these runs, and say what they cannot tell.

    Args:
        runs: the run table.
        fit: the fit to judge (exponents, unusable runs); the family law is fitted if absent.
        group_by: new family of every family that the user wants to group otherwise; tested.
        regroup: look for the grouping with the least cross-effect; done anyway where hypothesis 1
            fails.
        requests: (N, D, ratios) of predictions to come; how far they extrapolate is reported.
        seed: deals mixtures into folds.
        alpha: level of the tests, Holm-corrected over all pairs or families.

    Raises:
        InputError: unknown families, malformed requests, alpha outside (0, 1), or fewer usable runs
            than the law has parameters.
    """
    require_table(runs)
    if not 0 < alpha < 1:
        raise InputError(f"expected alpha between 0 and 1 such as 0.05, got {alpha}")
    if seed < 0:
        raise InputError(f"expected a seed from 0 up, got {seed}")
    for family in group_by or {}:
        runs.family_index(family)
    far = extrapolation(runs, requests)
    if fit is not None and not _same_runs(fit.runs, runs):
        raise InputError(
            f"expected a fit of these runs ({len(runs)}), got one of others ({len(fit.runs)}); "
            "diagnose the runs that were fitted, or fit these (mixture fit RUNS -o FIT)"
        )
    own = fit if fit is not None and _own_only(fit.law) else fit_law(runs, "family")
    repeats = seed_noise(runs)
    effects = cross_effects(runs, own, repeats, alpha)
    noise = effects.noise if repeats is None else repeats
    spread = within_cell_spread(runs, -own.residuals(), noise)
    hypothesis = _hypothesis(effects, spread, noise, alpha)
    failed = "fails" in hypothesis["verdict"].tolist()
    gamma = gamma_report(runs, alpha)
    judged = own if fit is None else fit
    tables: dict[str, pd.DataFrame] = {
        "hypothesis": hypothesis,
        "spread": spread,
        "pairs": effects.pairs,
        "gamma": gamma.cells,
        "gamma_tests": gamma.tests,
        "exponents": exponent_table(judged),
        "unusable": unusable_runs(runs),
        "requests": far,
        "merges": _merges(runs, group_by, regroup or failed, effects, alpha),
        "laws": law_errors(runs, ["family", suggested_law(runs)], seed) if failed else _no_laws(),
    }
    words = sections(tables, judged, alpha)
    return Diagnosis(runs=str(runs), alpha=alpha, sections=words, **tables)


def _own_only(law: Law) -> bool:
    """A law of N, D and the own ratio, which is what hypothesis 1 is tested against."""
    return "ratio" in law.needs and not law.needs & {"others", "unique"}


def _hypothesis(
    effects: CrossEffects, spread: pd.DataFrame, noise: Noise, alpha: float
) -> pd.DataFrame:
    frame = effects.families.copy()
    frame.insert(1, "verdict", hypothesis_verdicts(effects.pairs, spread, alpha))
    frame["noise"] = noise.sd
    frame["noise_freedom"] = noise.freedom
    frame["noise_source"] = noise.source
    return frame


def _merges(
    runs: RunTable,
    group_by: Mapping[str, str] | None,
    search: bool,
    effects: CrossEffects,
    alpha: float,
) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    if group_by:
        given = judge_grouping(runs, group_by)
        rows.append({"source": "given", **merge_outcome(runs, given, effects, alpha)})
    if search and len(runs.families) > 2:
        found = find_grouping(runs)
        if len(set(found.groups.values())) < len(found.groups):
            rows.append({"source": "search", **merge_outcome(runs, found, effects, alpha)})
        else:
            rows.append({"source": "search", "groups": "", "spread_before": found.spread_before})
    return pd.DataFrame(rows, columns=None if rows else ["source", "groups"])


def _no_laws() -> pd.DataFrame:
    return pd.DataFrame(columns=["family", "law", "error"])


def _plain(value: Any) -> Any:
    """Plain Python for JSON: numpy scalars unpacked, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _same_runs(one: RunTable, other: RunTable) -> bool:
    return (
        one.run == other.run
        and one.families == other.families
        and np.allclose(one.ratios, other.ratios, rtol=1e-6, atol=1e-9)
        and np.allclose(one.losses, other.losses, rtol=1e-6)
    )
