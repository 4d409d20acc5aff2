"""The project's own files agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import apportion
from source_rules import extras

ROOT = Path(__file__).resolve().parent.parent
BUILD_FILES = ("Makefile", "constraints.txt", "pyproject.toml", "mkdocs.yml", ".ci/run")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pinned() -> dict[str, str]:
    lines = [line for line in text("constraints.txt").splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_one_version_everywhere():
    assert version("apportion") == apportion.__version__
    assert yaml.safe_load(text("CITATION.cff"))["version"] == apportion.__version__


def test_the_changelog_has_dates_and_an_unreleased_part():
    headings = re.findall(r"^## (.*)$", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    for heading in headings[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading)


def test_constraints_pin_exactly_what_the_tests_need():
    pins = pinned()
    needed = {re.sub(r"[-_.]+", "-", name).lower() for name in extras()["dev"]}
    assert needed - set(pins) == set()
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", exact) for exact in pins.values())


def test_the_versions_tested_are_those_pinned():
    pins = pinned()
    for name in ("numpy", "scipy", "pandas", "torch", "hypothesis", "pytest"):
        assert version(name).split("+")[0] == pins[name], f"{name}: run `make constraints`"


@pytest.mark.parametrize("name", [*BUILD_FILES, "tools/setup.sh", "tools/chromium.sh"])
def test_nothing_that_installs_names_an_address(name):
    assert re.findall(r"https?://|git\+|--(?:extra-)?index-url|--find-links", text(name)) == []


def test_the_entry_points_can_be_run_and_parsed():
    for name in (".ci/run", "tools/setup.sh", "tools/chromium.sh"):
        assert os.access(ROOT / name, os.X_OK), name
        assert "set -euo pipefail" in text(name)
        subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)


@pytest.mark.parametrize("target", ["demo", "test", "fuzz", "lint", "types", "docs", "bench-help"])
def test_every_target_sets_up_what_it_needs(target):
    (rule,) = re.findall(rf"^{target}:(.*?)##", text("Makefile"), flags=re.MULTILINE)
    assert rule.split()[0] == "$(STAMP)"


def test_the_wheel_holds_the_whole_package_and_nothing_else(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith("/METADATA"))
        requires = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.M)
    packed = {name for name in names if ".dist-info/" not in name}
    source = ROOT / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / "apportion").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == files
    assert "apportion/py.typed" in packed
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    core = [line for line in requires if "extra ==" not in line]
    assert not [line for line in core if re.match(r"torch|transformers|matplotlib|ray", line)]
