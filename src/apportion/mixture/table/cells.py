"""Cells to numbers, strictly: what is not a plain finite number is named and its form shown.

`float` alone would accept `1_000`, digits of other scripts, `nan` and `inf`; a data frame reader
would turn a column with one stray word into text. Here every such cell is a problem with a place.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from apportion.budget import parse_count
from apportion.errors import InputError
from apportion.mixture.table.tablefile import Column, refuse

_THOUSANDS = re.compile(r"[+-]?\d{1,3}([, '_ \u202f\u00a0])\d{3}(?:\1\d{3})*(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def numbers(column: Column, what: str, strict: bool) -> Float[np.ndarray, " rows"]:
    """One column as finite numbers.

    Args:
        column: its cells.
        what: what a cell should be, for the message.
        strict: refuse zero as well as negative values.

    Raises:
        InputError: cells that are not such numbers, with their places.
    """
    problems: list[str] = []
    values = refine(column, strict, problems)
    if problems:
        refuse(f"{what} in every cell", problems, "correct the cells, or remove the runs")
    return values


def refine(column: Column, strict: bool, problems: list[str]) -> Float[np.ndarray, " rows"]:
    """As `numbers`, but problems are appended to a list (their cells become NaN)."""
    values = _convert(column, problems)
    unusual = np.flatnonzero(~np.isfinite(values) | (values <= 0 if strict else values < 0))
    for row in unusual:
        value = values[row]
        if np.isnan(value) and _unreadable(column.cells[row]):
            continue
        kind = (
            "NaN, not a number"
            if np.isnan(value)
            else f"the infinite value {value}"
            if np.isinf(value)
            else "zero"
            if value == 0
            else f"the negative value {value:g}"
        )
        problems.append(f"{column.at(int(row))}: found {kind}")
    return values


def _convert(column: Column, problems: list[str]) -> Float[np.ndarray, " rows"]:
    cells = column.cells
    try:
        if all(type(cell) is str for cell in cells):
            joined = "".join(cells)
            if joined.isascii() and "_" not in joined:
                return np.array([float(cell) for cell in cells])
        elif all(type(cell) is float for cell in cells):
            return np.array(cells, dtype=float)
    except ValueError:
        pass
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if _unreadable(cell):
            problems.append(f"{column.at(row)}: {_describe(cell)}")
        else:
            values[row] = _to_float(cell)
    return values


def _to_float(cell: Any) -> float:
    """The cell as a float.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    if isinstance(cell, str):
        if not cell.isascii() or "_" in cell:
            raise ValueError(cell)
        return float(cell)
    if isinstance(cell, (bool, np.bool_)) or not isinstance(cell, (int, float, Decimal, np.number)):
        raise TypeError(cell)
    return float(cell)


def _unreadable(cell: Any) -> bool:
    try:
        _to_float(cell)
    except (ValueError, TypeError, OverflowError):
        return True
    return False


def _describe(cell: Any) -> str:
    """What was found, and the number it may stand for."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return "the cell is empty"
    if not isinstance(cell, str):
        return f"found {str(cell)[:40]!r} of type {type(cell).__name__}, not a number"
    text = cell.strip()
    found = f"found {text[:40]!r}"
    if _THOUSANDS.fullmatch(text):
        return f"{found} with thousands separators; write {re.sub(r'[^0-9.+-]', '', text)}"
    if _DECIMAL_COMMA.fullmatch(text):
        return f"{found} with a decimal comma; write {text.replace(',', '.')}"
    if text.endswith("%"):
        return f"{found}, a percentage; write the share, divided by 100"
    try:
        value = parse_count(text) if text.isascii() else None
    except InputError:
        value = None
    return f"{found}, not a number" + (f"; write {value:.12g}" if value is not None else "")


def check(
    column: Column,
    bad: Bool[np.ndarray, " rows"],
    values: Float[np.ndarray, " rows"],
    expected: str,
    correction: str,
) -> None:
    """Refuse the rows of a column where `bad` holds.

    Raises:
        InputError: any row is bad.
    """
    rows = np.flatnonzero(bad)
    if len(rows):
        refuse(expected, [f"{column.at(int(k))}: found {values[k]:g}" for k in rows], correction)


def integers(column: Column, what: str) -> Int[np.ndarray, " rows"]:
    """One column as 64-bit integers; `3` and `3.0` are integers, `3.5` is not.

    Raises:
        InputError: cells that are no integers, with their places.
    """
    values: list[int] = []
    problems: list[str] = []
    for row, cell in enumerate(column.cells):
        try:
            # Not through float where it can be avoided: seeds may have more than 53 bits.
            if isinstance(cell, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", cell, re.ASCII):
                value = int(cell)
            elif isinstance(cell, int) and not isinstance(cell, bool):
                value = cell
            else:
                number = _to_float(cell)
                value = int(number)
                if value != number:
                    raise ValueError(cell)
            if not -(2**63) <= value < 2**63:
                raise OverflowError(cell)
            values.append(value)
        except (ValueError, TypeError, OverflowError):
            problems.append(f"{column.at(row)}: {_describe_integer(cell)}")
    if problems:
        refuse(f"a whole number as {what} in every cell", problems, "correct the cells")
    return np.array(values, dtype=np.int64)


def _describe_integer(cell: Any) -> str:
    return _describe(cell) if _unreadable(cell) else f"found {str(cell)[:40]!r}"


def typed(cells: list[Any]) -> pd.Series:
    """Cells of a column without meaning here: numbers where all are numbers, otherwise text."""
    if any(isinstance(cell, str) for cell in cells):
        texts = ["" if cell is None else str(cell).strip() for cell in cells]
        for kind in (int, float):
            # float() reads an empty cell of a numeric column as missing.
            try:
                values = [kind(text) if text or kind is int else np.nan for text in texts]
                return pd.Series(values, dtype="int64" if kind is int else "float64")
            except (ValueError, OverflowError):
                continue
        return pd.Series(texts, dtype=object)
    if all(cell is None or isinstance(cell, (int, float)) for cell in cells):
        try:
            return pd.Series([np.nan if cell is None else cell for cell in cells])
        except OverflowError:
            pass
    return pd.Series(["" if cell is None else str(cell) for cell in cells], dtype=object)
