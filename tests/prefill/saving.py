"""Readers of tiny models, what they read, and all that goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from apportion.errors import InputError
from apportion.prefill import Context, Reader
from apportion.prefill.parts import parts_of
from finetune.tiny import VOCABULARY, batch, make

ASKED = [torch.tensor([5, 9, 4]), torch.tensor([7, 7])]


def reader_of(kind: str = "llama", model: nn.Module | None = None, **options: Any) -> Reader:
    given = {"memory": 12, "chunk": 8, "sinks": 2, **options}
    attention = "eager" if kind == "gemma2" else "sdpa"
    return Reader(make(kind, attention=attention) if model is None else model, **given)


def read(reader: Reader, questions=(), sizes=(29, 20)) -> Context:
    given = batch(sizes, side="left")
    return reader.read(given["input_ids"], list(questions), given["attention_mask"])


def more(samples: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (samples, 17), generator=generator)


def everything(context: Context) -> dict[str, Any]:
    """All that a context goes on from."""
    engine = context.engine
    found: dict[str, Any] = {
        "ids": context.ids,
        "real": context.real,
        "logits": context.logits,
        "generator": engine.generator.get_state(),
        "trace": [(s.start, s.tokens, s.memory, s.retained, s.memory_bytes) for s in context.trace],
        "questions": [ids.tolist() for ids in context.questions],
    }
    for number, held in enumerate(engine.memory):
        assert held is not None
        found |= {f"{number}.{name}": part for name, part in parts_of(held).items()}
    return found


def assert_equal(one: Context, other: Context) -> None:
    a, b = everything(one), everything(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, Tensor):
            assert value.dtype == b[name].dtype, name
            assert torch.equal(value, b[name]), name
        else:
            assert value == b[name], name


def refused(reader: Reader, path: Path, *said: str) -> None:
    with pytest.raises(InputError) as caught:
        reader.load(path)
    assert str(path) in str(caught.value)
    for text in said:
        assert text in str(caught.value)
