"""Jobs on a Ray cluster: one task a job, or workers that stay.

Ray queues what there is no room for, starts processes on the nodes and says when one is lost; this
file states what each job needs, streams results back as they come, and tries a lost job once more,
which Ray gives to another process, on another node where the first is gone. Everything ends with
the driver, and the driver alone writes results, so nothing is counted twice: a driver that is
started again finds what is finished and submits the rest.

Refused: Ray's own retries, which would hide how often a job was lost, and detached actors, which
would outlive a driver that was killed.
"""

from __future__ import annotations

import math
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from apportion.errors import InputError, option, require
from apportion.execution.base import ATTEMPTS, Executor, Outcome, Task, attempt

PAUSE = 0.5
"""Seconds after which progress is asked for, if nothing has finished."""


@dataclass
class _Flight:
    """A job under way, and the worker that has it, where workers stay."""

    job: Any
    attempts: int
    worker: Any = None


class RayExecutor(Executor):
    """Jobs on a Ray cluster.

    Attributes:
        address: of the cluster: `"auto"`, `"host:port"`, `"ray://host:port"`; None: one of this
            machine, which is started, and stopped at the end.
        workers: jobs at once; None: as many as the cluster has room for.
        threads: CPUs that a job is given, and threads that torch uses in it.
        gpus: GPUs that a job is given; a share of one, too.
        stay: workers stay between jobs, each a process of its own: what a task loads once is
            loaded once a worker.

    Where this process is connected to a cluster already, that one is used.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        threads: int = 1,
        gpus: float = 0.0,
        stay: bool = False,
    ) -> None:
        for name, count in (("workers", workers), ("threads", threads)):
            if count is not None and count < 1:
                raise InputError(
                    f"expected {option(name, 2)} or another number from 1 up, got {count}"
                )
        self.address, self.workers, self.threads = address, workers, threads
        self.gpus, self.stay = gpus, stay

    def run(
        self,
        task: Task,
        jobs: Sequence[Any],
        *,
        progress: Callable[[Any, Any], None] | None = None,
        lost: Callable[[Any, int | None], None] | None = None,
    ) -> Iterator[Outcome]:
        """See `Executor.run`.

        Raises:
            InputError: no cluster at the address, or none of its nodes can take a job.
            MissingExtraError: Ray is not installed.
        """
        ray = require("ray", "ray")
        with self._connected(ray):
            yield from _Running(self, ray, task, progress, lost).outcomes(jobs)

    @property
    def needs(self) -> dict[str, float]:
        """What Ray reserves for a job."""
        return {"num_cpus": self.threads, "num_gpus": self.gpus}

    def at_once(self, ray: Any) -> float:
        """Jobs that are given out together; infinite where Ray may queue them all.

        Raises:
            InputError: no node can take one.
        """
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = [_room(node, self.threads, self.gpus) for node in nodes]
        if not any(room):
            most = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
            raise InputError(
                f"expected a node with {self.threads} CPUs and {self.gpus:g} GPUs for each job, "
                f"the largest of {len(nodes)} has {most:g} CPUs; lower {option('threads', 1)}, or "
                "start Ray with more"
            )
        if self.stay:
            return min(sum(room), self.workers or sum(room))
        # Nodes may join later: Ray queues what there is no room for.
        return self.workers or math.inf

    @contextmanager
    def _connected(self, ray: Any) -> Generator[None]:
        if ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        own: dict[str, Any] = {}
        if self.address is not None:
            _check_reach(self.address)
        else:
            count = (self.workers or 1) * self.threads
            own = {"num_cpus": max(count, os.cpu_count() or 1), "include_dashboard": False}
        try:
            # Not the cluster that the environment names, unless it was asked for.
            where = self.address or "local"
            ray.init(address=where, log_to_driver=False, logging_level="warning", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"expected a Ray cluster at {self.address or 'this machine'}, could not reach it: "
                f"{error}; start one with `ray start --head`, or leave {option('address')} out"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _check_reach(address: str) -> None:
    """Whether anybody listens there; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(
            f"expected a Ray cluster at {address}, could not reach it: {error.strerror or error}; "
            f"start one with `ray start --head`, or leave {option('address')} out"
        ) from error


