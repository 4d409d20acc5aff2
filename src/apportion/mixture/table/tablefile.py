"""Table files as they lie on the disk: CSV or Parquet to named columns of uninterpreted cells.

Every cell keeps its place (file and line, as an editor counts; for Parquet the row, from 1), so
that a later check can say where it found what. The csv module is used instead of a data frame
reader because that one renames duplicate columns, pads short rows and guesses types without a word.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from apportion.errors import InputError

WANTED = "a UTF-8 CSV file (comma-separated, with a header) or a Parquet file"

_PARQUET_MAGIC = b"PAR1"
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_PICKLES = (".pkl", ".pickle", ".joblib", ".npy", ".npz", ".pt", ".pth")
_PACKED = ((b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstandard"))
_DELIMITERS = {";": "semicolon", "\t": "tab", "|": "vertical bar"}


@dataclass(frozen=True)
class Column:
    """The cells of one column.

    Attributes:
        label: the name in the user's file, which messages show.
        cells: text (CSV) or Python values (Parquet); None is a missing cell.
        places: file and line (or row) of every cell.
    """

    label: str
    cells: list[Any]
    places: list[str]

    def at(self, row: int) -> str:
        """Where a cell stands, for a message."""
        return f"{self.places[row]}, column {self.label}"

    def take(self, rows: list[int]) -> Column:
        """The column of the chosen rows."""
        return Column(
            self.label, [self.cells[row] for row in rows], [self.places[row] for row in rows]
        )


@dataclass(frozen=True)
class RawTable:
    """Columns by name, all of the same length; `source` is the file (or files) they came from."""

    source: str
    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).cells)


def read_table(path: str | Path) -> RawTable:
    """Read a CSV or Parquet file; what it is, the content decides, not the name.

    Raises:
        InputError: the file is missing, empty, a spreadsheet, pickled, packed, binary, not UTF-8,
            badly quoted or delimited, has nameless or duplicate columns, rows of unequal length,
            or no rows.
    """
    source = str(path)
    try:
        if Path(path).is_dir():
            raise InputError(f"expected {WANTED}; {source} is a folder")
        suffix = Path(path).suffix.lower()
        _refuse_by_name(source, suffix)
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {source!r}: {reason}; expected {WANTED}") from error
    if not data.strip():
        raise InputError(f"{source} is empty; expected {WANTED}")
    if data.startswith(_PARQUET_MAGIC):
        names, columns, places = _parquet(source, data)
    elif suffix in (".parquet", ".pq"):
        raise InputError(
            f"{source}: expected a Parquet file, but it does not begin as one; write it again"
        )
    else:
        names, columns, places = _csv(source, _decode(source, data))
    return RawTable(
        source,
        {
            name: Column(name, list(cells), places)
            for name, cells in zip(names, columns, strict=True)
        },
    )


def _refuse_by_name(source: str, suffix: str) -> None:
    if suffix in _SPREADSHEETS:
        raise InputError(f"{source} is a spreadsheet; expected {WANTED}: save it as CSV (UTF-8)")
    if suffix in _PICKLES:
        raise InputError(
            f"{source} is a pickled or array file, which can run code when it is opened, and is "
            f"refused; expected {WANTED}: write it with DataFrame.to_csv(..., index=False)"
        )


def _decode(source: str, data: bytes) -> str:
    for magic, kind in _PACKED:
        if data.startswith(magic):
            raise InputError(f"{source} is packed ({kind}); expected {WANTED}: unpack it first")
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise InputError(
            f"{source} is a pickled file, which can run code when it is opened, and is refused; "
            f"expected {WANTED}"
        )
    zero = data.find(b"\0")
    if zero >= 0:
        hint = " (UTF-16?)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise InputError(
            f"{source} is binary{hint}: zero byte at offset {zero}; expected {WANTED}: "
            "save it as CSV in UTF-8"
        )
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the header.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark.
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line = data.count(b"\n", 0, start) + 1
        raise InputError(
            f"{source}, line {line}: byte 0x{data[start]:02x} at offset {start} is not UTF-8; "
            f"expected {WANTED}: save it as CSV in UTF-8"
        ) from error


def _csv(source: str, text: str) -> tuple[list[str], list[Any], list[str]]:
    _refuse_other_text(source, text)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    last = 0
    try:
        for row in reader:
            # A quoted cell may span lines; the row is where it begins.
            if any(cell and not cell.isspace() for cell in row):
                rows.append(row)
                lines.append(last + 1)
            last = reader.line_num
    except csv.Error as error:
        raise InputError(
            f"{source}, line {last + 1}: this is not CSV ({error}); expected {WANTED}: "
            "look for a quote that is not closed"
        ) from error
    if not rows:
        raise InputError(f"{source} is empty; expected {WANTED}")
    header = [name.strip() for name in rows[0]]
    if len(rows) == 1:
        raise InputError(f"{source} has a header but no rows; expected one row a run below it")
    width = len(header)
    cells = "1 cell" if width == 1 else f"{width} cells"
    ragged = [
        f"{source}, line {line}: {len(row)} cell{'s' * (len(row) != 1)}"
        for row, line in zip(rows[1:], lines[1:], strict=True)
        if len(row) != width
    ]
    if ragged:
        refuse(
            f"{cells} in every row, as in the header (line {lines[0]})",
            ragged,
            "fill the missing cells, and quote cells that contain commas",
        )
    columns: list[Any] = list(zip(*rows[1:], strict=True))
    keep = [k for k, name in enumerate(header) if name or any(map(str.strip, columns[k]))]
    header, columns = [header[k] for k in keep], [columns[k] for k in keep]
    _check_names(source, header)
    if 2 * sum(map(_is_number, header)) >= len(header):
        raise InputError(
            f"{source}, line {lines[0]}: numbers where the column names should be "
            f"({', '.join(header[:4])}…); expected a header: put the names into the first line"
        )
    return header, columns, [f"{source}, line {line}" for line in lines[1:]]


def _refuse_other_text(source: str, text: str) -> None:
    """JSON, a web page, a comment above the header, or another delimiter than the comma."""
    start = text.lstrip()
    if start.startswith(("{", "[", "<")):
        kind = "a web page or XML" if start.startswith("<") else "JSON"
        raise InputError(f"{source} looks like {kind}; expected {WANTED}: download or save it so")
    first, *rest = start.splitlines() or [""]
    # A header may begin so too, as in "#run,params,…".
    if first.startswith("#") and (not rest or first.count(",") != rest[0].count(",")):
        raise InputError(
            f"{source} begins with a comment ({first[:40]!r}); expected {WANTED}: remove the lines "
            "before the header"
        )
    _check_delimiter(source, text)


def _check_delimiter(source: str, text: str) -> None:
    first = text.lstrip().split("\n", 1)[0]
    for delimiter, name in _DELIMITERS.items():
        if first.count(delimiter) > first.count(","):
            raise InputError(
                f"{source}: the header looks {name}-separated; expected commas (and decimal "
                f"points): pandas.read_csv({source!r}, sep={delimiter!r}).to_csv('runs.csv', "
                "index=False)"
            )


def _check_names(source: str, names: list[str]) -> None:
    for position, name in enumerate(names, start=1):
        if not name:
            raise InputError(
                f"{source}: column {position} has no name; name it, or remove it (if it is the "
                "row index of pandas, write the file with index=False)"
            )
        if not name.isprintable():
            raise InputError(
                f"{source}: the name of column {position}, {name[:60]!r}, has characters that "
                "cannot be printed; rename the column"
            )
    places: dict[str, list[str]] = {}
    for position, name in enumerate(names, start=1):
        places.setdefault(name, []).append(str(position))
    twice = {name: at for name, at in places.items() if len(at) > 1}
    if twice:
        refuse(
            "every column once",
            [
                f"{source}: column {name} occurs more than once (columns {', '.join(at)})"
                for name, at in twice.items()
            ],
            "rename or remove the repeated columns",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(source: str, data: bytes) -> tuple[list[str], list[Any], list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
            names = [str(name).strip() for name in table.column_names]
            # An index that pandas wrote is a column of its own without meaning here.
            columns = [column.to_pylist() for column in table.columns]
    # Broken Parquet surfaces as any of these, from the footer's parser to the value decoder.
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InputError(
            f"{source}: expected a Parquet file, but it is damaged or not readable "
            f"({' '.join(str(error).split())[:200]}); write it again"
        ) from error
    kept = [k for k, name in enumerate(names) if not name.startswith("__index_level_")]
    names, columns = [names[k] for k in kept], [columns[k] for k in kept]
    if not names or not columns[0]:
        raise InputError(f"{source} has no rows; expected one row a run")
    _check_names(source, names)
    return names, columns, [f"{source}, row {row}" for row in range(1, len(columns[0]) + 1)]


def refuse(expected: str, problems: list[str], correction: str, shown: int = 5) -> NoReturn:
    """Raise an `InputError` that lists problems of one kind, the first `shown` in full.

    Raises:
        InputError: always.
    """
    more = len(problems) - shown
    listed = problems[:shown] + ([f"and {more} more"] if more > 0 else [])
    if len(listed) == 1:
        raise InputError(f"{listed[0]}; expected {expected}: {correction}")
    bullets = "\n  ".join(listed)
    raise InputError(f"expected {expected}: {correction}. Found:\n  {bullets}")
