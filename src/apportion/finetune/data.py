"""Training data as users have it: JSONL, Parquet or plain text, each record with its place.

A record is a mapping of the fields that a line (or row) has; what they mean is decided in
`apportion.finetune.encode`. Every complaint names file, line and what was expected, and comes
before anything is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apportion.errors import InputError
from apportion.files import json_lines, utf8

LINES = (".jsonl", ".ndjson", ".json")
TEXT = (".txt", ".text", ".md")
PARQUET = (".parquet", ".pq")
FIELDS = ("text", "prompt", "completion", "messages")
FORMS = "'text', 'prompt' and 'completion', or 'messages'"


def is_text(path: str | Path) -> bool:
    """Whether a file is one running text, without records.

    Raises:
        InputError: a file of a kind that can't be read, by its name.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (*LINES, *TEXT, *PARQUET):
        raise InputError(
            f"{path}: expected training data as {', '.join(LINES)} (one JSON object a line with "
            f"{FORMS}), {PARQUET[0]} with such columns, or plain text as {', '.join(TEXT)}; "
            f"got a file that ends in {suffix or 'nothing'!r}"
        )
    return suffix in TEXT


def read_text(path: str | Path) -> str:
    """A whole text file.

    Raises:
        InputError: unreadable, empty, or not UTF-8 (with the offset of the first such byte).
    """
    text = utf8(_bytes(path), f"{path}").removeprefix("\ufeff")
    if not text.strip():
        raise InputError(f"{path}: expected text, the file is empty")
    return text


def records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a JSONL or Parquet file.

    Yields:
        Where it stands ("data.jsonl, line 3") and its fields that are not null.

    Raises:
        InputError: unreadable, empty, not UTF-8, or a line that is no JSON object.
    """
    found = _rows(path) if Path(path).suffix.lower() in PARQUET else json_lines(path, FORMS)
    empty = True
    for where, record in found:
        empty = False
        yield where, {name: value for name, value in record.items() if value is not None}
    if empty:
        raise InputError(f"{path}: expected records with {FORMS}, the file is empty")


def _bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            columns = [name for name in table.schema_arrow.names if name in FIELDS]
            if not columns:
                raise InputError(
                    f"{path}: expected columns {FORMS}, got {', '.join(table.schema_arrow.names)}"
                )
            number = 0
            for batch in table.iter_batches(columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", record
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise InputError(f"{path}: expected a Parquet file, but {error}") from error
