"""Jobs in processes of this machine.

Workers are spawned, not forked (torch's threads do not survive a fork), keep one thread each unless
told otherwise, and stay alive between jobs so that what one has compiled or loaded is reused. They
ignore Ctrl-C, which the parent answers by ending them, and they end by themselves when the parent
is gone, also after kill -9.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from apportion.errors import InputError, option
from apportion.execution.base import ATTEMPTS, Executor, Outcome, Task, attempt

GRACE = 5.0
"""Seconds a worker has to leave before it is killed."""


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Any
    job: Any = None
    attempts: int = 0
    busy: bool = field(default=False)

    def give(self, job: Any, attempts: int) -> None:
        self.job, self.attempts, self.busy = job, attempts, True
        self.pipe.send(job)


class LocalExecutor(Executor):
    """``workers`` spawned processes of ``threads`` threads each on this machine."""

    def __init__(self, workers: int = 2, threads: int = 1) -> None:
        for name, count in (("workers", workers), ("threads", threads)):
            if count < 1:
                raise InputError(
                    f"expected {option(name, 2)} or another number from 1 up, got {count}"
                )
        self.workers = workers
        self.threads = threads

    def run(
        self,
        task: Task,
        jobs: Sequence[Any],
        *,
        progress: Callable[[Any, Any], None] | None = None,
        lost: Callable[[Any, int | None], None] | None = None,
    ) -> Iterator[Outcome]:
        """See ``Executor.run``."""
        queue = deque((job, 1) for job in jobs)
        pool: list[_Worker] = []
        try:
            while queue or any(worker.busy for worker in pool):
                while queue and len(pool) < self.workers:
                    pool.append(self._spawn(task))
                for worker in pool:
                    if queue and not worker.busy:
                        worker.give(*queue.popleft())
                for worker in self._ready(pool):
                    outcome, retry = self._hear(worker, progress, lost)
                    if retry is not None:
                        queue.appendleft(retry)
                    if not worker.process.is_alive() and not worker.busy:
                        pool.remove(worker)
                    if outcome is not None:
                        yield outcome
        finally:
            for worker in pool:
                worker.pipe.close()  # an idle worker leaves by itself
                if worker.busy:
                    worker.process.terminate()
            for worker in pool:
                worker.process.join(GRACE)
                if worker.process.is_alive():
                    worker.process.kill()
                    worker.process.join()

    def _spawn(self, task: Task) -> _Worker:
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, task, self.threads), daemon=True)
        with _environment(self.threads):
            process.start()
        theirs.close()
        return _Worker(process, ours)

    @staticmethod
    def _ready(pool: Sequence[_Worker]) -> list[_Worker]:
        found = wait([worker.pipe for worker in pool if worker.busy])
        return [worker for worker in pool if worker.pipe in found]

    @staticmethod
    def _hear(
        worker: _Worker,
        progress: Callable[[Any, Any], None] | None,
        lost: Callable[[Any, int | None], None] | None,
    ) -> tuple[Outcome | None, tuple[Any, int] | None]:
        """Take one message: an outcome, a job to try again, or neither (progress)."""
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            worker.busy = False
            code = worker.process.exitcode
            if lost is not None:
                lost(worker.job, code)
            if worker.attempts < ATTEMPTS:
                return None, (worker.job, worker.attempts + 1)
            error = f"the worker died with exit code {code}, {worker.attempts} times"
            return Outcome(worker.job, error=error, attempts=worker.attempts), None
        if kind == "progress":
            if progress is not None:
                progress(worker.job, value)
            return None, None
        worker.busy = False
        if kind == "done":
            return Outcome(worker.job, result=value, attempts=worker.attempts), None
        return Outcome(worker.job, error=value, attempts=worker.attempts), None


@contextmanager
def _environment(threads: int) -> Generator[None, None, None]:
    """Variables that the libraries read when they load, which in a spawned child is later."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    wanted: dict[str, str] = {name: str(threads) for name in names}
    wanted["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers under every worker
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Any, task: Task, threads: int) -> None:
    """Life of a worker: jobs come by ``pipe`` until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, ConnectionError):
            return
        pipe.send(attempt(task, job, lambda value: pipe.send(("progress", value))))


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
