"""The sweep as a user runs it: rows, resume, kill -9, Ctrl-C, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

import sweeptext
from apportion.errors import InputError
from apportion.files import only_writer
from apportion.mixture.sweep import Recipe, SweepError, sweep, table
from apportion.mixture.sweep.model import ModelShape
from apportion.mixture.sweep.plan import PlannedRun
from sweeptext import FAMILIES, RECIPE, SHAPE, TINY, planned, write_text

PLAN = [
    planned("even", (1 / 3, 1 / 3, 1 / 3)),
    planned("alpha", (0.8, 0.1, 0.1)),
    planned("gamma", (0.1, 0.1, 0.8)),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write_text(folder / "text")
    return folder


def run(home: Path, out: Path, plan: list[PlannedRun] = PLAN, recipe: Recipe = RECIPE) -> Path:
    return sweep(
        home / "text",
        out,
        plan,
        workers=1,
        recipe=recipe,
        settings=TINY,
        cache=home / "cache",
        max_epochs=2,
        progress=False,
    )


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    return run(home, home / "whole.csv")


def losses(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path).set_index("run").sort_index()
    return frame.drop(columns="tokens_per_second")


def test_the_table_says_what_was_run(whole: Path) -> None:
    frame = pd.read_csv(whole)
    assert frame["run"].tolist() == ["even", "alpha", "gamma"]
    assert set(frame["params"]) == {ModelShape(16, 1, 2, 24).params}
    assert set(frame["tokens"]) == {3200}
    assert frame.loc[1, "ratio_alpha"] == 0.8
    assert (frame["tokens_per_second"] > 0).all()
    # a family is predicted best by the run that read most of it
    assert frame["loss_alpha"].idxmin() == 1
    assert frame["loss_gamma"].idxmin() == 2
    manifest = json.loads(table.manifest_path(whole).read_text())
    assert set(manifest["families"]) == set(FAMILIES)
    assert manifest["recipe"]["batch"] == 4
    assert manifest["families"]["alpha"]["unique_tokens"] > 1000


def test_a_sweep_repeats_to_the_last_bit(home: Path, whole: Path, tmp_path: Path) -> None:
    again = run(home, tmp_path / "again.csv")
    pd.testing.assert_frame_equal(losses(whole), losses(again), check_exact=True)


def test_finished_runs_are_skipped_and_a_torn_line_is_done_again(
    home: Path, whole: Path, tmp_path: Path
) -> None:
    out = run(home, tmp_path / "runs.csv", PLAN[:2])
    before = out.read_bytes()
    torn = before[: before.rfind(b"\n", 0, -1) + 1] + b"alpha,test,48"
    out.write_bytes(torn)
    run(home, out)
    lines = out.read_bytes().splitlines(keepends=True)
    assert lines[:2] == before.splitlines(keepends=True)[:2]  # the finished run's row, untouched
    pd.testing.assert_frame_equal(losses(out), losses(whole), check_exact=True)


CHILD = """
import signal
import sys
from pathlib import Path
# A shell starts what runs in the background with Ctrl-C ignored; here it must count.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from sweeptext import RECIPE, TINY, planned
from apportion.mixture.sweep import sweep

if __name__ == "__main__":
    home, out = Path(sys.argv[2]), Path(sys.argv[3])
    plan = [planned("even", (1 / 3, 1 / 3, 1 / 3)), planned("alpha", (0.8, 0.1, 0.1))]
    plan.append(planned("long", (0.4, 0.4, 0.2), 640_000))
    sweep(home / "text", out, plan, workers=2, recipe=RECIPE, settings=TINY,
          cache=home / "cache", max_epochs=1000, progress=False)
