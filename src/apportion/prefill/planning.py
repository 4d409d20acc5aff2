"""What a read will take, before it runs: bytes, forwards and seconds of every way to do it.

The model's own code runs on this machine, with a few of its layers, at a few small sizes (see
`probe`); every chunk of the read is then gone through without it (see `rehearse`). Refused: one
formula for each architecture, which would have to know every kernel's workspace.

Bytes are those of live tensors beyond the weights: memory, activations and scores. What the process
takes besides (the interpreter, libraries, scratch space that a kernel frees before it returns,
blocks that an allocator keeps) is not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from apportion.budget import format_bytes, parse_tokens
from apportion.errors import InputError, option
from apportion.prefill.bound import Bound, by_default, check_settled, rounded
from apportion.prefill.pacing import pace_of
from apportion.prefill.reader import Reader, Settings
from apportion.prefill.rehearse import Foreseen, rehearsed
from apportion.prefill.schedule import get_schedule
from apportion.prefill.timing import Timing

WAYS = tuple(
    (evict, schedule, chunks)
    for evict in ("layer", "forward")
    for schedule, chunks in (
        ("linear", "bytes"),
        ("linear", "decremental"),
        ("linear", "fixed"),
        ("fixed", "bytes"),
        ("fixed", "fixed"),
    )
)
"""When layers let go, schedule, rule for chunks: IM, IMDC, fixed memory, and chunks by bytes."""
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Option:
    """One way to read, and what it will take.

    Attributes:
        schedule, chunks, evict, memory, chunk: options of `Reader`.
        forwards: chunks.
        longest: tokens of the longest chunk.
        resident: most entries that a layer holds at once, those of the chunk among them.
        peak_bytes: memory, activations and scores at the highest moment.
        peak_at: that moment.
        bytes: what is alive there, by item; sums to `peak_bytes`.
        memory_bytes: of all layers when the read is over.
        seconds: of the read, on this machine.
        fits: within the budget; True where there is none.
        budget: that chunks by bytes keep; None: none was given.
    """

    schedule: str
    chunks: str
    evict: str
    memory: int
    chunk: int
    forwards: int
    longest: int
    resident: int
    peak_bytes: int
    peak_at: str
    bytes: dict[str, int]
    memory_bytes: int
    seconds: float
    fits: bool = True
    budget: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `Reader`."""
        names = ("schedule", "chunks", "evict", "memory", "chunk")
        found = {name: getattr(self, name) for name in names}
        return found if self.budget is None else {**found, "budget": self.budget}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self)}


@dataclass(frozen=True)
class Plan:
    """The ways to read a text, those that fit first, then by the memory they keep, then by time.

    Attributes:
        options: ranked.
        tokens: of the text.
        batch: samples.
        budget: bytes asked for, if any.
        refused: ways that don't work within it, with the reason.
    """

    options: tuple[Option, ...]
    tokens: int
    batch: int
    budget: int | None
    refused: dict[str, str]

    @property
    def best(self) -> Option:
        """Of those that fit and keep most, the fastest.

        Raises:
            InputError: nothing fits; says the least budget that works.
        """
        if self.options and self.options[0].fits:
            return self.options[0]
        if not self.options:
            raise InputError("; ".join(f"{name}: {why}" for name, why in self.refused.items()))
        least = min(self.options, key=lambda each: each.peak_bytes)
        needed = rounded(least.peak_bytes)
        raise InputError(
            f"expected {option('budget')} of {needed} at least for {self.tokens} tokens with "
            f"{option('memory', least.memory)} ({least.schedule} memory, {least.chunks} chunks), "
            f"got {format_bytes(self.budget or 0)}; raise it, or give less memory"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "options": [each.to_dict() for each in self.options]}


