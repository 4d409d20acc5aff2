"""Token after token from a memory that is left as it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.errors import InputError, option
from apportion.meter import meter_of
from apportion.prefill.engine import Chunk, Engine


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: 0: always the likeliest.
        top_p: draw from the likeliest tokens that together have this probability.
        seed: the same draws again.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise InputError(
                f"expected a temperature of 0 or more such as {option('temperature', 0.7)}, "
                f"got {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(
                f"expected a share in (0, 1] such as {option('top_p', 0.9)}, got {self.top_p}"
            )


@dataclass
class Generated:
    """What was generated.

    Attributes:
        ids: without the stopping token.
        first_s: seconds to the first token, the question's own reading included.
        seconds: of everything.
        peak_bytes: most that was alive: in the question's forward, or in the last one.
    """

    ids: list[int] = field(default_factory=list)
    first_s: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0


def generate(
    engine: Engine,
    question: Int[Tensor, " tokens"],
    start: int,
    most: int,
    stop: Container[int],
    sampling: Sampling,
    each: Callable[[list[int]], None] | None = None,
    held: Sequence[Tensor] = (),
) -> Generated:
    """Answer a question from an engine's memory.

    Of the forwards of single tokens each holds more than the one before, so the last is counted
    and the others, whose time counting would lengthen, are not. Where an answer ends earlier than
    `most`, one more forward is made behind it to be counted.

    Args:
        engine: a fork, of one sample; it holds question and answer afterwards.
        question: token ids.
        start: tokens that were read before.
        most: tokens of the answer.
        stop: ids that end it.
        sampling: how to draw.
        each: called with all ids after each token.
        held: tensors that count as long as they are there.
    """
    out = Generated()
    generator = torch.Generator().manual_seed(sampling.seed)
    begun = time.perf_counter()
    ids, counted = question[None], True
    # The row of the token before is there while the next is read.
    logits = torch.empty(0)
    while True:
        logits = _read(engine, ids, start, [*held, logits], out if counted else None)
        start += ids.shape[1]
        token = draw(logits[0, -1], sampling, generator)
        if not out.first_s:
            out.first_s = time.perf_counter() - begun
        if token not in stop:
            out.ids.append(token)
            if each is not None:
                each(out.ids)
        if token in stop or len(out.ids) >= most:
            break
        ids = torch.tensor([[token]], device=question.device)
        counted = len(out.ids) == most - 1
    out.seconds = time.perf_counter() - begun
    if not counted:
        _read(engine, ids, start, [*held, logits], out)
    return out


def _read(
    engine: Engine, ids: Tensor, start: int, held: Sequence[Tensor], out: Generated | None
) -> Tensor:
    """A forward's logits; its peak goes into `out`, if any."""
    chunk = Chunk(ids, start, None)
    if out is None:
        return engine.read(chunk)[0]
    # The list must not outlive the line: it would hold tails that longer ones follow.
    with meter_of(ids.device, [*held, *_tails(engine)]) as meter:
        logits, _ = engine.read(chunk)
    out.peak_bytes = max(out.peak_bytes, meter.peak)
    return logits


def _tails(engine: Engine) -> Iterator[Tensor]:
    for tail in engine.tails or ():
        if tail is not None:
            yield tail.keys
            yield tail.values


def draw(
    logits: Float[Tensor, " vocabulary"], sampling: Sampling, generator: torch.Generator
) -> int:
    """One token."""
    if not sampling.temperature:
        return int(logits.argmax())
    # On the CPU: the same on every device.
    worth = logits.float().cpu()
    # The largest is 0, so that a tiny temperature leaves it alone instead of making infinity of it.
    shares = torch.softmax((worth - worth.max()) / sampling.temperature, dim=0)
    if sampling.top_p < 1:
        falling, order = shares.sort(descending=True, stable=True)
        # The token that crosses the line is among them.
        before = falling.cumsum(0) - falling
        shares = shares.index_fill(0, order[before >= sampling.top_p], 0.0)
    return int(torch.multinomial(shares, 1, generator=generator))
