"""How a read goes: the length of each chunk, and what every layer keeps after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from apportion.errors import InputError, option
from apportion.prefill.schedule import At, Schedule
from apportion.prefill.schedule.chunks import FLOOR_SHARE, decremental, fixed, largest

RULES = ("fixed", "decremental", "bytes")
STREAM = 8
"""A stream, whose length is not known, is paced as if it were so many times the memory long."""

# Whether a chunk of a length fits, by what the layers hold before it and keep after it.
Fits = Callable[[int, Sequence[int], Sequence[int]], bool]


def floor_of(chunk: int) -> int:
    """The shortest chunk of the rule `bytes` while there is room, for a reference size."""
    return max(1, int(FLOOR_SHARE * chunk))


class Pace:
    """Chunk sizes and budgets of one read.

    A step of the schedule is a chunk, but for the rule `bytes`, whose chunks are of any size: there
    it is the text read so far, in reference chunks.
    """

    def __init__(
        self,
        schedule: Schedule,
        rule: str,
        memory: int,
        chunk: int,
        layers: int,
        tokens: int | None,
        fits: Fits | None = None,
        full: bool = False,
    ) -> None:
        """A pace.

        Args:
            schedule: of the memory.
            rule: of `RULES`.
            memory: M, entries that a layer keeps in the end, sinks not among them.
            chunk: c, the reference size.
            layers: how many are compressed.
            tokens: T; None for a stream.
            fits: for the rule `bytes`.
            full: keep M after every chunk: what was kept once must not shrink again.

        Raises:
            InputError: no such rule.
        """
        if rule not in RULES:
            raise InputError(f"expected {option('chunks')} of {', '.join(RULES)}; got {rule!r}")
        self.schedule, self.memory, self.chunk = schedule, memory, chunk
        self.layers, self.tokens, self.full = layers, tokens, full
        length = tokens if tokens is not None else max(chunk, STREAM * memory)
        self.steps = -(-length // chunk)
        self.read, self._done = 0, 0
        self._fits = fits if rule == "bytes" else None
        self._sizes: list[int] | None = None
        if rule == "decremental" and tokens is not None:
            means = [fmean(self._at(float(t), ()) or [0]) for t in range(self.steps)]
            self._sizes = decremental(tokens, chunk, [round(m) for m in means])
        elif rule == "fixed" and tokens is not None:
            self._sizes = fixed(tokens, chunk)

    def next(self, held: Sequence[int], retention: Sequence[float] = ()) -> int:
        """Tokens of the next chunk; of a stream the most it may be.

        Args:
            held: entries of each compressed layer.
            retention: their mean retention ratios.
        """
        if self.tokens is not None and self.read >= self.tokens:
            return 1  # nothing is left to be handed out
        if self._sizes is not None:
            return self._sizes[self._done]
        if self._fits is None:
            return self.chunk
        fits = self._fits
        most = 16 * self.chunk if self.tokens is None else self.tokens - self.read
        floor = min(floor_of(self.chunk), most)

        def good(size: int) -> bool:
            return fits(size, held, self._kept(self.read + size, retention))

        # A bound is kept whatever it takes, a floor while there is room.
        return largest(good, most, floor) if good(floor) else largest(good, floor, 1)

    def budgets(self, size: int, retention: Sequence[float] = ()) -> list[int]:
        """What each compressed layer keeps after the next chunk, of so many tokens; it is done."""
        self.read += size
        kept = self._kept(self.read, retention)
        self._done += 1
        return kept

    def _kept(self, read: int, retention: Sequence[float]) -> list[int]:
        whole = self.tokens is not None and read >= self.tokens
        step = float(self._done) if self._sizes is not None else read / self.chunk - 1
        return self._at(self.steps - 1.0 if whole else max(0.0, step), retention)

    def _at(self, step: float, retention: Sequence[float]) -> list[int]:
        if self.full:
            return [self.memory] * self.layers
        return [
            self.schedule.size(At(step, self.steps, layer, self.layers, retention), self.memory)
            for layer in range(self.layers)
        ]
