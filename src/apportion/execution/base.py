"""Where jobs are carried out, as an interface.

An executor takes a task (a module-level function) and jobs (plain values), and yields one `Outcome`
per job as soon as it is finished, in whatever order. A job whose worker is lost is tried once more;
a task that raises is not tried again, because what is done here is deterministic.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Task = Callable[[Any, Callable[[Any], None]], Any]
"""A task gets its job and a function that passes progress to the parent; returns the result."""

ATTEMPTS = 2


@dataclass(frozen=True)
class Outcome:
    """End of one job: ``result``, or ``error`` in words; ``attempts`` it took."""

    job: Any
    result: Any = None
    error: str | None = None
    attempts: int = 1


class Executor(ABC):
    """Carries out jobs and yields their outcomes as they finish."""

    @abstractmethod
    def run(
        self,
        task: Task,
        jobs: Sequence[Any],
        *,
        progress: Callable[[Any, Any], None] | None = None,
        lost: Callable[[Any, int | None], None] | None = None,
    ) -> Iterator[Outcome]:
        """Carry out ``jobs``; every job yields exactly one outcome.

        ``progress(job, value)`` hears what the task reports; ``lost(job, exit code)`` hears
        of a worker that died before the job is tried again; without an exit code where it is not
        known. Closing the iterator ends the jobs in flight.
        """


def attempt(task: Task, job: Any, report: Callable[[Any], None]) -> tuple[str, Any]:
    """What a worker answers: `("done", result)`, or `("failed", the error in words)`."""
    try:
        return "done", task(job, report)
    except Exception as error:
        detail = traceback.format_exc(limit=-3)
        return "failed", f"{type(error).__name__}: {error}\n{detail}"
