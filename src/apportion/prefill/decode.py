"""Token after token from a memory that is left as it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.errors import InputError, option
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
    """

    ids: list[int] = field(default_factory=list)
    first_s: float = 0.0
    seconds: float = 0.0


def generate(
    engine: Engine,
    question: Int[Tensor, " tokens"],
    start: int,
    most: int,
    stop: Container[int],
    sampling: Sampling,
    each: Callable[[list[int]], None] | None = None,
) -> Generated:
    """Answer a question from an engine's memory.

    Args:
        engine: a fork, of one sample; it holds question and answer afterwards.
        question: token ids.
        start: tokens that were read before.
        most: tokens of the answer.
        stop: ids that end it.
        sampling: how to draw.
        each: called with all ids after each token.
    """
    out = Generated()
    generator = torch.Generator().manual_seed(sampling.seed)
    begun = time.perf_counter()
    ids = question[None]
    while True:
        logits, _ = engine.read(Chunk(ids, start, None))
        start += ids.shape[1]
        token = draw(logits[0, -1], sampling, generator)
        if not out.first_s:
            out.first_s = time.perf_counter() - begun
        if token in stop:
            break
        out.ids.append(token)
        if each is not None:
            each(out.ids)
        if len(out.ids) >= most:
            break
        ids = torch.tensor([[token]], device=question.device)
    out.seconds = time.perf_counter() - begun
    return out


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
