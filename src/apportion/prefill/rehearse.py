"""A read that is gone through without the model: chunk after chunk, and what each will hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apportion.prefill.bound import Bound
from apportion.prefill.costs import Ahead, Peak
from apportion.prefill.engine import Engine
from apportion.prefill.pace import Fits, Pace
from apportion.prefill.probe import NO_PADDING, Padding


@dataclass
class Standing:
    """Where a read is.

    Attributes:
        lengths: entries of every layer.
        start: tokens that are read.
        padding: in the next chunk, and in memory.
        logits: whether those of the last chunk are held.
    """

    lengths: list[int]
    start: int = 0
    padding: Padding = NO_PADDING
    logits: bool = False


@dataclass(frozen=True)
class Foreseen:
    """A read that has not been.

    Attributes:
        chunks: their lengths.
        lengths: entries of every layer after each.
        peaks: what each will hold at its highest.
    """

    chunks: list[int] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)

    @property
    def peak(self) -> Peak:
        """The highest of all."""
        return max(self.peaks, key=lambda peak: peak.bytes)


def ahead(bound: Bound, now: Standing, rows: int, budgets: Sequence[int]) -> Ahead:
    """A chunk that may come next.

    Args:
        bound: with the layers' windows.
        now: where the read is.
        rows: of the chunk.
        budgets: of the compressed layers.
    """
    given = iter(budgets)
    wanted = [next(given) if window is None else 0 for window in bound.windows]
    return Ahead(rows, now.lengths, wanted, now.start, now.padding, now.logits)


def fitting(bound: Bound, standing: Callable[[], Standing]) -> Fits:
    """Whether a chunk fits a bound, for the rule `bytes`.

    Args:
        bound: of the read.
        standing: where it is when that is asked.
    """

    def fits(rows: int, held: Sequence[int], kept: Sequence[int]) -> bool:
        now = standing()
        if bound.reach is not None and max(now.lengths) + rows > bound.reach:
            return False
        peak = bound.costs.peak(ahead(bound, now, rows, kept))
        return bound.bytes is None or peak.bytes <= bound.bytes

    return fits


def rehearsed(bound: Bound, make: Callable[[Fits | None], Pace]) -> Foreseen:
    """Go through a read of a known length.

    Retention ratios, which the adaptive schedule looks at, are known only when layers have read:
    they count as equal.

    Args:
        bound: of the read.
        make: the pace of it, for what fits.
    """
    now = Standing([0] * len(bound.windows))
    compressed = [k for k, window in enumerate(bound.windows) if window is None]
    pace = make(fitting(bound, lambda: now))
    found = Foreseen()
    assert pace.tokens is not None, "a stream has no end that could be foreseen"
    while pace.read < pace.tokens:
        rows = pace.next([now.lengths[k] for k in compressed])
        chunk = ahead(bound, now, rows, pace.budgets(rows))
        found.peaks.append(bound.costs.peak(chunk))
        found.chunks.append(rows)
        now = Standing(bound.costs.kept(chunk), now.start + rows, logits=True)
        found.lengths.append(now.lengths)
    return found


def is_padded(engine: Engine) -> bool:
    """Whether there is padding in memory."""
    return any(held is not None and held.real is not None for held in engine.memory)
