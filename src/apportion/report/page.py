"""Sections set as one HTML page that needs nothing else: no network, no fonts, no scripts.

The page forbids itself to load or run anything (a content security policy in its head), and the
template engine escapes all text, so a hostile name in the data can at worst look odd.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import apportion
from apportion.errors import require
from apportion.files import write_text
from apportion.report.cells import grid
from apportion.report.parts import Page, Section
from apportion.report.vector import embed


def write_page(page: Page, path: str | Path) -> None:
    """Write a page atomically; see `render`.

    Raises:
        InputError: the path cannot be written, or a figure is not a plain SVG.
        MissingExtraError: jinja2 is not installed.
    """
    write_text(path, render(page))


def render(page: Page) -> str:
    """The page as text; the same input gives the same text.

    Raises:
        InputError: a figure is not a plain SVG.
        MissingExtraError: jinja2 is not installed.
    """
    jinja2: Any = require("jinja2", "plot")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = resources.files("apportion.report")
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    return template.render(
        title=page.title,
        lead=page.lead,
        style=style,
        sections=[_section(k, section) for k, section in enumerate(page.sections, 1)],
        files={name: _address(value) for name, value in page.data.items()},
        version=apportion.__version__,
    )


def _section(number: int, section: Section) -> dict[str, Any]:
    return {
        "id": f"s{number}",
        "title": section.title,
        "answer": section.answer,
        "tone": section.tone,
        "text": list(section.text),
        "points": list(section.points),
        "pictures": [
            {
                "svg": embed(picture.svg, f"s{number}f{k}-", picture.caption),
                "caption": picture.caption,
            }
            for k, picture in enumerate(section.pictures, 1)
        ],
        "tables": [
            {
                "title": table.title,
                "note": table.note,
                "folded": table.folded,
                "grid": grid(table.frame),
            }
            for table in section.tables
        ],
    }


def _address(value: Any) -> str:
    text = json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False)
    return "data:application/json;base64," + base64.b64encode(text.encode("utf-8")).decode("ascii")


def _plain(value: Any) -> Any:
    """Plain Python for JSON: tables as rows, numpy unpacked, NaN and infinity as None."""
    if isinstance(value, pd.DataFrame):
        return _plain(value.to_dict("records"))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
