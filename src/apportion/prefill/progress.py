"""A bar of the tokens that have been read."""

from __future__ import annotations

import sys
from typing import Any

from apportion.errors import require


class Bar:
    """Shown on standard error while the block runs; nothing at all unless `shown`."""

    def __init__(self, total: int | None, shown: bool) -> None:
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            rich = require("rich.progress", "prefill")
            console = require("rich.console", "prefill").Console(stderr=True)
            self._bar = rich.Progress(
                "reading",
                rich.BarColumn(),
                rich.MofNCompleteColumn(),
                "tokens",
                rich.TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("reading", total=total)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, tokens: int) -> None:
        """So many more have been read."""
        if self._bar is not None:
            self._bar.advance(self._task, tokens)
