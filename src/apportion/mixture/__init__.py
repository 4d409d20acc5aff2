"""From training runs to optimal sampling ratios.

```python
import apportion.mixture as mx

runs = mx.read_runs("runs.csv")
fit = mx.fit(runs, law="family", bootstrap=1000)
best = fit.optimize(params=1.2e9, tokens=5e10)
```

`mx.sweep` (training small models on the user's own text) needs torch and is imported when first
used. Functions that carry the name of their module hide it here; `from apportion.mixture.fit
import …` still reaches the module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from apportion.mixture.allocation import Allocation, allocate
from apportion.mixture.compare import Comparison, compare
from apportion.mixture.design import design
from apportion.mixture.diagnose import Diagnosis, diagnose
from apportion.mixture.diagnosis.regroup import merge_families
from apportion.mixture.export import TRAINERS, export
from apportion.mixture.fit import fit
from apportion.mixture.fitfile import load
from apportion.mixture.laws import LAWS, Law, get_law, with_repetition
from apportion.mixture.optimize import optimize
from apportion.mixture.profile import Profile, profile
from apportion.mixture.proposal.optimum import Gain, Optimum
from apportion.mixture.read import ModelShape, concat_runs, read_runs, write_runs
from apportion.mixture.result import Fit, Status
from apportion.mixture.runs import RunTable
from apportion.mixture.sections import report_page
from apportion.mixture.supply import Supply, count, parse_supply

if TYPE_CHECKING:
    from apportion.mixture import sweep as sweep

__all__ = [
    "LAWS",
    "TRAINERS",
    "Allocation",
    "Comparison",
    "Diagnosis",
    "Fit",
    "Gain",
    "Law",
    "ModelShape",
    "Optimum",
    "Profile",
    "RunTable",
    "Status",
    "Supply",
    "allocate",
    "compare",
    "concat_runs",
    "count",
    "design",
    "diagnose",
    "export",
    "fit",
    "get_law",
    "load",
    "merge_families",
    "optimize",
    "parse_supply",
    "profile",
    "read_runs",
    "report_page",
    "sweep",
    "with_repetition",
    "write_runs",
]


def __getattr__(name: str) -> Any:
    if name == "sweep":
        return importlib.import_module("apportion.mixture.sweep")
    raise AttributeError(f"module 'apportion.mixture' has no attribute {name!r}")
