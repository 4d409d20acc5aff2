"""Tasks for the executor's tests: spawned workers import them by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Report = Callable[[Any], None]


def square(job: int, report: Report) -> tuple[int, int]:
    """The square and the worker's threads."""
    import torch

    return job * job, torch.get_num_threads()


def die(job: str, report: Report) -> str:
    """``once:FILE`` kills its worker the first time, ``always`` leaves with code 7."""
    if job == "always":
        os._exit(7)
    if job.startswith("once:") and not (mark := Path(job.removeprefix("once:"))).exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def divide(job: float, report: Report) -> float:
    """One by the job."""
    return 1 / job


def count(job: int, report: Report) -> int:
    """Report every number below the job."""
    for number in range(job):
        report(number)
    return job


def sleep(job: float, report: Report) -> int:
    """Sleep, then give the worker's process id."""
    time.sleep(job)
    return os.getpid()


def tell_and_sleep(job: float, report: Report) -> None:
    """Report the worker's process id, then sleep."""
    report(os.getpid())
    time.sleep(job)
