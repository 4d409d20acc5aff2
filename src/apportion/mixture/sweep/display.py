"""Progress of a sweep: a bar on a terminal, one line a run in a log.

The time left is what the remaining FLOPs take at the rate of FLOPs since the start,
so small and large runs count by their cost, and it starts to be said once the first
hundredth is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from apportion.budget import counted
from apportion.errors import require
from apportion.mixture.sweep.corpus import CorpusSettings
from apportion.mixture.sweep.plan import PlannedRun
from apportion.mixture.sweep.train import RunResult


@runtime_checkable
class HasRun(Protocol):
    """A job of the sweep."""

    @property
    def run(self) -> PlannedRun:
        """The planned run."""
        ...


class Display:
    """Says how far the sweep is; nothing at all unless ``shown``."""

    def __init__(
        self, jobs: Sequence[HasRun], done: int, settings: CorpusSettings, *, shown: bool
    ) -> None:
        self.settings = settings
        self.costs = {job.run.run: self._cost(job.run) for job in jobs}
        self.doing: dict[str, float] = {}
        self.finished, self.total = done, done + len(jobs)
        self.spent = 0.0
        self.start = time.monotonic()
        self.bar: Any = None
        self.task: Any = None
        self.shown = shown
        if shown and sys.stderr.isatty():
            self._open_bar()

    def _open_bar(self) -> None:
        rich = require("rich.progress", "sweep")
        console = require("rich.console", "sweep").Console(stderr=True)
        columns = ("{task.description}", rich.BarColumn(), rich.TaskProgressColumn())
        self.bar = rich.Progress(*columns, "{task.fields[words]}", console=console)
        self.task = self.bar.add_task("sweep", total=sum(self.costs.values()) or 1, words="")

    def __enter__(self) -> Display:
        if self.bar is not None:
            self.bar.start()
        self._say(
            f"{counted(self.total - self.finished, 'run')} to do, {self.finished} done before"
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def hear(self, job: HasRun, tokens: int) -> None:
        """Progress of a run in flight."""
        self.doing[job.run.run] = self._cost(job.run) * min(1.0, tokens / job.run.tokens)
        self._update("")

    def finish(self, job: HasRun, result: RunResult) -> None:
        """A run is in the table."""
        self.doing.pop(job.run.run, None)
        self.spent += self.costs[job.run.run]
        self.finished += 1
        losses = " ".join(f"{name} {loss:.3f}" for name, loss in result.losses.items())
        speed = f"{result.tokens_per_second:,.0f} tokens/s"
        self._update(speed)
        self._say(
            f"{self.finished}/{self.total} {job.run.run}: {losses}; {speed}; {self.time_left()}"
        )

    def lost(self, job: HasRun, code: int | None) -> None:
        """A worker died."""
        self.doing.pop(job.run.run, None)
        print(
            f"the worker of run {job.run.run} died, exit code {code}", file=sys.stderr, flush=True
        )

    def time_left(self) -> str:
        """Remaining time in words."""
        total = sum(self.costs.values())
        done = self.spent + sum(self.doing.values())
        if not total or done < total / 100:
            return "time left unknown"
        seconds = (time.monotonic() - self.start) * (total - done) / done
        return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d} left"

    def _cost(self, run: PlannedRun) -> float:
        return run.cost(self.settings.vocab, self.settings.length)

    def _update(self, speed: str) -> None:
        if self.bar is not None:
            words = f"{self.finished}/{self.total} runs, {self.time_left()}"
            done = self.spent + sum(self.doing.values())
            words = f"{words}, {speed}" if speed else words
            self.bar.update(self.task, completed=done, words=words)

    def _say(self, text: str) -> None:
        if not self.shown:
            return
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)
