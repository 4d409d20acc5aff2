"""What the tensors of a saved context must be, for the model that is to go on from it.

Dtypes and shapes are checked before a tensor is read, so a forged file can't ask for memory; its
numbers afterwards, so it can't send a forward to places that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from apportion import models
from apportion.prefill.container import DTYPES, Opened, Spec, damaged
from apportion.prefill.context import Step
from apportion.prefill.described import whole
from apportion.prefill.engine import Chunk
from apportion.prefill.memory import LayerMemory
from apportion.prefill.parts import parts_of, shape_of
from apportion.prefill.reader import Reader
from apportion.prefill.scorers import Scorer


@dataclass(frozen=True)
class Probe:
    """What a model leaves behind that has read one token: shapes as all that it reads has.

    Attributes:
        memory: of each layer.
        logits: (1, 1, vocabulary).
    """

    memory: list[LayerMemory]
    logits: Tensor


def probed(reader: Reader, scorer: Scorer) -> Probe:
    """Let a reader's model read one token.

    Args:
        reader: whose model it is.
        scorer: whose sums are carried along.
    """
    engine = reader.engine(())
    engine.scorer = scorer
    ids = torch.zeros(1, 1, dtype=torch.int64, device=models.tensor_device(reader.model))
    logits, _ = engine.read(Chunk(ids, 0, [1] * engine.layers))
    return Probe([held for held in engine.memory if held is not None], logits)


def check_shapes(file: Opened, probe: Probe, reader: Reader, trace: Sequence[Step]) -> None:
    """Every tensor is there, and of the shape that it must have.

    Args:
        file: whose header is whole.
        probe: of the reader, with the scorer of the context.
        reader: that is to go on.
        trace: of the read.

    Raises:
        InputError: one is missing, superfluous, or of another dtype or shape.
    """
    expected = _expected(file, probe, reader, trace)
    for name in sorted(file.specs.keys() | expected.keys()):
        found, wanted = file.specs.get(name), expected.get(name)
        if found != wanted:
            raise damaged(file.path, f"expected {_shown(wanted)} as {name}, found {_shown(found)}")


def check_numbers(file: Opened, tensors: Mapping[str, Tensor]) -> None:
    """Token ids are of the vocabulary, and places within the text.

    Raises:
        InputError: some are not.
    """
    tokens, vocabulary = tensors["ids"].shape[1], tensors["logits"].shape[1]
    for name, tensor in tensors.items():
        ids = name == "ids" or name.startswith("question.")
        most = vocabulary if ids else tokens if name.endswith(".order") else None
        if most is None or not tensor.numel():
            continue
        low, high = int(tensor.min()), int(tensor.max())
        if low < 0 or high >= most:
            raise damaged(
                file.path, f"expected numbers of 0 to {most - 1} in {name}, found {low} to {high}"
            )


def _expected(file: Opened, probe: Probe, reader: Reader, trace: Sequence[Step]) -> dict[str, Spec]:
    settings, specs = reader.settings, file.specs
    tokens, lengths = sum(step.tokens for step in trace), trace[-1].memory
    batch = max(1, specs["ids"][1][0])
    logits = probe.logits
    found: dict[str, Spec] = {
        "ids": ("I32", (batch, tokens)),
        "logits": (DTYPES[logits.dtype], (batch, logits.shape[2])),
        "generator": ("U8", tuple(torch.Generator().get_state().shape)),
    }
    if "real" in specs:
        found["real"] = ("BOOL", (batch, tokens))
    for number in range(whole(file.header["questions"])):
        kind, shape = specs[f"question.{number}"]
        found[f"question.{number}"] = (kind if kind == "I32" else "I64", (max(1, shape[0]),))
    windows = models.windows(reader.model)
    for layer, (held, window) in enumerate(zip(probe.memory, windows, strict=True)):
        most = settings.sinks + settings.memory if window is None else window - 1
        count, prefix = lengths[layer], f"layer.{layer}."
        if count > min(most, tokens):
            raise ValueError(f"{count} entries in layer {layer}")
        found |= {
            f"{prefix}{name}": (DTYPES[part.dtype], shape_of(name, part, batch, count))
            for name, part in parts_of(held).items()
        }
        if f"{prefix}real" in specs:
            found[f"{prefix}real"] = ("BOOL", (batch, count))
    return found


def _shown(spec: Spec | None) -> str:
    return "nothing" if spec is None else f"{spec[0]} {list(spec[1])}"