def _room(node: dict[str, float], threads: int, gpus: float) -> int:
    by_cpu = int(node.get("CPU", 0.0) // threads)
    return by_cpu if not gpus else min(by_cpu, int(node.get("GPU", 0.0) // gpus))


class _Running:
    """One call of `RayExecutor.run`."""

    def __init__(
        self,
        executor: RayExecutor,
        ray: Any,
        task: Task,
        progress: Callable[[Any, Any], None] | None,
        lost: Callable[[Any, int | None], None] | None,
    ) -> None:
        self.executor, self.ray, self.task = executor, ray, task
        self.progress, self.lost = progress, lost
        self.limit = executor.at_once(ray)
        self.once = ray.remote(max_retries=0, **executor.needs)(carry_out)
        self.staying = ray.remote(max_restarts=0, **executor.needs)(_Worker)
        self.idle: list[Any] = []
        self.flying: dict[Any, _Flight] = {}
        self.queue: deque[tuple[Any, int]] = deque()
        self.told: dict[int, Any] = {}
        self.board = None if progress is None else ray.remote(num_cpus=0)(_Board).remote()

    def outcomes(self, jobs: Sequence[Any]) -> Iterator[Outcome]:
        """Of all jobs, as they come."""
        self.queue.extend((job, 1) for job in jobs)
        try:
            while self.queue or self.flying:
                while self.queue and len(self.flying) < self.limit:
                    self._launch(*self.queue.popleft())
                ready, _ = self.ray.wait(list(self.flying), timeout=PAUSE)
                self._hear_progress()
                for reference in ready:
                    outcome = self._end(reference)
                    if outcome is not None:
                        yield outcome
        finally:
            self._stop()

    def _launch(self, job: Any, attempts: int) -> None:
        number = len(self.told)
        self.told[number] = job
        given = (self.task, job, number, self.board, self.executor.threads)
        worker = None
        if self.executor.stay:
            worker = self.idle.pop() if self.idle else None
            if worker is None:
                worker = self.staying.remote()
            reference = worker.carry_out.remote(*given)
        else:
            reference = self.once.remote(*given)
        self.flying[reference] = _Flight(job, attempts, worker)

    def _end(self, reference: Any) -> Outcome | None:
        """A job's outcome; None where it is tried again."""
        flight = self.flying.pop(reference)
        errors = self.ray.exceptions
        try:
            kind, value = self.ray.get(reference)
        except errors.RayTaskError as error:
            return Outcome(flight.job, error=str(error), attempts=flight.attempts)
        except errors.RayError as error:
            if self.lost is not None:
                self.lost(flight.job, None)
            if flight.attempts < ATTEMPTS:
                self.queue.appendleft((flight.job, flight.attempts + 1))
                return None
            text = f"its worker was lost {flight.attempts} times: {error}"
            return Outcome(flight.job, error=text, attempts=flight.attempts)
        if flight.worker is not None:
            self.idle.append(flight.worker)
        if kind == "done":
            return Outcome(flight.job, result=value, attempts=flight.attempts)
        return Outcome(flight.job, error=value, attempts=flight.attempts)

    def _hear_progress(self) -> None:
        if self.board is None or self.progress is None:
            return
        try:
            found = self.ray.get(self.board.take.remote())
        except self.ray.exceptions.RayError:
            # It went with its node; what jobs have done is not lost with it.
            self.board = None
            return
        for number, value in found:
            self.progress(self.told[number], value)

    def _stop(self) -> None:
        for reference, flight in self.flying.items():
            if flight.worker is None:
                self.ray.cancel(reference, force=True)
            else:
                self.ray.kill(flight.worker)
        for worker in self.idle:
            self.ray.kill(worker)
        if self.board is not None:
            self.ray.kill(self.board)


def carry_out(task: Task, job: Any, number: int, board: Any, threads: int) -> tuple[str, Any]:
    """One job on a node."""
    import torch

    torch.set_num_threads(threads)

    def report(value: Any) -> None:
        if board is not None:
            board.put.remote(number, value)

    return attempt(task, job, report)


class _Worker:
    """A process that stays."""

    def carry_out(self, *given: Any) -> tuple[str, Any]:
        return carry_out(*given)


class _Board:
    """Where jobs write how far they are; holds what was not taken yet."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, Any]] = []

    def put(self, number: int, value: Any) -> None:
        self.notes.append((number, value))

    def take(self) -> list[tuple[int, Any]]:
        found, self.notes = self.notes, []
        return found
