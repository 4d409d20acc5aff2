"""The README's commands run, and print what it says they print."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def readme():
    """tools/readme.py as a module."""
    spec = importlib.util.spec_from_file_location("readme_tool", ROOT / "tools" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_tool"] = module
    spec.loader.exec_module(module)
    return module


def test_the_commands_print_what_the_readme_says(readme):
    _, wrong = readme.renew(README, check=True)
    assert wrong == [], "python tools/readme.py writes what they print now"


def test_every_make_target_named_exists(readme):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"(?:^\$ |`)make ([a-z-]+)", README, re.MULTILINE)
    assert named
    assert set(named) <= set(targets)


def test_every_verb_named_exists():
    from apportion.cli.mixture import COMMANDS

    named = re.findall(r"apportion mixture\s+([a-z]+)", README)
    assert named
    assert set(named) <= set(COMMANDS)


def test_every_link_to_a_file_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", README):
        if not target.startswith(("http", "mailto")):
            assert (ROOT / target).exists(), target


def test_every_extra_named_exists():
    from source_rules import extras

    assert set(re.findall(r"apportion\[(\w+)\]", README)) <= set(extras())


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        (["a  1.00", "b 2"], ["a 1.01", "", "b   2"], True),
        (["a 1.00"], ["a 1.05"], False),
        (["a 1"], ["a 1", "b 2"], False),
        (["a 1", "…"], ["a 1", "b 2"], True),
        (["…", "c 3"], ["a 1", "b 2", "c 3"], True),
        (["a 1", "…", "c 3"], ["a 1", "b 2", "c 4"], False),
        (["a 1", "c 3"], ["a 1", "b 2", "c 3"], False),
        (["a"], [], False),
        ([], ["a"], False),
    ],
)
def test_what_counts_as_the_same(readme, shown, real, same):
    assert readme.agrees(shown, real) is same


def test_output_is_renewed_and_the_rest_is_left(readme, monkeypatch):
    lines = ["$ make demo", "$ apportion one \\", "    two", "old 1", "", "$ apportion ok", "fine"]
    text = "\n".join(["x", "```console", *lines, "```", "y", ""])
    real = {"one": ["new 2"], "ok": ["fine"]}
    monkeypatch.setattr(readme, "carry_out", lambda words, folder: real[words[1]])
    renewed, wrong = readme.renew(text)
    assert wrong == ["apportion one two"]
    assert renewed == text.replace("old 1", "new 2")
    assert readme.renew(text, check=True) == (text, wrong)
    assert readme.renew(renewed) == (renewed, [])
