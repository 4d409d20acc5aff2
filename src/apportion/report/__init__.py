"""One self-contained HTML page from results: tables and figures, nothing fetched from anywhere.

This package knows nothing of what it shows: whoever has results describes them as a page of
sections (see `parts`), and `write_page` sets it.
"""

from __future__ import annotations

from apportion.report.page import render, write_page
from apportion.report.parts import Page, Picture, Section, Table

__all__ = ["Page", "Picture", "Section", "Table", "render", "write_page"]
