"""Workers that die, fail, report, and end with their parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sweeptasks
from apportion.errors import InputError
from apportion.execution import LocalExecutor, Outcome


def results(jobs: list[Any], task: Any, workers: int = 2, **heard: Callable[..., None]) -> dict:
    outcomes: list[Outcome] = list(LocalExecutor(workers).run(task, jobs, **heard))
    assert len(outcomes) == len(jobs)
    return {str(outcome.job): outcome for outcome in outcomes}


def test_every_job_comes_back_once_with_one_thread_each() -> None:
    found = results([1, 2, 3], sweeptasks.square)
    assert {outcome.job: outcome.result[0] for outcome in found.values()} == {1: 1, 2: 4, 3: 9}
    assert {outcome.result[1] for outcome in found.values()} == {1}
    assert all(outcome.attempts == 1 and outcome.error is None for outcome in found.values())


def test_a_dead_worker_is_named_and_its_job_tried_once_more(tmp_path: Path) -> None:
    lost: list[tuple[Any, int | None]] = []
    once, always = f"once:{tmp_path / 'mark'}", "always"
    found = results(
        [once, always, "fine"], sweeptasks.die, lost=lambda job, code: lost.append((job, code))
    )
    assert found[once].result == "survived"
    assert found[once].attempts == 2
    assert found["fine"].result == "survived"
    assert "exit code 7, 2 times" in str(found[always].error)
    assert sorted(lost) == [(always, 7), (always, 7), (once, -9)]


def test_an_exception_is_the_jobs_end_and_not_the_workers() -> None:
    found = results([0, 2], sweeptasks.divide, workers=1)
    assert str(found["0"].error).startswith("ZeroDivisionError")
    assert found["0"].attempts == 1
    assert found["2"].result == 0.5


def test_progress_comes_before_the_result() -> None:
    heard: list[tuple[Any, Any]] = []
    results([4], sweeptasks.count, progress=lambda job, value: heard.append((job, value)))
    assert heard == [(4, 0), (4, 1), (4, 2), (4, 3)]


def test_leaving_early_ends_the_workers() -> None:
    running = LocalExecutor(2).run(sweeptasks.sleep, [0.0, 60.0])
    first = next(running)
    assert first.job == 0.0
    worker = first.result
    running.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert not _alive(worker)


def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            sys.path.insert(0, sys.argv[1])
            import sweeptasks
            from apportion.execution import LocalExecutor

            if __name__ == "__main__":
                told = lambda job, value: print(value, flush=True)
                list(LocalExecutor(1).run(sweeptasks.tell_and_sleep, [60.0], progress=told))
            """
        )
    )
    parent = subprocess.Popen(
        [sys.executable, str(script), str(Path(sweeptasks.__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert _alive(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(worker)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{process}")


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 0)])
def test_no_workers_is_refused(workers: int, threads: int) -> None:
    with pytest.raises(InputError, match=r"from 1 up, got 0"):
        LocalExecutor(workers, threads)
