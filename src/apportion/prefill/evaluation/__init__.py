"""What a bounded memory costs in answers: tasks in real text, scores beside baselines, probes.

`evaluate` takes anyone's own questions; `needle`, `recall` and `cloze` make some out of any text.
"""

from __future__ import annotations

from apportion.prefill.evaluation.case import Case
from apportion.prefill.evaluation.haystack import Haystack
from apportion.prefill.evaluation.needle import needle
from apportion.prefill.evaluation.perplexity import loss_after, loss_of
from apportion.prefill.evaluation.probes import attention_shares, forgetting, retention
from apportion.prefill.evaluation.questions import cloze
from apportion.prefill.evaluation.recall import recall
from apportion.prefill.evaluation.run import Row, evaluate
from apportion.prefill.evaluation.score import matches, wilson

__all__ = [
    "Case",
    "Haystack",
    "Row",
    "attention_shares",
    "cloze",
    "evaluate",
    "forgetting",
    "loss_after",
    "loss_of",
    "matches",
    "needle",
    "recall",
    "retention",
    "wilson",
]
