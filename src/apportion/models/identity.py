"""What tells one model from another: its config, its dtype, and some of each weight."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from torch import nn

from apportion.models.find import unwrap

SAMPLE = 64
"""Numbers of every parameter that are looked at."""

# What may differ in the config of one model: where it came from, how it is run, how it generates.
_VOLATILE = {
    "_attn_implementation",
    "_commit_hash",
    "_experts_implementation",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "attention_dropout",
    "dtype",
    "experts_implementation",
    "id2label",
    "label2id",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


def config_of(model: nn.Module) -> dict[str, Any]:
    """The config as plain JSON, without what may differ between two loads of one model."""
    config: Any = getattr(unwrap(model), "config", None)
    # Through JSON: what is written and read back must equal what is asked for again.
    return json.loads(json.dumps(_lasting(config.to_dict()), default=str, sort_keys=True))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Of the model's first floating-point parameter."""
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over name, shape and first `SAMPLE` numbers of every parameter.

    Cheap, however large the model is. Training moves nearly every number, so another revision of
    a model shows.
    """
    sum_ = hashlib.sha256()
    for name, parameter in sorted(unwrap(model).named_parameters()):
        sum_.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        first = parameter.detach().flatten()[:SAMPLE].cpu().contiguous()
        sum_.update(first.view(torch.uint8).numpy().tobytes())
    return sum_.hexdigest()


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _lasting(v) for k, v in value.items() if str(k) not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [_lasting(each) for each in value]
    # JSON has no infinity.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
