"""Reading a sweep's text: ``DIR/<family>/<language>.txt``, ``.jsonl`` or ``.parquet``.

Every file is read whole, checked, and handed on as pieces of some ten thousand
characters cut at line ends. A file that is empty, binary or not UTF-8 is refused
with its name and the byte offset of the first offence: a sweep that trains for an
hour on half a file is worse than none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from apportion.errors import InputError, require

SUFFIXES = (".txt", ".jsonl", ".parquet")
PIECE = 20_000
"""Characters of a piece of text, at least, except for the last of a document."""

Texts = dict[str, dict[str, Path]]
"""Family name -> language name -> file, both sorted by name."""


def find_texts(folder: Path) -> Texts:
    """Files of every family in ``folder``; hidden files and other suffixes are passed over.

    Raises InputError for a folder that is missing, unreadable or holds no family,
    for a family without text, and for a language that is there twice.
    """
    try:
        families = sorted(
            p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))
        )
        texts = {family.name: _languages(family) for family in families}
    except OSError as error:
        raise InputError(
            f"{folder}: expected a readable folder of FAMILY/LANGUAGE.txt; {error.strerror}"
        ) from error
    if not texts:
        raise InputError(
            f"{folder}: no families; expected one folder per language family, such as "
            f"{folder}/romance/fr.txt"
        )
    return texts


def _languages(family: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in sorted(family.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in files:
            raise InputError(
                f"{path}: language {path.stem!r} is also in {files[path.stem].name}; keep one file"
            )
        files[path.stem] = path
    if not files:
        raise InputError(
            f"{family}: no text; expected at least one LANGUAGE{{{','.join(SUFFIXES)}}}"
        )
    return files


def digest_texts(texts: Texts) -> str:
    """SHA-256 over the names and the bytes of all files: the corpus' identity."""
    total = hashlib.sha256()
    for family, languages in texts.items():
        for language, path in languages.items():
            with path.open("rb") as handle:
                content = hashlib.file_digest(handle, "sha256").hexdigest()
            total.update(f"{family}/{language}{path.suffix} {content}\n".encode())
    return total.hexdigest()


def read_pieces(path: Path) -> list[str]:
    """Text of one file as pieces of about ``PIECE`` characters, in order.

    Raises InputError naming the file and the byte offset for a NUL byte or bytes that
    are not UTF-8, the line for broken JSON, and the file if it holds no text.
    """
    documents = _parquet(path) if path.suffix == ".parquet" else _decoded(path)
    pieces = [piece for document in documents for piece in _cut(document)]
    if not any(piece.strip() for piece in pieces):
        raise InputError(f"{path}: the file holds no text; remove it or fill it")
    return pieces


def _decoded(path: Path) -> list[str]:
    data = path.read_bytes()
    if not data:
        raise InputError(f"{path}: the file is empty (0 bytes); remove it or fill it")
    if (offset := data.find(b"\0")) >= 0:
        raise InputError(f"{path}: binary file, NUL at byte {offset}; expected UTF-8 text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # the codec counts from behind a byte order mark
        offset = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        raise InputError(
            f"{path}: not UTF-8 at byte {offset} (0x{data[offset]:02x}); convert it, for example "
            f"`iconv -f latin1 -t utf-8 {path.name}`"
        ) from error
    return list(_jsonl(path, text)) if path.suffix == ".jsonl" else [text]


def _jsonl(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON: {error.msg}") from error
        document: Any = cast("dict[str, Any]", row).get("text") if isinstance(row, dict) else None
        if not isinstance(document, str):
            raise InputError(
                f'{path}, line {number}: expected an object with a string "text", such as '
                f'{{"text": "…"}}'
            )
        yield document + "\n"


def _parquet(path: Path) -> Iterator[str]:
    parquet = require("pyarrow.parquet", "sweep")
    try:
        column = parquet.read_table(path, columns=["text"])["text"].to_pylist()
    except Exception as error:  # pyarrow has a dozen classes for a bad file
        raise InputError(
            f'{path}: expected a Parquet file with a string column "text"; {error}'
        ) from error
    for row, document in enumerate(column):
        if not isinstance(document, str):
            raise InputError(
                f"{path}, row {row}: expected a string in column text; got {document!r}"
            )
        yield document + "\n"


def _cut(document: str) -> Iterator[str]:
    start = 0
    while start < len(document):
        end = document.find("\n", start + PIECE)
        end = len(document) if end < 0 else end + 1
        yield document[start:end]
        start = end
