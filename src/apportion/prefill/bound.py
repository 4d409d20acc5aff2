"""A bound in bytes: what fits it, and the memory and chunk that it pays for.

What a bound must hold is the steady state, in which memory is full: earlier chunks find less of it
and can be longer. In tokens that a layer holds at once (Zeng et al., EMNLP 2024; N chunks):

    fixed memory              c + M            decremental chunks   c + M / 2
    incremental memory        c + M (N-1) / N  chunks by bytes      whatever fits

With L layers that let go after the forward, memory and chunk are there L times: L (M + c) entries.
Layer by layer it is L M + (M + c): all memory, one layer's turned to its positions, and its chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apportion.budget import format_bytes
from apportion.errors import InputError, option
from apportion.prefill.costs import Ahead, Costs
from apportion.prefill.pace import floor_of
from apportion.prefill.schedule.chunks import largest

CHUNKS = (2048, 1024, 512, 256)
"""Chunks that keep a machine busy, the best first: with fewer rows it waits for weights."""
LEAST = 16
"""Tokens of memory, and of a chunk, with which reading is of some use."""
ASKED = (64, 64)
"""Tokens of a question and of its answer that a chosen memory leaves room for."""
SHARE = 0.75
"""Of what fixed memory takes: the bound of chunks by bytes where none is given."""


@dataclass(frozen=True)
class Bound:
    """What a read may hold.

    Attributes:
        costs: of its chunks.
        bytes: it may hold; None: no bound.
        sinks: first tokens that are always kept.
        reach: positions of the model, if memory and chunk must fit them.
        windows: of every layer, what its attention looks back; None: all of memory.
    """

    costs: Costs
    bytes: int | None
    sinks: int
    reach: int | None
    windows: Sequence[int | None]

    def steady(self, memory: int, rows: int) -> int:
        """Bytes of a chunk over a full memory."""
        lengths = self.full(memory)
        return self.costs.peak(Ahead(rows, lengths, [memory] * len(lengths))).bytes

    def first(self, memory: int, rows: int) -> int:
        """Bytes of a first chunk."""
        none = [0] * len(self.windows)
        return self.costs.peak(Ahead(rows, none, [memory] * len(none), logits=False)).bytes

    def answer(self, memory: int, question: int, tokens: int) -> int:
        """Bytes of a question and its answer over a full memory."""
        return self.costs.answer(self.full(memory), question, tokens, sampled=True)

    def full(self, memory: int) -> list[int]:
        """Entries of every layer when memory is full."""
        return [self.sinks + memory if w is None else w - 1 for w in self.windows]

    def need(self, memory: int, chunk: int, rule: str) -> int:
        """The least bound for a memory and a reference chunk, with room for a short answer."""
        # Decremental chunks begin with half of the memory on top.
        start = chunk + memory // 2 if rule == "decremental" else chunk
        return max(
            self.steady(memory, chunk),
            self.first(memory, start),
            self.answer(memory, *ASKED),
        )

    def fits(self, memory: int, chunk: int, rule: str) -> bool:
        """Whether a memory and a reference chunk do."""
        if self.reach is not None and self.sinks + memory + chunk > self.reach:
            return False
        return self.bytes is None or self.need(memory, chunk, rule) <= self.bytes


def chosen(bound: Bound, rule: str, memory: int | None, chunk: int | None) -> tuple[int, int]:
    """Memory M and reference chunk c for a bound.

    The largest memory there is room for, and a chunk of 256 to 2,048 tokens: the longest that
    leaves memory at least as many. Where even 256 are too many, chunk and memory are of one size.

    Args:
        bound: with bytes.
        rule: for the sizes of chunks.
        memory: if it is settled.
        chunk: if it is settled.

    Raises:
        InputError: the bound is too small for a little memory and a short chunk.
    """

    def largest_memory(size: int, least: int) -> int:
        if not bound.fits(least, size, rule):
            return 0
        most = least
        while bound.fits(2 * most, size, rule):
            most *= 2
        return largest(lambda m: bound.fits(m, size, rule), 2 * most, least)

    if memory is not None and chunk is not None:
        return memory, chunk
    if chunk is not None:
        found = largest_memory(chunk, 1)
        if found:
            return found, chunk
        raise _too_small(bound, LEAST, chunk, rule)
    if memory is not None:
        for size in CHUNKS:
            if bound.fits(memory, size, rule):
                return memory, size
        size = largest(lambda c: bound.fits(memory, c, rule), CHUNKS[-1], LEAST)
        if bound.fits(memory, size, rule):
            return memory, size
        raise _too_small(bound, memory, LEAST, rule)
    for size in CHUNKS:
        found = largest_memory(size, size)
        if found:
            return found, size
    size = largest(lambda m: bound.fits(m, m, rule), CHUNKS[-1], LEAST)
    if bound.fits(size, size, rule):
        return size, size
    raise _too_small(bound, LEAST, LEAST, rule)


def check_settled(bound: Bound, memory: int, chunk: int) -> None:
    """A read with chunks by bytes can keep its bound.

    Args:
        bound: with bytes.
        memory: M.
        chunk: c.

    Raises:
        InputError: not even with its shortest chunks.
    """
    rows = floor_of(chunk)
    need = max(bound.steady(memory, rows), bound.first(memory, rows))
    if bound.bytes is not None and need > bound.bytes:
        raise _too_small(bound, memory, chunk, "bytes", need)


def by_default(bound: Bound, memory: int, chunk: int, tokens: int | None) -> int:
    """The bound of chunks by bytes where none is given.

    Three quarters of what fixed memory takes with chunks of one size, or the least that works.
    """
    steady = bound.steady(memory, chunk)
    if tokens is not None and tokens < bound.sinks + memory + chunk:
        # Memory is never full.
        held = max(0, tokens - chunk)
        lengths = [min(held, full) for full in bound.full(memory)]
        rows = min(chunk, tokens)
        steady = bound.costs.peak(Ahead(rows, lengths, [memory] * len(lengths))).bytes
    rows = floor_of(chunk)
    least = max(bound.steady(memory, rows), bound.first(memory, rows))
    return max(int(SHARE * steady), least)


def check_answer(bound: Bound, need: int, question: int, tokens: int) -> None:
    """A question and its answer fit the bound.

    Args:
        bound: of the read.
        need: bytes that they take.
        question: tokens of it.
        tokens: of the answer, at most.

    Raises:
        InputError: they don't.
    """
    if bound.bytes is not None and need > bound.bytes:
        raise InputError(
            f"expected a question and an answer that fit {option('budget')} of "
            f"{format_bytes(bound.bytes)}, got {question} and {tokens} tokens, which take "
            f"{rounded(need)}; ask shorter, give a smaller {option('max_new_tokens')}, or read "
            f"with {option('budget', rounded(need).replace(' ', ''))}"
        )


def rounded(value: int) -> str:
    """Upwards to three digits, so that the amount can be given as it is said."""
    unit = 10 ** max(0, len(str(value)) - 3)
    return format_bytes(-(-value // unit) * unit)


def _too_small(
    bound: Bound, memory: int, chunk: int, rule: str, need: int | None = None
) -> InputError:
    needed = rounded(bound.need(memory, chunk, rule) if need is None else need)
    return InputError(
        f"expected {option('budget')} of {needed} at least, for {bound.sinks} sinks, "
        f"{option('memory', memory)} and {option('chunk', chunk)}; got "
        f"{format_bytes(bound.bytes or 0)}; raise it to "
        f"{option('budget', needed.replace(' ', ''))}, or give less memory or shorter chunks"
    )
