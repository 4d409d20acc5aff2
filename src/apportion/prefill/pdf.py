"""The text of a PDF, by pypdf."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator
from contextlib import contextmanager

from apportion.errors import InputError, require


def text_of_pdf(data: bytes, name: str) -> str:
    """The text of all pages, an empty line between two.

    Args:
        data: the whole file.
        name: of it, for messages.

    Raises:
        InputError: damaged, encrypted, or without text.
        MissingExtraError: pypdf is not installed.
    """
    pypdf = require("pypdf", "pdf")
    try:
        with _silent():
            reader = pypdf.PdfReader(io.BytesIO(data))
            # Some are encrypted with an empty password, which asks nobody for anything.
            if reader.is_encrypted and not reader.decrypt(""):
                raise InputError(
                    f"{name}: expected a PDF that can be read, got an encrypted one; "
                    "take its password off first (qpdf --decrypt)"
                )
            pages = [page.extract_text().strip() for page in reader.pages]
    except InputError:
        raise
    # A damaged PDF fails in pypdf in all sorts of ways.
    except Exception as error:
        said = str(error).splitlines()
        raise InputError(
            f"{name}: cannot read this PDF: {said[0] if said else type(error).__name__}"
        ) from error
    if not any(pages):
        raise InputError(
            f"{name}: expected a PDF with text, got {len(pages)} pages without any; where they are "
            "scanned, recognise their text first (ocrmypdf)"
        )
    return "\n\n".join(page for page in pages if page)


@contextmanager
def _silent() -> Generator[None]:
    """pypdf logs every oddity of a file."""
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
