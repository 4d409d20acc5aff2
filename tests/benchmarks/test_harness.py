"""The benchmark harness: turns are fair, and the ledger only grows."""

from __future__ import annotations

import csv
import itertools
import os
import re
import sys
from pathlib import Path

import pytest

import harness
from harness import Timing


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def test_sides_alternate_and_warmup_is_not_counted():
    calls: list[str] = []
    timings = harness.take_turns(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=2
    )
    assert calls == ["a", "b"] * 5
    assert {side: len(timing.seconds) for side, timing in timings.items()} == {"a": 3, "b": 3}


def test_seconds_are_those_of_the_side_itself(monkeypatch):
    clock = [0.0]

    def spend(seconds: float) -> float:
        clock[0] += seconds
        return seconds

    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])
    slow = itertools.count(1)
    timings = harness.take_turns(
        {"a": lambda: spend(float(next(slow))), "b": lambda: spend(0.5)}, rounds=3, warmup=1
    )
    assert timings["a"].seconds == (2.0, 3.0, 4.0)
    assert timings["b"].seconds == (0.5, 0.5, 0.5)
    assert timings["a"].value == 4.0
    assert timings["a"].row() == {
        "side": "a",
        "rounds": 3,
        "median_s": 3.0,
        "min_s": 2.0,
        "max_s": 4.0,
    }


def test_ratio_is_taken_within_rounds():
    # The machine is ten times slower in the third round; the ratio does not notice.
    slow = Timing("slow", (2.0, 2.0, 20.0), None)
    fast = Timing("fast", (1.0, 1.0, 10.0), None)
    assert harness.ratio(slow, fast) == 2.0
    with pytest.raises(ValueError, match="shorter"):
        harness.ratio(slow, Timing("fast", (1.0,), None))


@pytest.mark.parametrize(("sides", "rounds"), [({}, 3), ({"a": int}, 0)])
def test_nothing_to_measure_is_refused(sides, rounds):
    with pytest.raises(ValueError, match="expected a side and a round"):
        harness.take_turns(sides, rounds)


def test_record_appends_and_keeps_what_was_there(tmp_path):
    path = harness.record("speed", [{"side": "a", "x": 1.5}], tmp_path)
    first = path.read_text(encoding="utf-8")
    harness.record("speed", [{"side": "b", "x": 2.5}, {"side": 'c, "quoted"', "x": 3}], tmp_path)
    assert path.read_text(encoding="utf-8").startswith(first)
    rows = read(path)
    assert [(row["side"], row["x"]) for row in rows] == [
        ("a", "1.5"),
        ("b", "2.5"),
        ('c, "quoted"', "3"),
    ]
    assert list(rows[0]) == ["side", "x", *harness.STAMP]
    assert all(row["python"] == sys.version.split()[0] for row in rows)


@pytest.mark.parametrize("row", [{"side": "b"}, {"x": 1, "side": "b"}, {"side": "b", "y": 1}])
def test_record_refuses_another_header_and_leaves_the_file(tmp_path, row):
    path = harness.record("speed", [{"side": "a", "x": 1.5}], tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="expected the header"):
        harness.record("speed", [row], tmp_path)
    assert path.read_bytes() == before


def test_record_refuses_ragged_rows_no_rows_and_a_cut_line(tmp_path):
    with pytest.raises(ValueError, match="in every row"):
        harness.record("speed", [{"a": 1}, {"b": 1}], tmp_path)
    with pytest.raises(ValueError, match="a row at least"):
        harness.record("speed", [], tmp_path)
    assert list(tmp_path.iterdir()) == []
    path = harness.record("speed", [{"a": 1}], tmp_path)
    cut = path.read_bytes()[:-3]
    path.write_bytes(cut)
    with pytest.raises(ValueError, match="the last one is cut"):
        harness.record("speed", [{"a": 2}], tmp_path)
    assert path.read_bytes() == cut


def test_stamp_names_machine_versions_and_revision():
    stamp = harness.stamp()
    assert tuple(stamp) == harness.STAMP
    assert stamp["cpu"]
    assert stamp["cores"] == len(os.sched_getaffinity(0))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp["date"])
    assert re.fullmatch(r"[0-9a-f]{10}\+?|none", stamp["revision"])
    import numpy

    assert stamp["numpy"] == numpy.__version__


def test_revision_outside_a_clone_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert harness.stamp()["revision"] == "none"


def test_arguments(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", "--rounds", "7", "--tables", "9"])
    got = harness.arguments("Doc.", add=lambda p: p.add_argument("--tables", type=int))
    assert (got.rounds, got.dry, got.tables) == (7, False, 9)
    monkeypatch.setattr(sys, "argv", ["x", "--rounds", "0"])
    with pytest.raises(SystemExit) as exit_:
        harness.arguments("Doc.")
    assert exit_.value.code == 2
    assert "expected 1 or more, got 0" in capsys.readouterr().err


def test_listing_names_every_benchmark(capsys):
    harness.main()
    listed = capsys.readouterr().out
    for path in Path(harness.__file__).parent.glob("**/*.py"):
        runnable = '__name__ == "__main__"' in path.read_text(encoding="utf-8")
        expected = runnable and path.name != "harness.py"
        assert (str(path.relative_to(harness.ROOT)) in listed) == expected


def test_committed_ledgers_carry_the_stamp():
    for path in harness.RESULTS.glob("*.csv"):
        rows = read(path)
        assert rows, path
        assert tuple(rows[0])[-len(harness.STAMP) :] == harness.STAMP, path
        assert all(None not in row and None not in row.values() for row in rows), path


def test_the_newest_measurement_of_a_line_counts(tmp_path, monkeypatch):
    (tmp_path / "some.csv").write_text("side,value\na,1\nb,2\na,3\n", encoding="utf-8")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    found = [tuple(row.values()) for row in harness.newest("some", "side")]
    assert found == [("b", "2"), ("a", "3")]
