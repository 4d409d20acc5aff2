"""Cells of a table as text: what a reader can take in, not what the machine has."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_DIGITS = 4
# Beyond this many letters a cell holds a sentence and may wrap.
_SENTENCE = 32
_NUMBER = re.compile(r"[+−-]?(\d|∞)")


@dataclass(frozen=True)
class Column:
    """Heading and how the cells stand: `"number"` (right), `"words"` (may wrap) or `"name"`."""

    heading: str
    kind: str


@dataclass(frozen=True)
class Grid:
    """A table as text, row by row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def grid(frame: pd.DataFrame) -> Grid:
    """Text of every cell and kind of every column."""
    cells = [[cell(value) for value in frame[name].tolist()] for name in frame.columns]
    columns = tuple(
        Column(str(name).replace("_", " "), _kind(column))
        for name, column in zip(frame.columns, cells, strict=True)
    )
    return Grid(columns, tuple(zip(*cells, strict=True)) if cells else ())


def cell(value: Any) -> str:
    """One value as text; what is not known is a dash."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return f"{value:.{_DIGITS}g}".replace("-", "−")
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if isinstance(value, list | tuple | set):
        return ", ".join(cell(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(each)}" for key, each in value.items())
    return str(value)


def _kind(cells: list[str]) -> str:
    given = [text for text in cells if text not in ("–", "")]
    if any(len(text) > _SENTENCE for text in given):
        return "words"
    # Half will do: a word in place of a number ("open") does not turn the column.
    numbers = sum(_NUMBER.match(text) is not None for text in given)
    return "number" if given and 2 * numbers >= len(given) else "name"
