"""What to do when hypothesis 1 fails: another law, or other groups, tested on the same runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from apportion.errors import InputError
from apportion.mixture.diagnosis.crosseffect import CrossEffects, cross_effects
from apportion.mixture.diagnosis.noise import seed_noise
from apportion.mixture.diagnosis.regroup import Grouping, merge_families
from apportion.mixture.fit import fit
from apportion.mixture.laws import get_law
from apportion.mixture.runs import RunTable

_FOLDS = 4


def suggested_law(runs: RunTable) -> str:
    """A law with cross-terms that these runs can fit: `mixing` for one (N, D), else `transfer`."""
    return "mixing" if len(np.unique(runs.cells())) == 1 else "transfer"


def law_errors(runs: RunTable, laws: list[str], seed: int) -> pd.DataFrame:
    """Mean relative error of laws on mixtures that they were not fitted to.

    Mixtures are dealt into four folds; every law predicts each fold from the other three, and only
    runs that all laws can use count.

    Returns:
        Columns `family`, `law`, `error`; no rows where there are too few runs or mixtures.
    """
    mixtures = runs.mixtures()
    order = np.random.default_rng(seed).permutation(int(mixtures.max()) + 1)
    fold = (order % _FOLDS)[mixtures]
    shared = {
        target: np.all([get_law(law).usable(runs.conditions(target)) for law in laws], axis=0)
        for target in runs.targets
    }
    errors = {law: np.full((len(runs), len(runs.targets)), np.nan) for law in laws}
    try:
        for law in laws:
            for part in np.unique(fold):
                fitted = fit(runs.take(fold != part), law)
                rows = np.flatnonzero(fold == part)
                for k, target in enumerate(runs.targets):
                    chosen = rows[shared[target][rows]]
                    at = runs.take(chosen).conditions(target)
                    gap = fitted.law.log_loss(fitted.theta[k], at) - np.log(runs.losses[chosen, k])
                    errors[law][chosen, k] = np.abs(np.expm1(gap))
    except InputError:
        return pd.DataFrame(columns=["family", "law", "error"])
    rows = [
        (target, law, float(np.nanmean(errors[law][:, k])))
        for k, target in enumerate(runs.targets)
        for law in laws
    ]
    return pd.DataFrame(rows, columns=["family", "law", "error"])


def merge_outcome(
    runs: RunTable, grouping: Grouping, before: CrossEffects, alpha: float
) -> dict[str, object]:
    """Repeat the test of hypothesis 1 on the merged runs.

    Returns:
        `groups`, `spread_before`, `spread` (loss that goes unexplained, see `regroup`), `gain`,
        `gain_error`, `better`; `large_before`, `large` (number of pairs with a large effect),
        `worst_before`, `worst` (the largest significant effect in nats, NaN if none is);
        `testable` is False where fewer than three groups are left.
    """
    merged = merge_families(runs, grouping.groups)
    row: dict[str, object] = {
        "groups": _listed(grouping.groups),
        "spread_before": grouping.spread_before,
        "spread": grouping.spread,
        "gain": grouping.gain,
        "gain_error": grouping.gain_error,
        "better": grouping.better,
    }
    after: CrossEffects | None = None
    if len(merged.families) > 2:
        after = cross_effects(merged, fit(merged), seed_noise(merged), alpha)
    for name, effects in (("_before", before), ("", after)):
        verdicts = [] if effects is None else effects.pairs["verdict"].tolist()
        sizes = [] if effects is None else effects.pairs["effect"].abs().tolist()
        found = [s for s, v in zip(sizes, verdicts, strict=True) if v in ("large", "small")]
        row["large" + name] = verdicts.count("large")
        row["worst" + name] = max(found, default=float("nan"))
    row["testable"] = after is not None
    return row


def _listed(groups: Mapping[str, str]) -> str:
    members: dict[str, list[str]] = {}
    for family, group in groups.items():
        members.setdefault(group, []).append(family)
    return " | ".join(" + ".join(each) for each in members.values())
