"""Reading a folder of text, `DIR/<family>/<language>.{txt,jsonl,parquet}`.

`count` and the supply read it as documents, the sweep as pieces of some ten thousand characters;
below, both read files in one way and refuse them with the same words. A document is a row of a
Parquet file, a line of a JSONL file, or a paragraph of a `.txt` file (blank lines separate them).
Documents are streamed: a corpus need not fit into memory to be counted.

Refused: guessing an encoding. Text that is not UTF-8 is an error with the byte offset, because a
wrong guess would train on garbage without a word.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.errors import InputError, InputWarning

SUFFIXES = (".txt", ".jsonl", ".parquet")
LAYOUT = "DIR/<family>/<language>.txt (or .jsonl, .parquet)"
PIECE = 20_000
"""Characters of a piece of text, at least, except for the last of a document."""


@dataclass(frozen=True)
class TextFile:
    """One file of a corpus: its family (the folder), language (the stem) and path."""

    family: str
    language: str
    path: Path


def find_text(data: str | Path) -> tuple[TextFile, ...]:
    """The text files of a corpus folder, ordered by family, then language, then suffix.

    A language may lie in several files, one of each kind. Entries whose name begins with `.` or `_`
    are passed over; other entries of a family's folder that are not text files are passed over with
    an `InputWarning`.

    Raises:
        InputError: no such folder; no family folders; a family folder without text.
    """
    root = Path(data)
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"expected a folder of text laid out as {LAYOUT}; {root} {what}")
    try:
        folders = sorted(p for p in root.iterdir() if p.is_dir() and _shown(p))
        loose = [p.name for p in sorted(root.iterdir()) if p.suffix in SUFFIXES and p.is_file()]
        contents = {folder: sorted(folder.iterdir()) for folder in folders}
    except OSError as error:
        raise InputError(f"cannot list {error.filename}: {error.strerror}") from error
    if loose:
        raise InputError(
            f"expected {LAYOUT}; {root / loose[0]} belongs to no family: "
            f"move it to {root}/<family>/{loose[0]}"
        )
    if not folders:
        raise InputError(f"expected {LAYOUT}; {root} has no family folders")
    found: list[TextFile] = []
    for folder, entries in contents.items():
        visible = [entry for entry in entries if _shown(entry)]
        texts = [entry for entry in visible if entry.suffix in SUFFIXES and entry.is_file()]
        if not texts:
            raise InputError(
                f"expected {LAYOUT}; {folder} has no .txt, .jsonl or .parquet file: "
                "add its text, or remove the folder"
            )
        other = [entry.name for entry in visible if entry not in texts]
        if other:
            warnings.warn(
                f"{folder}: not read, because not .txt, .jsonl or .parquet: {', '.join(other[:5])}",
                InputWarning,
                stacklevel=2,
            )
        found += [TextFile(folder.name, path.stem, path) for path in texts]
    return tuple(found)


def _shown(path: Path) -> bool:
    return not path.name.startswith((".", "_"))


def digest_text(files: Iterable[TextFile]) -> str:
    """SHA-256 over the names and the bytes of all files: says whether two corpora are the same.

    Raises:
        InputError: a file cannot be read.
    """
    total = hashlib.sha256()
    for file in files:
        try:
            with file.path.open("rb") as handle:
                content = hashlib.file_digest(handle, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(file.path, error) from error
        total.update(f"{file.family}/{file.language}{file.path.suffix} {content}\n".encode())
    return total.hexdigest()


def pieces(path: str | Path, column: str = "text") -> list[str]:
    """The text of one file in order, as pieces of about `PIECE` characters cut at line ends.

    A `.txt` file is one text, to the last blank; a row or JSON line is one, ended by a line end.

    Args:
        path, column: as in `documents`.

    Raises:
        InputError: as `documents`.
    """
    source = Path(path)
    with _reading(source):
        if source.suffix == ".txt":
            texts = ["".join(line for _, line in _lines(source))]
        else:
            texts = [f"{text}\n" for text in _READERS[source.suffix](source, column)]
    if not any(text.strip() for text in texts):
        raise _blank(source)
    return [piece for text in texts for piece in _cut(text)]


def _cut(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def documents(path: str | Path, column: str = "text") -> Iterator[str]:
    """The documents of one file, stripped, empty ones left out.

    Args:
        path: a `.txt`, `.jsonl` or `.parquet` file.
        column: the JSON key or Parquet column that holds the text.

    Raises:
        InputError: the file is missing, empty, binary, not UTF-8 (with the byte offset), not what
            its suffix says (with the line), or has no document in it.
    """
    source = Path(path)
    any_text = False
    with _reading(source):
        for document in _READERS[source.suffix](source, column):
            stripped = document.strip()
            if stripped:
                any_text = True
                yield stripped
    if not any_text:
        raise _blank(source)


@contextmanager
def _reading(source: Path) -> Generator[None]:
    """What is refused before a byte is looked at, and what the system refuses."""
    if source.suffix not in SUFFIXES:
        raise InputError(f"expected a .txt, .jsonl or .parquet file, got {source}")
    try:
        if source.stat().st_size == 0:
            raise InputError(f"{source}: expected text, found an empty file; add text or remove it")
        yield
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {source}: {error.strerror or error}")


def _blank(source: Path) -> InputError:
    return InputError(f"{source}: expected text, found only blanks; add text or remove it")


def _lines(source: Path) -> Iterator[tuple[int, str]]:
    """Number and text of every line; bytes that are not UTF-8 text are an error."""
    offset = 0
    with source.open("rb") as handle:
        for number, raw in enumerate(handle, start=1):
            nul = raw.find(b"\0")
            if nul >= 0:
                raise InputError(
                    f"{source}: expected UTF-8 text, found a zero byte at offset {offset + nul}; "
                    "the file is binary, compressed or UTF-16: convert it to plain UTF-8"
                )
            try:
                # A byte order mark is no text; utf-8-sig drops it at the start of the file only.
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                place = offset + error.start
                raise InputError(
                    f"{source}, line {number}: expected UTF-8 text, found a byte that is not "
                    f"UTF-8 at offset {place}; convert it, for example with: "
                    f"iconv -f LATIN1 -t UTF-8 {source.name}"
                ) from error
            offset += len(raw)


def _paragraphs(source: Path, column: str) -> Iterator[str]:
    paragraph: list[str] = []
    for _, line in _lines(source):
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield "".join(paragraph)
            paragraph.clear()
    yield "".join(paragraph)


def _json_lines(source: Path, column: str) -> Iterator[str]:
    for number, line in _lines(source):
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        try:
            value: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(
                f'{place}: expected one JSON object a line, such as {{"{column}": "…"}}: {error}'
            ) from error
        if isinstance(value, dict) and column not in value:
            keys = ", ".join(map(str, list(value)[:8])) or "none"
            raise InputError(f"{place}: expected the key {column!r}, found the keys: {keys}")
        text = value[column] if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise InputError(
                f"{place}: expected text under {column!r}, found {type(text).__name__}"
            )
        # JSON can spell half of a surrogate pair, which no UTF-8 file can hold.
        if not _encodable(text):
            raise InputError(f"{place}: expected Unicode text, found half of a surrogate pair")
        yield text


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parquet_rows(source: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise InputError(
                    f"{source}: expected a column {column!r}, found: {', '.join(names[:8])}"
                )
            kind = file.schema_arrow.field(column).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise InputError(f"{source}: expected text in column {column!r}, found {kind}")
            for batch in file.iter_batches(columns=[column], batch_size=1024):
                for text in batch.column(0).to_pylist():
                    if text is not None:
                        yield text
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: expected UTF-8 text in column {column!r}: {error}") from error
    except pa.ArrowException as error:
        raise InputError(
            f"{source}: expected a Parquet file, but it cannot be read ({error}); write it again"
        ) from error


_READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _paragraphs,
    ".jsonl": _json_lines,
    ".parquet": _parquet_rows,
}
