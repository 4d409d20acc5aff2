"""Apportion: share out a fixed budget over the life of a language model.

Capabilities are imported when first used, so that `import apportion` loads neither torch nor
transformers nor scipy:

- `apportion.mixture`: how much of each language goes into pretraining.
- `apportion.finetune`: which activations are worth keeping while fine-tuning.
- `apportion.prefill`: which tokens are worth remembering while reading a long context.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_CAPABILITIES = ("mixture", "finetune", "prefill")

if TYPE_CHECKING:
    from apportion import finetune as finetune
    from apportion import mixture as mixture
    from apportion import prefill as prefill

__all__ = ["__version__", "finetune", "mixture", "prefill"]


def __getattr__(name: str) -> Any:
    if name in _CAPABILITIES:
        return importlib.import_module(f"apportion.{name}")
    raise AttributeError(f"module 'apportion' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_CAPABILITIES])
