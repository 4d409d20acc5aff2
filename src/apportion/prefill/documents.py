"""Text from files: plain, HTML, PDF; whatever else it is, it is refused by name.

What a file is, its first bytes say, not its name: a model that is fed a picture as text answers all
the same.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from apportion.errors import InputError, option
from apportion.prefill.html import text_of_html
from apportion.prefill.kinds import HEAD, foreign, readable
from apportion.prefill.pdf import text_of_pdf

STANDARD_INPUT = "-"
Errors = Literal["strict", "replace"]

_PIECE = 2**16  # most bytes of a stream that are decoded at once
_MARK = codecs.BOM_UTF8
_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)


def read_document(path: str | Path, errors: Errors = "strict") -> str:
    """The text of a file, with `"\\n"` at the ends of its lines.

    Plain text is UTF-8, with or without a byte order mark; HTML may declare another encoding. Of
    HTML and PDF it is the visible text.

    Args:
        path: the file; `"-"` is standard input.
        errors: `"strict"`, or `"replace"` for U+FFFD in place of bytes that are no text.

    Raises:
        InputError: no such file, bytes that are not UTF-8 (with their offset), a file of another
            kind (by name), or a PDF that is damaged, encrypted or without text.
        MissingExtraError: a PDF, and pypdf is not installed.
    """
    text = open_document(path, errors)
    return text if isinstance(text, str) else "".join(text)


def open_document(path: str | Path, errors: Errors = "strict") -> str | Iterator[str]:
    """As `read_document`; plain text from a pipe or a terminal in pieces, as it comes.

    Args:
        path: the file; `"-"` is standard input.
        errors: as for `read_document`.

    Raises:
        InputError: as `read_document`; the pieces raise it too.
        MissingExtraError: as `read_document`.
    """
    if errors not in ("strict", "replace"):
        raise InputError(f"expected {option('errors')} 'strict' or 'replace', got {errors!r}")
    if str(path) == STANDARD_INPUT:
        handle = sys.stdin.buffer
        return _opened(handle, "standard input", not _ends(handle), errors)
    try:
        with Path(path).open("rb") as file:
            return _opened(file, str(path), False, errors)
    except IsADirectoryError as error:
        raise InputError(f"expected a file with text, got the folder {path}") from error
    except FileNotFoundError as error:
        raise InputError(f"expected a file with text, there is no {path}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _ends(handle: Any) -> bool:
    """Whether its end is in sight: a file that was redirected, no pipe and no terminal."""
    return handle.seekable() and not handle.isatty()


def _opened(handle: Any, name: str, stream: bool, errors: Errors) -> str | Iterator[str]:
    head = handle.read(HEAD)
    other = foreign(head)
    if other is not None:
        what, advice = other
        raise InputError(f"{name}: expected text, HTML or PDF, got {what}; {advice}")
    kind = readable(head, name)
    if kind == "pdf":
        return text_of_pdf(head + handle.read(), name)
    if kind == "html":
        return text_of_html(_page(head + handle.read(), name, errors))
    if not stream:
        return "".join(_decoded([head + handle.read()], name, errors))
    return _decoded(_pieces(head, handle), name, errors)


def _pieces(head: bytes, handle: Any) -> Iterator[bytes]:
    while head:
        yield head
        head = handle.read1(_PIECE)


def _decoded(pieces: Iterable[bytes], name: str, errors: Errors) -> Iterator[str]:
    """Text of bytes that may be cut anywhere."""
    inner = codecs.getincrementaldecoder("utf-8")(errors)
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    read = 0  # bytes that are text by now
    for number, piece in enumerate(pieces):
        cut = len(_MARK) if number == 0 and piece.startswith(_MARK) else 0
        read += cut
        held = len(inner.getstate()[0])
        try:
            text = inner.decode(piece[cut:])
        except UnicodeDecodeError as error:
            raise _not_text(name, read + error.start, error.object[error.start]) from error
        read += held + len(piece) - cut - len(inner.getstate()[0])
        yield lines.decode(text)
    try:
        text = inner.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_text(name, read + error.start, error.object[error.start]) from error
    yield lines.decode(text, final=True)


def _not_text(name: str, offset: int, byte: int) -> InputError:
    return InputError(
        f"{name}: expected UTF-8, found a byte that is not at offset {offset} (0x{byte:02x}); "
        f"convert it (iconv -f ISO-8859-1 -t UTF-8), or {option('errors', 'replace')} puts U+FFFD "
        "in the place of such bytes"
    )


def _page(data: bytes, name: str, errors: Errors) -> str:
    """HTML as text: UTF-8, or else what it declares."""
    declared = _CHARSET.search(data[:HEAD])
    encoding = declared[1].decode("ascii", "ignore").lower() if declared else "utf-8"
    # Browsers read Latin-1 as its superset of Windows, and so it is meant.
    encoding = "cp1252" if encoding in ("iso-8859-1", "latin1", "latin-1") else encoding
    try:
        return "".join(_decoded([data], name, "strict"))
    except InputError as unreadable:
        try:
            return data.decode(encoding, errors)
        except (LookupError, UnicodeDecodeError):
            if errors == "strict":
                raise unreadable from None
    return "".join(_decoded([data], name, errors))
