"""What every benchmark shares: sides measured in turn, and a ledger of results that only grows.

Design: all sides run in one process and take turns (A B A B ...), so that a slow spell of the
machine hits all of them and their ratio survives it. A row of the ledger carries the machine, the
versions and the revision that it was measured with; rows are appended, never rewritten, so an old
claim can be looked up. Refused: best-of-N alone, which hides the spread, and separate runs per
side, which compare two states of the machine.

Run as a script, it lists the benchmarks.
"""

from __future__ import annotations

import argparse
import ast
import csv
import fcntl
import io
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("numpy", "scipy", "torch")
STAMP = ("date", "revision", "cpu", "cores", "python", *PACKAGES)


@dataclass(frozen=True)
class Timing:
    """Wall time of one side.

    Attributes:
        side: its name.
        seconds: one entry a round, in order.
        value: what the side returned in the last round, so that quality can be checked too.
    """

    side: str
    seconds: tuple[float, ...]
    value: Any

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def row(self) -> dict[str, Any]:
        """Median, extremes and number of rounds, as columns of a ledger."""
        return {
            "side": self.side,
            "rounds": len(self.seconds),
            "median_s": round(self.median, 6),
            "min_s": round(min(self.seconds), 6),
            "max_s": round(max(self.seconds), 6),
        }


def take_turns(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    warmup: int = 1,
    around: Callable[[str], AbstractContextManager[object]] | None = None,
) -> dict[str, Timing]:
    """Run all sides in turn, `rounds` times each after `warmup` rounds that are not counted.

    Args:
        sides: what to time, by name.
        rounds: that count.
        warmup: that don't.
        around: gives the context of a side's turn, entered and left outside the clock.

    Raises:
        ValueError: fewer than one round, or no side.
    """
    if rounds < 1 or not sides:
        raise ValueError(f"expected a side and a round at least; got {len(sides)} and {rounds}")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    values: dict[str, Any] = {}
    for number in range(warmup + rounds):
        for side, run in sides.items():
            with around(side) if around else nullcontext():
                start = time.perf_counter()
                values[side] = run()
                took = time.perf_counter() - start
            if number >= warmup:
                seconds[side].append(took)
    return {side: Timing(side, tuple(took), values[side]) for side, took in seconds.items()}


def ledger(name: str) -> list[dict[str, str]]:
    """All rows of a ledger, in order; none where it has not begun."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def newest(name: str, *keys: str) -> list[dict[str, str]]:
    """A ledger's rows, of each combination of `keys` the last, in the order of the last run."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in ledger(name):
        key = tuple(row[k] for k in keys)
        found.pop(key, None)
        found[key] = row
    return list(found.values())


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times faster `fast` is: the median over rounds of the ratio within the round."""
    return statistics.median(s / f for s, f in zip(slow.seconds, fast.seconds, strict=True))


def stamp() -> dict[str, Any]:
    """When, on what and with what a row was measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": _revision(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def record(name: str, rows: Sequence[Mapping[str, Any]], folder: Path = RESULTS) -> Path:
    """Append rows, each with the stamp, to `<folder>/<name>.csv`.

    The first call decides the header: the columns of its first row, then those of the stamp.

    Raises:
        ValueError: no rows, rows with different columns, or a header that is not the file's.
    """
    if not rows:
        raise ValueError("expected a row at least, got none")
    columns = list(rows[0])
    for row in rows:
        if list(row) != columns:
            raise ValueError(f"expected the columns {columns} in every row, got {list(row)}")
    header = [*columns, *STAMP]
    path = folder / f"{name}.csv"
    common = stamp()
    # The lock spans the look at the header and the append: two benchmarks may end together.
    with path.open("a+", encoding="utf-8", newline="") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        old = handle.read()
        text = io.StringIO()
        writer = csv.DictWriter(text, header, lineterminator="\n")
        if not old:
            writer.writeheader()
        elif (found := next(csv.reader([old.splitlines()[0]]))) != header:
            raise ValueError(
                f"{path}: expected the header {found}, got rows with {header}; "
                "keep the columns, or record under another name"
            )
        elif not old.endswith("\n"):
            raise ValueError(f"{path}: expected whole lines, the last one is cut; mend it by hand")
        writer.writerows({**row, **common} for row in rows)
        handle.write(text.getvalue())
    return path


def arguments(
    description: str | None,
    rounds: int = 5,
    add: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.Namespace:
    """The command line that all benchmarks share: `--rounds`, and `--dry` to record nothing.

    Args:
        description: the benchmark's docstring; its first line is shown.
        rounds: the default number of rounds.
        add: adds the benchmark's own options.
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--rounds", type=_positive, default=rounds, help="rounds per side")
    parser.add_argument("--dry", action="store_true", help="print only, record nothing")
    if add is not None:
        add(parser)
    return parser.parse_args()


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of equal columns as an aligned table."""
    table = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _revision() -> str:
    """Short commit, with `+` when files that git knows differ from it; `none` outside a clone."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        # The ledgers change while benchmarks run; they are results, not what is measured.
        status = git("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if status else "")
    except (OSError, subprocess.CalledProcessError):
        return "none"


def main() -> None:
    """List the benchmarks: every script here, with the first line of its docstring."""
    print("Benchmarks take minutes to hours and need a quiet machine, so they are run by hand:\n")
    for path in sorted(Path(__file__).parent.glob("**/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        guarded = any(
            isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body
        )
        if path == Path(__file__).resolve() or not guarded:
            continue  # a module that scripts share
        line = (ast.get_docstring(tree) or "").split("\n")[0]
        print(f"  .venv/bin/python {path.relative_to(ROOT)}\n      {line}")
    print("\nEach appends rows to benchmarks/results/; --dry only prints.")


if __name__ == "__main__":
    main()
