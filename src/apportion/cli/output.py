"""What the commands print: results on stdout, everything about them on stderr.

With `--json` stdout holds one JSON value and nothing else. Without a terminal there is no colour,
and lines are as long as they need to be, unless `COLUMNS` says otherwise: cut tables and wrapped
names are of no use to the next program.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from apportion.errors import InputError
from apportion.files import check_writable

if TYPE_CHECKING:
    from rich.console import Console

STOPPED = 130
_READER_GONE = 141
_UNLIMITED = 100_000
# Digits of numbers in tables; --json has them all.
_DIGITS = 4


class Output:
    """Prints one command's result.

    Attributes:
        as_json: only the final `result` is printed, as JSON.
    """

    def __init__(self, as_json: bool = False, out: Path | None = None) -> None:
        """`out` is a file that the command will write in the end.

        Raises:
            InputError: it cannot be written, which is said before the work that it is for.
        """
        self.as_json = as_json
        self._wrote: list[str] = []
        if out is not None:
            check_writable(out)

    def text(self, *lines: object) -> None:
        """Plain lines."""
        if not self.as_json:
            for line in lines:
                _print(str(line))

    def piece(self, text: str) -> None:
        """Text as it comes, without the end of a line."""
        if not self.as_json:
            encoding = sys.stdout.encoding or "utf-8"
            _write(text.encode(encoding, errors="replace").decode(encoding))

    def table(
        self,
        rows: Any,
        title: str = "",
        formats: Mapping[str, Callable[[Any], str]] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """A table: a DataFrame or a list of mappings, its title above it.

        Args:
            rows: what to show; every column is shown.
            title: one line.
            formats: how to write the cells of a column; numbers get four significant digits.
            names: headings that differ from the column names.
        """
        if self.as_json:
            return
        from rich.table import Table
        from rich.text import Text

        records: list[dict[str, Any]] = (
            rows.to_dict("records") if hasattr(rows, "to_dict") else list(rows)
        )
        columns = [str(name) for name in (rows.columns if hasattr(rows, "columns") else records[0])]
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        for column in columns:
            numeric = all(isinstance(r[column], int | float) for r in records if r[column] != "")
            heading = Text((names or {}).get(column, column))
            shown.add_column(heading, justify="right" if numeric else "left", overflow="fold")
        for record in records:
            cells = [_cell(record[name], (formats or {}).get(name)) for name in columns]
            shown.add_row(*(Text(cell) for cell in cells))
        if title:
            _print(f"\n{title}")
        _print(shown)

    def wrote(self, path: object, what: str) -> None:
        """A file that the command wrote."""
        self._wrote.append(str(path))
        if not self.as_json:
            _print(f"\nwrote {what} to {path}")

    def result(self, value: Any) -> None:
        """The whole result for `--json`; a mapping also says which files were written."""
        if not self.as_json:
            return
        plain = jsonable(value)
        if isinstance(plain, dict) and self._wrote:
            plain["wrote"] = self._wrote
        _print(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))

    @contextmanager
    def working(self, what: str) -> Generator[None]:
        """A spinner on stderr while something takes its time; nothing without a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        with _console(stderr=True).status(what):
            yield

    @contextmanager
    def progress(self, what: str) -> Generator[Callable[[float], None]]:
        """A bar on stderr; the function that it gives takes the share that is done."""
        if not sys.stderr.isatty():
            yield lambda share: None
            return
        from rich.progress import Progress

        with Progress(console=_console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=1.0)
            yield lambda share: bar.update(task, completed=share)


def note(text: str) -> None:
    """A line for the user on stderr."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)


def stopped() -> None:
    """What is left after Ctrl-C."""
    note("stopped; files are written whole or not at all, so none is left half written")


def jsonable(value: Any) -> Any:
    """Plain Python for strict JSON: tables as lists of rows, NaN and infinity as null."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return [jsonable(row) for row in value.to_dict("records")]
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, str | bytes | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable):
        return [jsonable(each) for each in value]
    return str(value)


def number(value: float) -> str:
    """Four significant digits, without exponents where these can be avoided."""
    if not math.isfinite(value):
        return "" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == 0:
        return "0"
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    if not -3 <= digits <= 8:
        return f"{value:.{_DIGITS - 1}e}"
    return f"{value:.{max(0, digits)}f}"


def percent(value: float) -> str:
    """A share as a percentage with two digits behind the point."""
    return "" if math.isnan(value) else f"{value:.2%}"


def _cell(value: Any, format: Callable[[Any], str] | None) -> str:
    if value is None:
        return ""
    if format is not None:
        return format(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNLIMITED
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def _print(what: Any) -> None:
    """Lines to stdout; rich measures and folds them, this writes them."""
    whole = isinstance(what, str) and not sys.stdout.isatty() and "COLUMNS" not in os.environ
    if not whole:
        console = _console()
        with console.capture() as captured:
            console.print(what)
        what = captured.get().removesuffix("\n")
    # Rows of a table are filled up with blanks, which nobody sees and diffs stumble over.
    _write("\n".join(line.rstrip() for line in what.split("\n")) + "\n")


def _write(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        _silence(sys.stdout)
        raise typer.Exit(_READER_GONE) from None
    except OSError as error:
        _silence(sys.stdout)
        raise InputError(f"cannot write the output: {error.strerror or error}") from error


def _silence(stream: Any) -> None:
    """Nothing more goes there, not even what Python flushes when it leaves."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())
