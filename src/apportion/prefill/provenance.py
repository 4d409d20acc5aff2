"""Which model has read a context: memory of another is numbers without meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from apportion import models
from apportion.errors import InputError, option


def identity_of(model: nn.Module) -> dict[str, Any]:
    """Class, config, dtype and a sample of the weights, as plain JSON."""
    return {
        "name": type(models.unwrap(model)).__name__,
        "config": models.config_of(model),
        "dtype": str(models.dtype_of(model)).removeprefix("torch."),
        "fingerprint": models.fingerprint(model),
    }


def check_model(path: Path, found: Mapping[str, Any], model: nn.Module) -> None:
    """The model that read a context is this one.

    Args:
        path: of the context.
        found: `identity_of` the model that read it.
        model: the one that is there.

    Raises:
        InputError: it is another; the message says what differs.
    """
    own = identity_of(model)
    if found["name"] != own["name"]:
        raise InputError(
            f"{path}: expected a context that a {own['name']} has read, got one of a "
            f"{found['name']}; load it with the model that read it"
        )
    # Newer versions of transformers know more options than older ones.
    shared = sorted(found["config"].keys() & own["config"].keys())
    differing = [
        f"{name} is {found['config'][name]} there and {own['config'][name]} here"
        for name in shared
        if found["config"][name] != own["config"][name]
    ]
    if differing:
        raise InputError(
            f"{path}: expected a context that this model has read, got one of another: "
            f"{'; '.join(differing[:3])}; load it with the model that read it"
        )
    if found["dtype"] != own["dtype"]:
        raise InputError(
            f"{path}: expected a context in {own['dtype']}, as the model is, got one in "
            f"{found['dtype']}; load the model with {option('dtype', str(found['dtype']))}"
        )
    if found["fingerprint"] != own["fingerprint"]:
        raise InputError(
            f"{path}: expected a context that these weights have read, got one of others: of "
            "another revision of the model, or from before it was trained; load it with the model "
            "that read it"
        )
