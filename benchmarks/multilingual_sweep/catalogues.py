"""Binary message catalogues: Chromium resource packs (.pak) and gettext (.mo)."""

from __future__ import annotations

import gzip
import itertools
import struct
from collections.abc import Iterator

PAK_BINARY, PAK_UTF8, PAK_UTF16 = 0, 1, 2


class CatalogueError(ValueError):
    """A catalogue that is cut short or of an unknown version."""


def _pak_index(data: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Encoding and (id, offset) entries, the closing entry included."""
    if len(data) < 9:
        raise CatalogueError(f"a resource pack has at least 9 bytes, this one {len(data)}")
    version = struct.unpack_from("<I", data)[0]
    if version == 4:
        count, encoding = struct.unpack_from("<IB", data, 4)
        start = 9
    elif version == 5 and len(data) >= 12:
        encoding, count = struct.unpack_from("<B3xH", data, 4)
        start = 12
    else:
        raise CatalogueError(f"resource pack version 4 or 5 expected, found {version}")
    if start + 6 * (count + 1) > len(data):
        raise CatalogueError(f"resource pack cut short: {count} entries announced")
    return encoding, [struct.unpack_from("<HI", data, start + 6 * i) for i in range(count + 1)]


def read_pak(data: bytes) -> dict[int, str]:
    """Strings of a .pak file by resource id (versions 4 and 5; UTF-8, UTF-16, gzipped entries).

    Aliases repeat other entries and are not read. Entries that are no text (Brotli-compressed or
    binary) are left out.

    Raises
    ------
    CatalogueError
        When the file is cut short or of another version.
    """
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    encoding, index = _pak_index(data)
    codec = "utf-16-le" if encoding == PAK_UTF16 else "utf-8"
    strings: dict[int, str] = {}
    for (identifier, start), (_, end) in itertools.pairwise(index):
        if not start <= end <= len(data):
            raise CatalogueError(f"resource pack entry {identifier} lies outside the file")
        entry = data[start:end]
        if entry[:2] == b"\x1f\x8b":
            entry = gzip.decompress(entry)
        try:
            strings[identifier] = entry.decode(codec)
        except UnicodeDecodeError:
            continue
    return strings


def read_mo(data: bytes) -> Iterator[tuple[str, str]]:
    """(English, translation) pairs of a gettext catalogue; of plural forms the last one.

    Raises
    ------
    CatalogueError
        When the magic number is not gettext's or the tables lie outside the file.
    """
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if order is None or len(data) < 28:
        raise CatalogueError("not a gettext catalogue")
    count, originals, translations = struct.unpack_from(order + "3I", data, 8)
    if max(originals, translations) + 8 * count > len(data):
        raise CatalogueError(f"gettext catalogue cut short: {count} entries announced")
    for i in range(count):
        pair = []
        for table in (originals, translations):
            length, offset = struct.unpack_from(order + "2I", data, table + 8 * i)
            pair.append(data[offset : offset + length].decode("utf-8", "replace"))
        english = pair[0].rpartition("\x04")[2].split("\0")[-1]
        if english:
            yield english, pair[1].split("\0")[-1]
