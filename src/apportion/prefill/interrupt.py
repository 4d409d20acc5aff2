"""Ctrl-C that waits for the end of a chunk.

Layer after layer forgets while a chunk is read, so in the middle of one memory is of no use: some
layers hold the chunk, others don't, and what was let go is gone. Refused: keeping what was let go
until the end of the chunk, which would double the memory that this package is there to bound.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def finishing() -> Generator[None]:
    """A first Ctrl-C inside the block takes effect at its end; a second one at once.

    Only the main thread hears of Ctrl-C at all.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    asked = False

    def wait(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            before(number, frame)
        asked = True

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        before(signal.SIGINT, None)
