"""How many examples a fuzz test tries, and how long all of them may take together.

`make test` runs the short count that the test itself names. `make fuzz` sets `APPORTION_FUZZ`, the
long count, and `FUZZ_MINUTES`, shared out evenly among the fuzz tests still to come. A test whose
time is up passes with the examples it has run, and the closing summary says how many those were.
A failure that is being shrunk is never cut short.
"""

from __future__ import annotations

import functools
import os
import time
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

DEFAULT_MINUTES = 50.0
MINIMUM = 20  # examples that every test runs, also when the time is long up


def examples(short: int) -> int:
    """Examples to try: `short`, or the long count when `APPORTION_FUZZ` is set."""
    return int(os.environ.get("APPORTION_FUZZ", short))


class _TimeUp(unittest.SkipTest):
    """Hypothesis lets a skip through at once, so raising one ends the search for examples."""


@dataclass
class _Tally:
    """What became of one hypothesis test: examples run, whether it failed, whether time was up."""

    end: float
    count: int = 0
    failed: bool = False
    cut: bool = False


def _limited(inner: Callable[..., Any], tally: _Tally) -> Callable[..., Any]:
    # Hypothesis asks the inner test for its code object, so this must be a plain function.
    @functools.wraps(inner)
    def run(*args: Any, **kwargs: Any) -> Any:
        if time.monotonic() > tally.end and tally.count >= MINIMUM and not tally.failed:
            tally.cut = True
            raise _TimeUp
        tally.count += 1
        try:
            return inner(*args, **kwargs)
        except Exception:
            tally.failed = True
            raise

    return run


_end: float | None = None
_left = 0
_tried: dict[str, _Tally] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    global _end, _left
    _left = sum(item.get_closest_marker("fuzz") is not None for item in session.items)
    minutes = os.environ.get("FUZZ_MINUTES") or DEFAULT_MINUTES
    _end = time.monotonic() + 60.0 * float(minutes)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    global _left
    if pyfuncitem.get_closest_marker("fuzz") is None or _end is None:
        return (yield)
    share = max(_end - time.monotonic(), 0.0) / max(_left, 1)
    _left -= 1
    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    if handle is None:
        return (yield)
    inner = handle.inner_test
    tally = _tried[pyfuncitem.nodeid] = _Tally(end=time.monotonic() + share)
    handle.inner_test = _limited(inner, tally)
    try:
        return (yield)
    except _TimeUp:
        return True
    finally:
        handle.inner_test = inner


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "APPORTION_FUZZ" not in os.environ:
        return
    terminalreporter.section("fuzz examples")
    for test, tally in _tried.items():
        end = "  (time was up)" if tally.cut else ""
        terminalreporter.line(f"{tally.count:7d}  {test}{end}")
