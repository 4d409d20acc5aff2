"""Fine-tuning with fewer stored activations and a sparse backward; `attach` is the way in.

SAGE: Kim & Lee, "Forward Knows Efficient Backward Path: Saliency-Guided Memory-Efficient
Fine-tuning of LLMs", ACL 2025.
"""

from __future__ import annotations

from apportion.finetune.attach import Handle, attach
from apportion.finetune.callback import Watch, callback
from apportion.finetune.fidelity import Fidelity, fidelity
from apportion.finetune.loss import Head, chunked_loss
from apportion.finetune.plan import Plan, plan
from apportion.finetune.recipe import Recipe
from apportion.finetune.report import Report
from apportion.finetune.result import Tuned
from apportion.finetune.saliency import SALIENCIES, Saliency, View
from apportion.finetune.settings import TopP
from apportion.finetune.train import train

__all__ = [
    "SALIENCIES",
    "Fidelity",
    "Handle",
    "Head",
    "Plan",
    "Recipe",
    "Report",
    "Saliency",
    "TopP",
    "Tuned",
    "View",
    "Watch",
    "attach",
    "callback",
    "chunked_loss",
    "fidelity",
    "plan",
    "train",
]