"""


def alive(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *numbers = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(numbers[2]) == session and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


@contextmanager
def started(home: Path, out: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep in its own process, handed over once two of its three runs are in the table."""
    script = folder / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    child = subprocess.Popen(
        [sys.executable, script, Path(sweeptext.__file__).parent, home, out],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not (out.exists() and out.read_bytes().count(b"\n") == 3):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        child.communicate()


def test_kill_9_loses_only_the_run_in_flight_and_leaves_no_worker(
    home: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.csv"
    with started(home, out, tmp_path) as child:
        session = child.pid
        assert len(alive(session)) > 1  # a worker trains the long run
    # which ends with a kill of the parent alone
    until = time.monotonic() + 60
    while alive(session) and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(session) == []
    run(home, out)
    pd.testing.assert_frame_equal(losses(out), losses(whole), check_exact=True)


def test_ctrl_c_ends_cleanly_and_keeps_what_is_finished(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    with started(home, out, tmp_path) as child:
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to all processes at once
        _, said = child.communicate(timeout=300)
    assert child.returncode != 0
    assert b"KeyboardInterrupt" in said
    assert sorted(pd.read_csv(out)["run"]) == ["alpha", "even"]
    with only_writer(out):
        pass


@pytest.mark.parametrize(
    ("recipe", "words"), [(Recipe(batch=4, compile=False, rate=1e-3), "recipe differs")]
)
def test_another_recipe_does_not_resume(
    home: Path, whole: Path, recipe: Recipe, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        run(home, whole, recipe=recipe)


def test_another_text_does_not_resume(home: Path, whole: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    with (tmp_path / "text/beta/ba.txt").open("a") as handle:
        handle.write("klmn klmn\n")
    with pytest.raises(InputError, match=r"cannot resume, corpus differs"):
        run(tmp_path, whole)


def test_a_strange_table_is_left_alone(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    out.write_text("run,loss\nx,1\n")
    with pytest.raises(InputError, match="not written by this sweep"):
        run(home, out)
    assert out.read_text() == "run,loss\nx,1\n"


def test_two_sweeps_never_write_one_table(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    with only_writer(out), pytest.raises(InputError, match="another process is writing it"):
        run(home, out)


def test_a_plan_the_text_cannot_feed_is_refused_before_any_training(
    home: Path, tmp_path: Path
) -> None:
    plan = [planned("greedy", (0.1, 0.1, 0.8), 10_000_000)]
    with pytest.raises(InputError, match=r"run greedy: family alpha .*family gamma needs"):
        run(home, tmp_path / "runs.csv", plan)
    other = [PlannedRun("x", SHAPE, 3200, 0, {"alpha": 0.5, "delta": 0.5})]
    with pytest.raises(InputError, match="not those of the text"):
        run(home, tmp_path / "runs.csv", other)


def test_an_output_or_plan_that_cannot_be_used_is_refused_before_the_text_is_read(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for place, words in (("missing/runs.csv", "No such file"), ("folder", "got a folder")):
        with pytest.raises(InputError, match=f"cannot write .*{place}: .*{words}"):
            sweep(home / "text", tmp_path / place, cache=tmp_path / "cache")
    plan = tmp_path / "plan.csv"
    plan.write_text(f"shape,tokens,ratio_alpha,ratio_beta,ratio_gamma\n{SHAPE},many,0,0,1\n")
    with pytest.raises(InputError, match=r"plan\.csv, line 2, column tokens: found 'many'"):
        sweep(home / "text", tmp_path / "runs.csv", plan, cache=tmp_path / "cache")
    with pytest.raises(InputError, match=r"expected workers=2 or another number from 1 up, got 0"):
        sweep(home / "text", tmp_path / "runs.csv", workers=0, cache=tmp_path / "cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "plan.csv"]


def test_a_sweep_that_trained_nothing_binds_no_other(tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    table.agree(out, {"recipe": 1}, ["recipe"])
    table.agree(out, {"recipe": 2}, ["recipe"])
    out.write_text("run\nx\n")
    with pytest.raises(InputError, match="cannot resume, recipe differs"):
        table.agree(out, {"recipe": 1}, ["recipe"])


def test_a_failed_run_is_named_and_the_others_are_kept(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    hot = Recipe(batch=4, compile=False, rate=1e30, embedding_rate=1e30, clip=0.0)
    with pytest.raises(SweepError, match=r"1 of 1 run failed:\neven: DivergedError"):
        run(home, out, PLAN[:1], hot)


def test_a_full_disk_keeps_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "runs.csv"
    table.append(out, ["run", "loss"], {"run": "a", "loss": 1})
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(InputError, match="the disk is full; what is there is kept"):
        table.append(out, ["run", "loss"], {"run": "b", "loss": 2})
    assert out.read_text() == "run,loss\na,1\n"
