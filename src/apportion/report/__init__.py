"""One self-contained HTML page from results: tables and figures, nothing fetched from anywhere.

This package knows nothing of what it shows: whoever has results describes them as sections (see
`parts`), and `write_page` sets them.
"""

from __future__ import annotations

from apportion.report.page import render, write_page
from apportion.report.parts import Picture, Section, Table

__all__ = ["Picture", "Section", "Table", "render", "write_page"]
