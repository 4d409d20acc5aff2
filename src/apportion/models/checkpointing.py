"""Gradient checkpointing of transformers, by the name that the installed release has for it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

# Since 5.20 it is called activation checkpointing, and the older names warn.
NAME = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if hasattr(PreTrainedModel, f"{name}_enable")
)
"""Of the training argument; methods of a model begin with it."""


@contextmanager
def checkpointed(model: Any) -> Generator[None]:
    """A model that recomputes every layer from its exact input; afterwards it does not."""
    getattr(model, f"{NAME}_enable")()
    try:
        yield
    finally:
        getattr(model, f"{NAME}_disable")()
