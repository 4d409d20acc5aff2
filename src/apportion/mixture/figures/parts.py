"""Text, tables and figures by which results are handed to a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd


@dataclass(frozen=True)
class Table:
    """A table with one line above and one sentence below; `folded` ones are shown when opened."""

    title: str
    frame: pd.DataFrame
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure as SVG text, and what it shows."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One question: its answer in a sentence, what the answer rests on, tables and figures."""

    title: str
    answer: str = ""
    tone: Literal["", "good", "care", "bad"] = ""
    text: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Page:
    """What a page shows, and the numbers that can be saved from it, by file name."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    data: Mapping[str, Any]
