"""What a file is, by its first bytes."""

from __future__ import annotations

import codecs
import re
from typing import Literal

HEAD = 8192
"""So many bytes are enough to tell."""

_UNPACK = "unpack it first"
_EXPORT = "export it as one of these"
_RECOGNISE = "recognise its text first (OCR)"
_WRITE = "write down what it says first"

# First bytes, what they stand for, and what to do about it.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image", _RECOGNISE),
    (b"\xff\xd8\xff", "a JPEG image", _RECOGNISE),
    (b"GIF87a", "a GIF image", _RECOGNISE),
    (b"GIF89a", "a GIF image", _RECOGNISE),
    (b"II*\x00", "a TIFF image", _RECOGNISE),
    (b"MM\x00*", "a TIFF image", _RECOGNISE),
    (b"\x1f\x8b", "a gzip archive", _UNPACK),
    (b"BZh", "a bzip2 archive", _UNPACK),
    (b"\xfd7zXZ\x00", "an xz archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (b"\x7fELF", "a program (ELF)", _EXPORT),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)", _EXPORT),
    (b"\xca\xfe\xba\xbe", "a program (Mach-O or Java)", _EXPORT),
    (b"SQLite format 3\x00", "an SQLite database", _EXPORT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (.doc, .xls, .ppt)", _EXPORT),
    (b"PAR1", "a Parquet file", _EXPORT),
    (b"GGUF", "a GGUF model", "name it as the model"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _EXPORT),
    (b"\x93NUMPY", "a NumPy array", _EXPORT),
    (b"OggS", "an Ogg recording", _WRITE),
    (b"fLaC", "a FLAC recording", _WRITE),
    (b"ID3", "an MP3 recording", _WRITE),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM film", _WRITE),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    (b"\x00\x00\xfe\xff", "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    (b"\xff\xfe", "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
)
# The same of formats that are written in letters throughout.
_WRITTEN = ((b"{\\rtf", "an RTF file", _EXPORT), (b"%!PS", "a PostScript file", _EXPORT))
# The same further on in the file: offset, bytes.
_LATER: tuple[tuple[int, bytes, str, str], ...] = (
    (4, b"ftyp", "an MP4 film or a HEIC or AVIF image", _WRITE),
    (8, b"WEBP", "a WebP image", _RECOGNISE),
    (8, b"WAVE", "a WAV recording", _WRITE),
    (8, b'{"', "a safetensors file", "name a saved context by a name that ends in .safetensors"),
    (257, b"ustar", "a tar archive", _UNPACK),
)
# What the parts inside of a zip archive are called.
_ZIPPED: tuple[tuple[bytes, str], ...] = (
    (b"word/", "a Word document (.docx)"),
    (b"xl/", "an Excel workbook (.xlsx)"),
    (b"ppt/", "a PowerPoint file (.pptx)"),
    (b"application/epub+zip", "an EPUB book"),
    (b"application/vnd.oasis.opendocument", "an OpenDocument file (.odt, .ods, .odp)"),
    (b"[Content_Types].xml", "an Office file (.docx, .xlsx, .pptx)"),
)
_HTML = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<!--(?:(?!-->).)*-->\s*)*<(!doctype\s+html|html)\b", re.I | re.S
)
_XHTML = re.compile(rb"(\xef\xbb\xbf)?\s*<\?xml\b.*<html\b", re.I | re.S)


def foreign(head: bytes) -> tuple[str, str] | None:
    """A file that is neither text nor HTML nor PDF.

    Args:
        head: its first `HEAD` bytes, or all there are.

    Returns:
        What it is, and what to do about it; None for one that may be read.
    """
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        for mark, name in _ZIPPED:
            if mark in head:
                return name, _EXPORT
        return "a zip archive", _UNPACK
    # A text may begin with the letters of a magic number.
    for magic, name, advice in (*_WRITTEN, *(_MAGIC if _binary(head) else ())):
        if head.startswith(magic):
            return name, advice
    if readable(head) == "pdf" or b"\x00" not in head:
        return None
    for offset, magic, name, advice in _LATER:
        if head[offset:].startswith(magic):
            return name, advice
    if head.startswith(b"MZ"):
        return "a Windows program", _EXPORT
    if head.startswith(b"BM"):
        return "a BMP image", _RECOGNISE
    where = head.index(b"\x00")
    return f"a binary file of an unknown kind (a zero byte at offset {where})", _EXPORT


def _binary(head: bytes) -> bool:
    try:
        # It may end within a character.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return True
    return b"\x00" in head


def readable(head: bytes, name: str = "") -> Literal["text", "html", "pdf"]:
    """Which kind of text a file holds that is not `foreign`.

    Args:
        head: its first bytes.
        name: of the file; pages that begin with anything are told by it.
    """
    # Some PDFs have something else in front.
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if _HTML.match(head) or _XHTML.match(head[:1024]):
        return "html"
    return "html" if name.lower().endswith((".html", ".htm", ".xhtml")) else "text"
