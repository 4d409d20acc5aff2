"""Reading a long context in bounded memory: memory schedules, chunk sizes, scorers.

Scorers are imported when first used, so that schedules load no torch.

IM and IMDC: Zeng et al., "Memorize Step by Step: Efficient Long-Context Prefilling with Incremental
Memory and Decremental Chunk", EMNLP 2024.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from apportion.prefill.schedule import SCHEDULES, At, Schedule

if TYPE_CHECKING:
    from apportion.prefill.scorers import SCORERS, Scorer, Scores, View

__all__ = ["SCHEDULES", "SCORERS", "At", "Schedule", "Scorer", "Scores", "View"]

_LATER = dict.fromkeys(("SCORERS", "Scorer", "Scores", "View"), "apportion.prefill.scorers")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'apportion.prefill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
