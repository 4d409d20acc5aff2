"""A context as a file: asked and extended later as if it had never been away.

Everything that goes on from a context is there: memory with the scorer's sums, the text's tokens
for reading again, the questions that observed, the state of the draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from apportion import models
from apportion.errors import InputError
from apportion.prefill.container import Opened, damaged, opened, write
from apportion.prefill.described import (
    plain_scorer,
    plain_settings,
    plain_trace,
    reader_of,
    scorer_of,
    trace_of,
    whole,
)
from apportion.prefill.parts import memory_of, parts_of
from apportion.prefill.provenance import check_model, identity_of
from apportion.prefill.shapes import check_numbers, check_shapes, probed

if TYPE_CHECKING:
    from apportion.prefill.context import Context
    from apportion.prefill.reader import Reader

# What Python says of a header that was forged.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def save(context: Context, path: str | Path) -> None:
    """Write a context as safetensors, whole or not at all.

    Args:
        context: of any reader; schedules and scorers of the user's own classes are noted by name.
        path: the file; replaced if it is there.

    Raises:
        InputError: it can't be written, nothing was read, or memory is torn.
        MissingExtraError: safetensors is not installed.
    """
    engine, reader = context.engine, context.reader
    engine.check_whole()
    if context.ids is None or context.logits is None:
        raise InputError("expected a context with something read, got an empty one")
    header = {
        "model": identity_of(reader.model),
        "settings": plain_settings(reader.settings),
        "given": reader.given,
        "scorer": plain_scorer(engine.scorer),
        "questions": len(context.questions),
        "trace": plain_trace(context.trace, engine.compressed),
        "predicted_bytes": context.predicted_bytes,
    }
    tensors = {
        "ids": context.ids,
        "logits": context.logits,
        "generator": engine.generator.get_state(),
    }
    if context.real is not None:
        tensors["real"] = context.real
    tensors |= {f"question.{k}": ids for k, ids in enumerate(context.questions)}
    for number, held in enumerate(engine.memory):
        assert held is not None
        tensors |= {f"layer.{number}.{name}": x for name, x in parts_of(held).items()}
    write(path, header, tensors)


def load(reader: Reader, path: str | Path) -> Context:
    """A context that `save` has written.

    Args:
        reader: with the model that read it. The context goes on with the settings that it was read
            with, whatever the reader's are.
        path: the file.

    Returns:
        The context; asking and extending it is bit-equal to never having saved it.

    Raises:
        InputError: no such file, a damaged one, or one of another model, revision or dtype.
        MissingExtraError: safetensors is not installed.
    """
    with opened(path) as file:
        try:
            return _loaded(reader, file)
        except InputError:
            raise
        except _MALFORMED as error:
            raise damaged(file.path, f"its header is not of this form ({error})") from error


def read_with(path: str | Path) -> dict[str, Any]:
    """What a saved context says of itself: `dtype`, `settings` and `tokens`; no tensor is read.

    Raises:
        InputError: no such file, or a damaged one, as far as its header tells.
    """
    with opened(path) as file:
        try:
            settings = dict(file.header["settings"])
            return {
                "dtype": str(file.header["model"]["dtype"]),
                "settings": settings | {name: int(settings[name]) for name in ("memory", "chunk")},
                "tokens": sum(map(int, file.header["trace"]["tokens"])),
            }
        except _MALFORMED as error:
            raise damaged(file.path, f"its header is not of this form ({error})") from error


def _loaded(reader: Reader, file: Opened) -> Context:
    from apportion.prefill.context import Context

    header = file.header
    check_model(file.path, header["model"], reader.model)
    try:
        reader = reader_of(header["settings"], header["given"], reader)
        own: Any = reader.settings.scorer
        scorer = scorer_of(header["scorer"], own)
    except InputError as error:
        raise InputError(f"{file.path}: {error}") from error
    engine = reader.engine(())
    trace = trace_of(header["trace"], engine.compressed, engine.layers)
    predicted = header["predicted_bytes"]
    if predicted is not None:
        whole(predicted)
    probe = probed(reader, scorer)
    check_shapes(file, probe, reader, trace)
    tensors = file.tensors()
    check_numbers(file, tensors)
    device = models.tensor_device(reader.model)
    questions = [tensors[f"question.{k}"].to(device) for k in range(header["questions"])]
    engine = reader.engine(questions)
    # Which may not be today's default.
    engine.scorer = scorer
    engine.memory = [
        memory_of(_of_layer(tensors, layer, device), held)
        for layer, held in enumerate(probe.memory)
    ]
    try:
        engine.generator.set_state(tensors["generator"])
    except RuntimeError as error:
        raise damaged(file.path, "its draws are in no state that there is") from error
    logits = tensors["logits"].to(device)
    return Context(
        reader, engine, questions, tensors["ids"], tensors.get("real"), logits, trace, predicted
    )


def _of_layer(tensors: Mapping[str, Tensor], layer: int, device: torch.device) -> dict[str, Tensor]:
    prefix = f"layer.{layer}."
    return {
        name.removeprefix(prefix): tensor.to(device)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
