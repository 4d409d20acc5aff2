"""The test run's own machinery: annotations are checked, and fuzzing keeps to its time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.budget import format_count

HERE = Path(__file__).resolve().parent

SAMPLE = """
import time
import pytest
from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

@pytest.mark.fuzz
@given(st.integers())
@settings(max_examples=examples(30), deadline=None)
def test_slow(value):
    time.sleep(0.01)

@pytest.mark.fuzz
@given(st.integers())
@settings(max_examples=examples(30), deadline=None)
def test_wrong(value):
    time.sleep(0.01)
    assert value < 1000

@pytest.mark.fuzz
@pytest.mark.parametrize("bound", [0, 1])
@given(value=st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_short(value, bound):
    pass
"""


def run(folder: Path, **environment: str) -> str:
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = fuzz\n")
    known = {k: v for k, v in os.environ.items() if k not in {"APPORTION_FUZZ", "FUZZ_MINUTES"}}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "fuzzing", "-q", "test_sample.py"],
        cwd=folder,
        env={**known, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    ).stdout


def test_annotations_of_the_package_are_checked():
    with pytest.raises(TypeError, match="format_count"):
        format_count("1")
    assert format_count(1) == "1"  # an int is a float


def test_without_the_variable_the_short_count_runs(tmp_path):
    said = run(tmp_path)
    assert "1 failed, 3 passed" in said
    assert "fuzz examples" not in said


def test_time_is_kept_failures_are_shrunk_and_counts_are_told(tmp_path):
    said = run(tmp_path, APPORTION_FUZZ="100000", FUZZ_MINUTES="0.05")
    assert "1 failed, 3 passed" in said
    assert re.search(r"value=1000\b", said), "the failure was not shrunk to its simplest form"
    slow = re.search(r"(\d+)  test_sample.py::test_slow  \(time was up\)", said)
    assert slow is not None
    assert 20 <= int(slow[1]) < 300
    # Two booleans are all there is: the search ends by itself.
    assert re.search(r" 2  test_sample.py::test_short\[0\]\n", said)
