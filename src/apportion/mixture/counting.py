"""Counting text: documents, bytes, characters and tokens of every language of every family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from apportion.errors import InputError, require
from apportion.mixture.text import TextFile, documents


@dataclass(frozen=True)
class TextCount:
    """What one language's files of one family hold.

    Attributes:
        family, language: from the path `DIR/<family>/<language>.<suffix>`.
        documents: rows, lines or paragraphs that are not empty (see `text.documents`).
        bytes: UTF-8 bytes of the documents.
        characters: Unicode code points of the documents.
        tokens: counted or estimated tokens; None when neither was asked.
    """

    family: str
    language: str
    documents: int
    bytes: int
    characters: int
    tokens: float | None = None


def count_texts(
    files: Iterable[TextFile],
    tokenizer: str | Path | None,
    sizes: Mapping[str, float] | None,
    column: str,
) -> tuple[TextCount, ...]:
    """One `TextCount` a language, in the order of the files.

    Args:
        files: what to count; a language may lie in several files, one of each kind.
        tokenizer: a `tokenizer.json`, or the folder that has it; None counts no tokens.
        sizes: without a tokenizer, bytes per token of each family, to estimate tokens.
        column: JSON key or Parquet column of the text.

    Raises:
        InputError: a file or the tokenizer cannot be read; the tokenizer finds no tokens.
    """
    encoder = None if tokenizer is None else _load_tokenizer(tokenizer)
    counts: dict[tuple[str, str], TextCount] = {}
    for file in files:
        one = _count_file(file, column, encoder, sizes)
        if one.tokens == 0:
            raise InputError(
                f"{file.path}: the tokenizer {tokenizer} finds no tokens in this text; "
                "expected a tokenizer that covers its script"
            )
        before = counts.get((file.family, file.language))
        counts[file.family, file.language] = one if before is None else _add(before, one)
    return tuple(counts.values())


def _load_tokenizer(path: str | Path) -> Any:
    tokenizers = require("tokenizers", "sweep")
    file = Path(path)
    if file.is_dir():
        file /= "tokenizer.json"
    if not file.is_file():
        raise InputError(f"expected a tokenizer.json or the folder that has it; {file} is missing")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises a bare Exception
        raise InputError(
            f"{file}: expected a tokenizer.json of the tokenizers library: {error}"
        ) from error
    # A file may carry the truncation and padding of its last use, which would miscount.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _count_file(
    file: TextFile, column: str, tokenizer: Any, sizes: Mapping[str, float] | None
) -> TextCount:
    count, size, characters, tokens = 0, 0, 0, 0
    for batch in _batches(documents(file.path, column), 256):
        count += len(batch)
        characters += sum(map(len, batch))
        size += sum(len(text.encode("utf-8")) for text in batch)
        if tokenizer is not None:
            encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            tokens += sum(len(one) for one in encoded)
    found: float | None = None
    if tokenizer is not None:
        found = float(tokens)
    elif sizes is not None:
        found = size / sizes[file.family]
    return TextCount(file.family, file.language, count, size, characters, found)


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(texts)
    while batch := list(islice(iterator, size)):
        yield batch


def _add(one: TextCount, other: TextCount) -> TextCount:
    tokens = None if one.tokens is None or other.tokens is None else one.tokens + other.tokens
    return TextCount(
        one.family,
        one.language,
        one.documents + other.documents,
        one.bytes + other.bytes,
        one.characters + other.characters,
        tokens,
    )


def text_count(entry: Any, where: str) -> TextCount:
    """A `TextCount` from JSON.

    Raises:
        InputError: a key is missing, unknown or of the wrong type.
    """
    names = {field.name for field in fields(TextCount)}
    if not isinstance(entry, dict) or set(entry) != names:
        raise InputError(f"{where}: expected an object with {', '.join(sorted(names))}")
    for name in ("family", "language"):
        if not isinstance(entry[name], str):
            raise InputError(f"{where}: expected text as {name}, found {entry[name]!r}")
    for name in ("documents", "bytes", "characters"):
        if type(entry[name]) is not int or entry[name] < 0:
            raise InputError(f"{where}: expected a count as {name}, found {entry[name]!r}")
    tokens = entry["tokens"]
    if tokens is not None and (type(tokens) not in (int, float) or tokens < 0):
        raise InputError(f"{where}: expected a number or null as tokens, found {tokens!r}")
    return TextCount(
        family=entry["family"],
        language=entry["language"],
        documents=entry["documents"],
        bytes=entry["bytes"],
        characters=entry["characters"],
        tokens=None if tokens is None else float(tokens),
    )