def plan(
    model: nn.Module,
    tokens: int | str,
    *,
    memory: int | str | None = None,
    chunk: int | str | None = None,
    budget: int | str | None = None,
    batch: int = 1,
    questions: Sequence[int] = (),
    scorer: Any = None,
    sinks: int = 4,
    positions: Any = "compact",
    store: Any = "model",
    rounds: int = 2,
    progress: Progress | None = None,
) -> Plan:
    """Probe a model, and say what reading a text will take in every way.

    With a budget alone, memory is the largest there is room for, beside a chunk of 256 to 2,048
    tokens, which keeps the machine busy, and a question and answer of 64 tokens each.

    Args:
        model: as for `Reader`; it is left as it was.
        tokens: T, of each sample, such as 65536 or "64k".
        memory: M, in tokens.
        chunk: c, in tokens.
        budget: what must be enough, such as "200MB".
        batch: samples.
        questions: tokens of each question that will be known.
        scorer: as for `Reader`.
        sinks: as for `Reader`.
        positions: as for `Reader`.
        store: as for `Reader`.
        rounds: timed forwards of each size; medians count.
        progress: takes the share that is done.

    Raises:
        InputError: a value out of range, a model that can't be read with, or a budget that is too
            small for any way.
    """
    count = parse_tokens(tokens)
    if count < 1 or count != int(count) or batch < 1 or rounds < 1:
        raise InputError(
            f"expected whole numbers of {option('tokens')}, {option('batch')} and "
            f"{option('rounds')}, got {tokens!r}, {batch} and {rounds}"
        )
    asked = [torch.zeros(each, dtype=torch.int64) for each in questions]
    reader = Reader(
        model,
        memory=memory,
        chunk=chunk,
        scorer=scorer,
        sinks=sinks,
        positions=positions,
        budget=budget,
        store=store,
    )
    found: list[Option] = []
    refused: dict[str, str] = {}
    timing: Timing | None = None
    for number, (evict, schedule, chunks) in enumerate(WAYS):
        way = reader.varied(evict=evict, schedule=get_schedule(schedule), chunks=chunks)
        try:
            way = way.settled(batch, asked)
            bound = _kept(way.bound(batch, asked), way.settings, int(count))
            foreseen = _foreseen(way, bound, int(count))
        except InputError as error:
            refused[f"{schedule} memory, {chunks} chunks, evict={evict}"] = str(error)
        else:
            settings = way.settings
            if timing is None:
                timing = Timing(bound.costs.probe, settings.memory, settings.chunk, rounds)
            found.append(_option(settings, bound, foreseen, timing))
        if progress is not None:
            progress((number + 1) / len(WAYS))
    found.sort(key=lambda each: (not each.fits, -each.memory, each.seconds))
    return Plan(tuple(found), int(count), batch, reader.settings.budget, refused)


def _kept(bound: Bound, settings: Settings, tokens: int) -> Bound:
    """The bound that chunks by bytes keep."""
    if settings.chunks != "bytes":
        return bound
    if bound.bytes is None:
        own = by_default(bound, settings.memory, settings.chunk, tokens)
        return replace(bound, bytes=own)
    check_settled(bound, min(settings.memory, tokens), settings.chunk)
    return bound


def _foreseen(reader: Reader, bound: Bound, tokens: int) -> Foreseen:
    compressed = sum(window is None for window in bound.windows)
    return rehearsed(bound, partial(pace_of, reader.settings, compressed, tokens))


def _option(settings: Settings, bound: Bound, foreseen: Foreseen, timing: Timing) -> Option:
    before = [[0] * len(bound.windows), *foreseen.lengths[:-1]]
    peak = foreseen.peak
    pairs = list(zip(foreseen.chunks, before, strict=True))
    budget = settings.budget
    return Option(
        schedule=settings.schedule.name,
        chunks=settings.chunks,
        evict=settings.evict,
        memory=settings.memory,
        chunk=settings.chunk,
        forwards=len(foreseen.chunks),
        longest=max(foreseen.chunks),
        resident=max(rows + max(lengths) for rows, lengths in pairs),
        peak_bytes=peak.bytes,
        peak_at=peak.where,
        bytes={
            "memory": peak.memory,
            "activations": peak.activations,
            "scores": peak.scores,
        },
        memory_bytes=sum(bound.costs.memory(foreseen.lengths[-1])),
        seconds=sum(timing.seconds(rows, lengths) for rows, lengths in pairs),
        fits=budget is None or peak.bytes <= budget,
        budget=budget,
    )
