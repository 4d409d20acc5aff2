"""Jobs on a real Ray cluster of several nodes: lost workers, lost nodes, lost drivers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from ray.cluster_utils import Cluster

import sweeptasks
import sweeptext
from apportion.errors import InputError
from apportion.execution import LocalExecutor, Outcome, RayExecutor
from apportion.mixture.sweep import sweep
from sweeptext import RECIPE, TINY, planned

# Ray leaves sockets and files to be closed by the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without processors and two nodes of one each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Workers import the tests' tasks by name.
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(sweeptasks.__file__).parent), before])
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    # Connected once; an executor stays with the connection that there is.
    ray.init(made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ["PYTHONPATH"] = before


def results(
    cluster: Cluster, jobs: list[Any], task: Any, stay: bool = False, **heard: Callable[..., None]
) -> dict[str, Outcome]:
    executor = RayExecutor(cluster.address, stay=stay)
    outcomes = list(executor.run(task, jobs, **heard))
    assert len(outcomes) == len(jobs)
    return {str(outcome.job): outcome for outcome in outcomes}


@pytest.mark.parametrize("stay", [False, True])
def test_every_job_comes_back_once_with_one_thread_each(cluster: Cluster, stay: bool) -> None:
    found = results(cluster, [1, 2, 3, 4, 5], sweeptasks.square, stay)
    squares = {outcome.job: outcome.result[0] for outcome in found.values()}
    assert squares == {1: 1, 2: 4, 3: 9, 4: 16, 5: 25}
    assert {outcome.result[1] for outcome in found.values()} == {1}


def test_workers_that_stay_are_as_many_as_there_is_room_for(cluster: Cluster) -> None:
    found = results(cluster, [0.01, 0.02, 0.03, 0.04, 0.05, 0.06], sweeptasks.sleep, stay=True)
    assert len({outcome.result for outcome in found.values()}) == 2


@pytest.mark.parametrize("stay", [False, True])
def test_a_dead_worker_is_heard_of_and_its_job_tried_once_more(
    cluster: Cluster, tmp_path: Path, stay: bool
) -> None:
    lost: list[tuple[Any, int | None]] = []
    once, always = f"once:{tmp_path / 'mark'}", "always"
    found = results(
        cluster, [once, always, "fine"], sweeptasks.die, stay,
        lost=lambda job, code: lost.append((job, code)),
    )  # fmt: skip
    assert (found[once].result, found[once].attempts) == ("survived", 2)
    assert found["fine"].result == "survived"
    assert "lost 2 times" in str(found[always].error)
    assert sorted(lost) == [(always, None), (always, None), (once, None)]


def test_an_exception_is_the_jobs_end(cluster: Cluster) -> None:
    found = results(cluster, [0, 2], sweeptasks.divide)
    assert str(found["0"].error).startswith("ZeroDivisionError")
    assert (found["0"].attempts, found["2"].result) == (1, 0.5)


def test_progress_is_heard(cluster: Cluster) -> None:
    heard: list[tuple[Any, Any]] = []
    results(
        cluster, [3.0], sweeptasks.tell_and_sleep,
        progress=lambda job, value: heard.append((job, value)),
    )  # fmt: skip
    assert [job for job, _ in heard] == [3.0]


def test_a_job_of_a_node_that_goes_is_done_on_another(cluster: Cluster) -> None:
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    lost: list[Any] = []
    begun: set[Any] = set()

    def told(job: Any, _: Any) -> None:
        begun.add(job)
        if len(begun) == 3 and not lost:
            # All three nodes have a job now.
            threading.Thread(target=cluster.remove_node, args=(doomed,)).start()

    jobs = [8.0, 8.1, 8.2]
    found = results(
        cluster, jobs, sweeptasks.tell_and_sleep,
        progress=told, lost=lambda job, code: lost.append(job),
    )  # fmt: skip
    assert all(outcome.error is None for outcome in found.values())
    assert len(lost) == 1
    assert found[str(lost[0])].attempts == 2


def test_what_no_node_can_do_and_no_cluster_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="the largest of 3 has 1 CPUs; lower threads=1"):
        list(RayExecutor(cluster.address, threads=2).run(sweeptasks.square, [1]))
    with pytest.raises(InputError, match="workers"):
        RayExecutor(workers=0)


# A driver of its own, which is killed.
DRIVER = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from sweeptext import RECIPE, TINY, planned
from apportion.execution import RayExecutor
from apportion.mixture.sweep import sweep

if __name__ == "__main__":
    home, out, address = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    plan = [planned("even", (1 / 3, 1 / 3, 1 / 3)), planned("alpha", (0.8, 0.1, 0.1))]
    plan.append(planned("long", (0.4, 0.4, 0.2), 64_000))
    sweep(home / "text", out, plan, executor=RayExecutor(address), recipe=RECIPE, settings=TINY,
          cache=home / "cache", max_epochs=1000, progress=False)
"""
PLAN = [
    planned("even", (1 / 3, 1 / 3, 1 / 3)),
    planned("alpha", (0.8, 0.1, 0.1)),
    planned("long", (0.4, 0.4, 0.2), 64_000),
]


def workers() -> list[int]:
    """Processes that carry out a run now."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::carry_out" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def rows(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path).drop(columns="tokens_per_second")
    return frame.sort_values("run", ignore_index=True)


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_sweep_survives_its_worker_and_its_driver(cluster: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "home"
    sweeptext.write_text(home / "text")
    more: dict[str, Any] = {"recipe": RECIPE, "settings": TINY, "max_epochs": 1000}
    more |= {"cache": home / "cache", "progress": False}
    local = sweep(home / "text", tmp_path / "local.csv", PLAN, executor=LocalExecutor(1), **more)

    out, script = tmp_path / "runs.csv", tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    given = [Path(sweeptasks.__file__).parent, home, out, cluster.address]
    driver = subprocess.Popen([sys.executable, script, *given], stderr=subprocess.DEVNULL)
    try:
        # A worker first: its run is tried again.
        wait_for(workers)
        for process in workers():
            os.kill(process, signal.SIGKILL)
        wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") >= 2)
    finally:
        driver.kill()  # in the middle of the others
        driver.wait()
    before = rows(out)
    assert 1 <= len(before) < 3
    # Nobody goes on for a driver that is gone.
    wait_for(lambda: not workers())
    sweep(home / "text", out, PLAN, executor=RayExecutor(cluster.address), **more)
    pd.testing.assert_frame_equal(rows(out), rows(local), check_exact=True)


def test_a_cluster_of_this_machine_is_started_and_stopped(cluster: Cluster) -> None:
    ray.shutdown()
    with pytest.raises(InputError, match=r"could not reach it: Connection refused"):
        list(RayExecutor("127.0.0.1:1").run(sweeptasks.square, [1]))
    found = list(RayExecutor(cluster.address).run(sweeptasks.square, [3]))
    assert found[0].result[0] == 9
    assert not ray.is_initialized()
    found = list(RayExecutor(workers=1).run(sweeptasks.square, [4]))
    assert found[0].result[0] == 16
    assert not ray.is_initialized()
