"""Texts in memory, read in one of the ways that are compared, and asked in one way.

Full context and "the last tokens" are read exactly: nothing is let go, positions are those of the
text. Unlike a reader they may go beyond the positions that the model was trained for; what comes of
it is what a plain prefill gives there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion import models
from apportion.meter import meter_of
from apportion.prefill.decode import Sampling, generate
from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.reader import Reader
from apportion.prefill.scorers import get_scorer

CHUNK = 1024
"""Tokens of a forward of an exact read: bounds its activations, changes nothing else."""


@dataclass
class Held:
    """A text in memory.

    Attributes:
        engine: holds it.
        tokens: read.
        logits: after the last token.
        peak_bytes: of the read, beyond the weights.
        seconds: of the read.
    """

    engine: Engine
    tokens: int
    logits: Float[Tensor, "batch vocabulary"]
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Said:
    """An answer: its text, what was alive at most while it was made, and the time it took."""

    text: str
    peak_bytes: int
    seconds: float


def exactly(reader: Reader, ids: Int[Tensor, " tokens"]) -> Held:
    """All of a text, nothing let go.

    Args:
        reader: its model is used, none of its settings.
        ids: token ids.
    """
    engine = Engine(reader.model, get_scorer("streaming"), compact=False)
    device = models.tensor_device(reader.model)
    ids = ids.to(device)[None]
    everything = [ids.shape[1]] * engine.layers
    logits, peak, begun = torch.empty(0), 0, time.perf_counter()
    for start in range(0, ids.shape[1], CHUNK):
        before = engine.bytes()
        with meter_of(device) as meter:
            out, _ = engine.read(Chunk(ids[:, start : start + CHUNK], start, everything))
            logits = out[:, -1].clone()
            del out
        peak = max(peak, before + meter.peak)
    return Held(engine, ids.shape[1], logits, peak, time.perf_counter() - begun)


def in_memory(
    reader: Reader,
    ids: Int[Tensor, " tokens"],
    questions: Sequence[Int[Tensor, " _"]] = (),
    parts: int = 1,
) -> Held:
    """A text as a reader reads it.

    Args:
        reader: with its settings.
        ids: token ids.
        questions: that are known.
        parts: the text comes in so many; the context is extended by all but the first.
    """
    first, *more = (part for part in ids.tensor_split(parts) if len(part))
    context = reader.read(first[None], list(questions))
    for part in more:
        context.extend(part[None])
    assert context.logits is not None
    return Held(context.engine, context.tokens, context.logits, context.peak_bytes, context.seconds)


def say(reader: Reader, held: Held, question: Int[Tensor, " tokens"], most: int) -> Said:
    """The likeliest answer, token by token; what is held stays as it was.

    Args:
        reader: its model and tokenizer.
        held: the text.
        question: token ids, the opening of the answer among them.
        most: tokens of the answer.
    """
    found = generate(
        held.engine.fork(0),
        question.to(models.tensor_device(reader.model)),
        held.tokens,
        most,
        models.stop_ids(reader.model, reader.tokenizer),
        Sampling(),
    )
    text = reader.with_prompt().answer(found.ids)
    return Said(text, held.engine.bytes() + found.peak_bytes, found.seconds)
