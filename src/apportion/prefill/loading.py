"""A model from a folder or file as a reader, in the dtype that is quick here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from apportion import models
from apportion.errors import InputError, option
from apportion.prefill.reader import Reader

DTYPES = ("auto", "float32", "bfloat16", "float16")

_PROBE_S = 0.8
_ROWS, _WIDTH = 512, 1024


def load_reader(model: str | Path, dtype: str = "auto", **options: Any) -> Reader:
    """A reader with a model that is loaded from a folder, a GGUF file or transformers' cache.

    On a GPU where there is one. Nothing is downloaded, and no code that comes with a model is run.

    Args:
        model: as `apportion.models.load` takes it.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`, or `"auto"`: bfloat16 where it is faster.
        options: of `Reader`.

    Raises:
        InputError: no such model, one that can't be read with, or options that are none.
    """
    if dtype not in DTYPES:
        raise InputError(f"expected {option('dtype')} of {', '.join(DTYPES)}; got {dtype!r}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wanted = quick_dtype(device) if dtype == "auto" else getattr(torch, dtype)
    with models.quietly():
        loaded, tokenizer = models.load(model, wanted, extra="prefill")
    loaded.to(device)
    return Reader(loaded, tokenizer, **options)


def quick_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 if matrix products are faster in it than in float32; a second of trying.

    Some processors have no instructions for it, and are many times slower.

    Args:
        device: that will compute.
    """
    sides = {
        dtype: (
            torch.randn(_ROWS, _WIDTH, device=device, dtype=dtype),
            torch.randn(_WIDTH, _WIDTH, device=device, dtype=dtype),
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    # The least of several, in turns: what else the machine does only ever adds time.
    least = dict.fromkeys(sides, float("inf"))
    end = time.perf_counter() + _PROBE_S
    while time.perf_counter() < end:
        for dtype, (a, b) in sides.items():
            begun = time.perf_counter()
            float((a @ b)[0, 0])
            least[dtype] = min(least[dtype], time.perf_counter() - begun)
    return torch.bfloat16 if least[torch.bfloat16] < least[torch.float32] else torch.float32
