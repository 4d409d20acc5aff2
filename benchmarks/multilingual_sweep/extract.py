"""Paragraphs of a Debian package, language by language, read from the package without unpacking."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from catalogues import CatalogueError, read_mo, read_pak
from languages import normalise_locale
from sources import Source
from strip import fluent_messages, strip_man, strip_message, strip_tags


class PackageError(RuntimeError):
    """A package that cannot be fetched or read; the message says what to do."""


def _decode(data: bytes) -> str:
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return data.decode("utf-8", "replace")


def _langpack(data: bytes) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as pack:
        for name in sorted(pack.namelist()):
            if name.endswith((".ftl", ".properties")):
                for _, value in fluent_messages(_decode(pack.read(name))):
                    yield from strip_message(value)


def _catalogue(data: bytes, language: str) -> Iterator[tuple[str, str]]:
    for english, translation in read_mo(data):
        if translation and translation != english:
            for paragraph in strip_message(translation):
                yield language, paragraph
        if language == "de":  # the English originals, once: German catalogues are complete
            for paragraph in strip_message(english):
                yield "en", paragraph


def _messages(data: bytes) -> Iterator[str]:
    for key, message in json.loads(_decode(data)).items():
        if not key.startswith("@") and isinstance(message, str):
            yield from strip_message(message)


def read_file(data: bytes, kind: str, language: str) -> Iterator[tuple[str, str]]:
    """(language, paragraph) of one file of a package; only a catalogue holds two languages."""
    if kind == "mo":
        yield from _catalogue(data, language)
        return
    if kind == "pak":
        paragraphs = (p for text in read_pak(data).values() for p in strip_message(text))
    elif kind == "langpack":
        paragraphs = _langpack(data)
    elif kind == "message_json":
        paragraphs = _messages(data)
    elif kind == "man":
        paragraphs = iter(strip_man(_decode(data)))
    else:
        paragraphs = iter(strip_tags(_decode(data)))
    for paragraph in paragraphs:
        yield language, paragraph


def extract(package: Path, source: Source) -> Iterator[tuple[str, str]]:
    """(language, paragraph) over the files of the package that the source names.

    Raises
    ------
    PackageError
        When dpkg-deb is absent or cannot read the package, or a file in it is damaged.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except FileNotFoundError as error:
        raise PackageError("dpkg-deb is not installed: run this on Debian or Ubuntu") from error
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
        for member in archive:
            match = source.pattern.search(member.name) if member.isfile() else None
            language = normalise_locale(match[1] or "en") if match else None
            if language is None:
                continue
            file = archive.extractfile(member)
            assert file is not None  # a regular file has content
            try:
                yield from read_file(file.read(), source.kind, language)
            except (CatalogueError, json.JSONDecodeError, zipfile.BadZipFile) as error:
                raise PackageError(f"{package.name}: {member.name}: {error}") from error
    if process.returncode:
        raise PackageError(f"dpkg-deb could not read {package}: delete it and run this again")
