"""The keep ratio that a byte budget allows."""

from __future__ import annotations

from apportion.budget import format_bytes
from apportion.errors import InputError
from apportion.finetune.lowbit import packed_bytes
from apportion.finetune.tokens import SINKS

_INDEX_BYTES = 8


def stored_bytes(
    rows: int, exact: int, batch: int, width: int, bits: int, element: int, layers: int
) -> int:
    """Bytes that all layers store for their backward.

    Args:
        rows, exact: of a sample, and those of them that are exact.
        batch, width: samples, and numbers of a row.
        bits: of the rows that are not exact.
        element: bytes of a number of an exact row.
    """
    if exact >= rows:
        return layers * batch * rows * width * element
    few = packed_bytes(batch * (rows - exact), width, bits, element)
    return layers * (batch * exact * (width * element + _INDEX_BYTES) + few)


def rows_for(
    budget: int, rows: int, batch: int, width: int, bits: int, element: int, layers: int
) -> int:
    """The most exact rows of a sample that fit.

    Args:
        budget: bytes for all layers together; the others as in `stored_bytes`.

    Raises:
        InputError: not even the sinks fit; says the least that works.
    """

    def needed(exact: int) -> int:
        return stored_bytes(rows, exact, batch, width, bits, element, layers)

    least = min(SINKS, rows)
    if needed(least) > budget:
        raise InputError(
            f"expected a budget of {format_bytes(needed(least))} at least for {batch} samples of "
            f"{rows} tokens (sinks exact, the others in {bits} bits), got {format_bytes(budget)}; "
            "raise it, or shorten the batch"
        )
    # Bytes grow with the exact rows, but for the last step: without few-bit rows there is no index.
    if needed(rows) <= budget:
        return rows
    low, high = least, rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= budget else (low, middle - 1)
    return low
