"""What a page is made of. Anything with these attributes will do; nothing needs to be imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import pandas as pd

Tone = Literal["", "good", "care", "bad"]


@runtime_checkable
class Table(Protocol):
    """A table; `frame` is shown as it is, numbers with four significant digits.

    Attributes:
        title: one line above.
        frame: the cells.
        note: one sentence below.
        folded: shown only when opened.
    """

    @property
    def title(self) -> str: ...
    @property
    def frame(self) -> pd.DataFrame: ...
    @property
    def note(self) -> str: ...
    @property
    def folded(self) -> bool: ...


@runtime_checkable
class Picture(Protocol):
    """A figure: `svg` is its source, `caption` says what it shows (also to screen readers)."""

    @property
    def svg(self) -> str: ...
    @property
    def caption(self) -> str: ...


@runtime_checkable
class Section(Protocol):
    """One question and its answer.

    Attributes:
        title: the question or the topic.
        answer: the answer in one sentence; may be empty.
        tone: how the answer is to be taken.
        text: paragraphs.
        points: what the answer rests on, one sentence each; two leading spaces make it a detail of
            the point before.
        pictures, tables: in the order shown.
    """

    @property
    def title(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def tone(self) -> Tone: ...
    @property
    def text(self) -> Sequence[str]: ...
    @property
    def points(self) -> Sequence[str]: ...
    @property
    def pictures(self) -> Sequence[Picture]: ...
    @property
    def tables(self) -> Sequence[Table]: ...


@runtime_checkable
class Page(Protocol):
    """A whole page.

    Attributes:
        title: its heading.
        lead: one sentence under the heading; may be empty.
        sections: in the order shown.
        data: results to be saved from the page, by file name; written as JSON, tables as lists of
            rows, what is not a finite number as null.
    """

    @property
    def title(self) -> str: ...
    @property
    def lead(self) -> str: ...
    @property
    def sections(self) -> Sequence[Section]: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
