"""The pace of a read that has to keep a bound, and what its next chunk will hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from apportion.budget import format_bytes
from apportion.errors import InputError, option
from apportion.prefill.bound import Bound, by_default, check_settled, rounded
from apportion.prefill.costs import Ahead
from apportion.prefill.pace import Fits, Pace
from apportion.prefill.probe import Padding
from apportion.prefill.rehearse import Standing, fitting, is_padded, rehearsed
from apportion.prefill.source import Source

if TYPE_CHECKING:
    from apportion.prefill.context import Context
    from apportion.prefill.reader import Settings


def pace_of(
    settings: Settings, layers: int, tokens: int | None, fits: Fits | None, full: bool = False
) -> Pace:
    """The pace that settings ask for; the other arguments are those of `Pace`."""
    given = (settings.schedule, settings.chunks, settings.memory, settings.chunk)
    return Pace(*given, layers, tokens, fits, full)


def paced(context: Context, source: Source, full: bool) -> tuple[Pace, Bound | None]:
    """How a text will be read, and the bound that it keeps or that foresees its bytes, if any.

    Args:
        context: that reads it.
        source: of the text.
        full: memory is to stay as large as it is.

    Raises:
        InputError: a bound that chunks of these sizes can't keep.
    """
    settings = context.reader.settings
    compressed = len(context.engine.compressed)
    make = partial(pace_of, settings, compressed, source.tokens, full=full)
    free = settings.budget is None and settings.chunks != "bytes"
    if free and not context.predict and context.predicted_bytes is None:
        return make(None), None
    bound = context.reader.bound(source.batch, context.questions)
    if free:
        return make(None), bound
    memory, chunk, tokens = settings.memory, settings.chunk, source.tokens
    if settings.chunks != "bytes":
        _check(bound, make, memory, chunk, known=tokens is not None and not full)
        return make(None), bound
    if bound.bytes is None:
        bound = replace(bound, bytes=by_default(bound, memory, chunk, tokens))
    else:
        # A short text doesn't fill memory.
        filled = memory if tokens is None or full else min(memory, tokens)
        check_settled(bound, filled, chunk)
    pace = make(None)

    def standing() -> Standing:
        padded = pace.read < source.padding
        return Standing(
            context.engine.lengths(),
            context.tokens,
            Padding(padded, is_padded(context.engine)),
            context.logits is not None,
        )

    pace = make(fitting(bound, standing))
    return pace, bound


def foreseen(context: Context, bound: Bound, rows: int, budgets: Sequence[int], pads: bool) -> int:
    """Bytes that the next chunk will hold at its highest.

    Args:
        context: that reads it.
        bound: with the costs.
        rows: of the chunk.
        budgets: of every layer.
        pads: there is padding in the chunk.
    """
    chunk = Ahead(
        rows,
        context.engine.lengths(),
        budgets,
        context.tokens,
        Padding(pads, is_padded(context.engine)),
        context.logits is not None,
    )
    return bound.costs.peak(chunk).bytes


def _check(
    bound: Bound, make: Callable[[Fits | None], Pace], memory: int, chunk: int, known: bool
) -> None:
    """Chunks whose sizes don't look at bytes keep a bound.

    Args:
        bound: to keep.
        make: the pace.
        memory: M.
        chunk: c.
        known: the length of the text is, and the read is its first.
    """
    if known:
        need = rehearsed(bound, make).peak.bytes
    else:
        need = max(bound.steady(memory, chunk), bound.first(memory, chunk))
    if bound.bytes is not None and need > bound.bytes:
        raise InputError(
            f"expected {option('budget')} of {rounded(need)} at least for "
            f"{option('memory', memory)} in chunks of {chunk} tokens, got "
            f"{format_bytes(bound.bytes)}; {option('chunks', 'bytes')} makes chunks that fit, as "
            "far as memory leaves room"
        )
