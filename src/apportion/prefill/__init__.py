"""Reading a long context in bounded memory; `Reader` is the way in.

Everything but the schedules is imported when first used, so that these load no torch.

IM and IMDC: Zeng et al., "Memorize Step by Step: Efficient Long-Context Prefilling with Incremental
Memory and Decremental Chunk", EMNLP 2024.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from apportion.prefill.schedule import SCHEDULES, At, Schedule

if TYPE_CHECKING:
    from apportion.prefill.answer import Answer
    from apportion.prefill.context import Context, ReadInterruptedError
    from apportion.prefill.documents import read_document
    from apportion.prefill.evaluation import Case, evaluate
    from apportion.prefill.loading import load_reader
    from apportion.prefill.many import How, answer_documents
    from apportion.prefill.planning import Plan, plan
    from apportion.prefill.reader import Reader
    from apportion.prefill.scorers import SCORERS, Scorer, Scores, View

__all__ = [
    "SCHEDULES",
    "SCORERS",
    "Answer",
    "At",
    "Case",
    "Context",
    "How",
    "Plan",
    "ReadInterruptedError",
    "Reader",
    "Schedule",
    "Scorer",
    "Scores",
    "View",
    "answer_documents",
    "evaluate",
    "load_reader",
    "plan",
    "read_document",
]

_LATER = {
    "Answer": "answer",
    "Case": "evaluation",
    "Context": "context",
    "How": "many",
    "Plan": "planning",
    "ReadInterruptedError": "context",
    "Reader": "reader",
    "SCORERS": "scorers",
    "Scorer": "scorers",
    "Scores": "scorers",
    "View": "scorers",
    "answer_documents": "many",
    "evaluate": "evaluation",
    "load_reader": "loading",
    "plan": "planning",
    "read_document": "documents",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module = importlib.import_module(f"apportion.prefill.{_LATER[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'apportion.prefill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
