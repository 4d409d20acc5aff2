"""Tables of the pages come from the committed figures, and from nowhere else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tables():
    """tools/tables.py as a module."""
    spec = importlib.util.spec_from_file_location("tables_tool", ROOT / "tools" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_say_what_the_ledgers_say(tables):
    for page in tables.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert tables.MARKED.search(text), page
        assert tables.filled(text) == text, f"{page}: run python tools/tables.py"


@pytest.mark.parametrize(
    ("value", "said"), [("1.0", "1"), ("0.99984", "0.9998"), ("0.9129", "0.913"), ("", "")]
)
def test_cosines_show_how_far_from_1_they_are(tables, value, said):
    assert tables.nearness(value) == said
