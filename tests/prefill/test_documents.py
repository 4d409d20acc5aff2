"""Text from files: what is read, what is refused, and in which words."""

from __future__ import annotations

import gzip
import io
import os
import random
import sqlite3
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from apportion.errors import InputError, MissingExtraError, command_line
from apportion.prefill import documents
from apportion.prefill.documents import open_document, read_document
from apportion.prefill.kinds import HEAD

TEXT = "Ὀδύσσεια, the Odyssey: «Ἄνδρα μοι» — naïve 🦊\n" * 3


@pytest.fixture
def write(tmp_path):
    def make(data: bytes | str, name: str = "text.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return make


def refusal(path: Path | str, *said: str) -> str:
    with pytest.raises(InputError) as caught:
        read_document(path)
    for text in said:
        assert text in str(caught.value)
    return str(caught.value)


def test_plain_text_is_given_as_it_is(write):
    assert read_document(write(TEXT)) == TEXT
    assert read_document(str(write(TEXT))) == TEXT
    assert read_document(write("")) == ""


def test_a_byte_order_mark_goes_and_line_ends_are_one_kind(write):
    assert read_document(write(b"\xef\xbb\xbfone\r\ntwo\rthree\n")) == "one\ntwo\nthree\n"
    # In the middle it is a character.
    assert read_document(write("a\ufeffb")) == "a\ufeffb"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_that_is_not_utf8_is_named_with_its_offset(write, mark):
    path = write(mark + "für ".encode() + b"na\xefve readers" + b"x" * 70_000)
    offset = len(mark) + 5 + 2
    refusal(path, str(path), f"offset {offset} (0xef)", 'errors="replace"', "iconv")
    with command_line({}):
        refusal(path, "--errors replace")
    assert read_document(path, errors="replace").startswith("für na\ufffdve readers")


def test_a_character_that_is_cut_off_at_the_end_is_not_swallowed(write):
    refusal(write("abc€".encode()[:-1]), "offset 3 (0xe2)")
    assert read_document(write("abc€".encode()[:-1]), errors="replace") == "abc\ufffd"


def test_no_file_and_a_folder(tmp_path):
    refusal(tmp_path / "nowhere.txt", "there is no", "nowhere.txt")
    refusal(tmp_path, "got the folder")
    refusal(tmp_path / ("x" * 300), "cannot read")


# Standard input


class Stdin:
    def __init__(self, buffer) -> None:
        self.buffer = buffer


@pytest.fixture
def pipe(monkeypatch) -> Iterator[io.BufferedWriter]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb") as sink:
        monkeypatch.setattr(sys, "stdin", Stdin(source))
        yield sink


def test_a_pipe_gives_text_before_it_ends(pipe):
    first = TEXT.encode() * (HEAD // len(TEXT) + 1)
    pipe.write(first)
    pipe.flush()
    pieces = open_document("-")
    assert not isinstance(pieces, str)
    began = next(pieces)
    assert began
    assert (TEXT * 999).startswith(began)

    def later() -> None:
        time.sleep(0.05)
        pipe.write(b"the end")
        pipe.close()

    thread = threading.Thread(target=later)
    thread.start()
    rest = "".join(pieces)
    thread.join()
    assert began + rest == first.decode() + "the end"


def test_a_pipe_of_something_else_is_refused_at_once(pipe):
    pipe.write(b"\x89PNG\r\n\x1a\n" + bytes(HEAD))
    pipe.flush()
    with pytest.raises(InputError, match="standard input: expected text, HTML or PDF, got a PNG"):
        open_document("-")


def test_a_pipe_with_a_page_is_read_whole(pipe):
    pipe.write(b"<html><p>one<p>two")
    pipe.close()
    assert open_document("-") == "one\n\ntwo"


def test_standard_input_from_a_file_is_read_whole_and_its_length_known(write, monkeypatch):
    with write(TEXT).open("rb") as source:
        monkeypatch.setattr(sys, "stdin", Stdin(source))
        assert open_document("-") == TEXT


def test_an_offset_in_a_stream_counts_from_its_beginning(pipe):
    good = ("é" * HEAD).encode()[:-1]  # cut within a character
    pipe.write(good + b"\xc3")
    pipe.close()
    with pytest.raises(InputError, match=rf"standard input: .* at offset {len(good) - 1} \(0xc3\)"):
        "".join(open_document("-"))


def test_pieces_cut_anywhere_are_the_whole_text():
    draw = random.Random(0)
    for trial in range(200):
        data = bytearray("".join(draw.choices("aé€🦊\r\n \n", k=draw.randrange(1, 40))).encode())
        if trial % 2:
            data[draw.randrange(len(data))] = draw.choice([0x80, 0xC3, 0xE2, 0xF0, 0xFF])
        cuts = sorted(draw.choices(range(len(data) + 1), k=3))
        pieces = [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        try:
            whole = bytes(data).decode().replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as error:
            with pytest.raises(
                InputError, match=rf"offset {error.start} \(0x{data[error.start]:x}"
            ):
                "".join(documents._decoded(pieces, "it", "strict"))
        else:
            assert "".join(documents._decoded(pieces, "it", "strict")) == whole


# HTML


def test_a_page_as_one_sees_it(write):
    page = """<!-- made by hand --><!DOCTYPE html>
    <html><head><title>Filters &amp; pumps</title>
    <style>p { color: red }</style><script>if (a < b) alert("<p>no</p>")</script></head>
    <body><h1>Cleaning</h1><p>Open the <b>lid</b>,
       then&nbsp;pull.<br>Don&#8217;t force it.</p>
    <svg><title>logo</title><text>no</text></svg><noscript>no</noscript>
    <ul><li>one<li>two &lt;3</ul>
    <table><tr><th>part</th><th>price</th></tr><tr><td>lid</td><td>3 €</td></tr></table>
    <pre>  a
      b  c

    d</pre>after</body></html>"""
    assert read_document(write(page, "page")) == (
        "Filters & pumps\n\nCleaning\n\nOpen the lid, then pull.\nDon’t force it.\n\n"
        "one\ntwo <3\n\npart\tprice\nlid\t3 €\n\n  a\n      b  c\n\n    d\n\nafter"
    )


def test_a_page_is_told_by_its_name_or_its_beginning(write):
    assert read_document(write("<p>a<p>b", "page.HTM")) == "a\n\nb"
    assert read_document(write("<p>a<p>b", "page.txt")) == "<p>a<p>b"
    xhtml = '<?xml version="1.0"?>\n<html xmlns="x"><body><p>a</p><script/>b</body></html>'
    assert read_document(write(xhtml, "page.txt")) == "a\n\nb"
    # Many comments that lead nowhere must not take for ever.
    began = time.perf_counter()
    read_document(write("<!-- a -->" * 700 + "text"))
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("declared", ["iso-8859-1", "windows-1252", "ISO-8859-15"])
def test_a_page_may_declare_its_encoding(write, declared):
    page = f'<html><head><meta charset="{declared}"></head><body>café</body></html>'
    assert read_document(write(page.encode(declared), "page.html")) == "café"
    older = f'<meta http-equiv="Content-Type" content="text/html; charset={declared}">café'
    assert read_document(write(older.encode(declared), "page.html")) == "café"


def test_latin_1_means_the_superset_of_windows(write):
    page = '<meta charset="iso-8859-1">“3 €”'.encode("cp1252")
    assert read_document(write(page, "page.html")) == "“3 €”"


def test_a_page_that_declares_what_is_not_so(write):
    for declared in (
        "",
        '<meta charset="utf-8">',
        '<meta charset="klingon">',
        "<meta charset=hex>",
    ):
        data = f"<html>{declared}".encode() + b"caf\xe9 au lait"
        refusal(write(data, "page.html"), f"offset {data.index(0xE9)} (0xe9)")
        assert read_document(write(data, "page.html"), errors="replace") == "caf\ufffd au lait"


# Other kinds


def zipped(*names: str, stored: str = "") -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, stored or "x")
    return held.getvalue()


def database() -> bytes:
    return sqlite3.connect(":memory:").execute("VACUUM").connection.serialize()


def riff(kind: bytes) -> bytes:
    return b"RIFF\x24\x00\x00\x00" + kind + b"fmt "


OTHERS = {
    "a PNG image": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "a JPEG image": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "a GIF image": b"GIF89a\x01\x00\x01\x00\x80\x00",
    "a WebP image": riff(b"WEBP"),
    "a BMP image": b"BM\x36\x00\x00\x00\x00\x00",
    "a WAV recording": riff(b"WAVE"),
    "an MP3 recording": b"ID3\x04\x00\x00\x00\x00\x00\x00",
    "an MP4 film": b"\x00\x00\x00\x20ftypisom",
    "a gzip archive": gzip.compress(b"text"),
    "a zstandard archive": b"\x28\xb5\x2f\xfd\x04\x00",
    "a tar archive": b"text.txt".ljust(257, b"\x00") + b"ustar\x0000",
    "a zip archive": zipped("text.txt"),
    "a Word document": zipped("[Content_Types].xml", "_rels/.rels", "word/document.xml"),
    "an Excel workbook": zipped("[Content_Types].xml", "xl/workbook.xml"),
    "an EPUB book": zipped("mimetype", stored="application/epub+zip"),
    "an OpenDocument file": zipped("mimetype", stored="application/vnd.oasis.opendocument.text"),
    "an old Office file": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(20),
    "a program (ELF)": b"\x7fELF\x02\x01\x01" + bytes(9),
    "a Windows program": b"MZ\x90\x00\x03\x00",
    "an RTF file": rb"{\rtf1\ansi Hello}",
    "a PostScript file": b"%!PS-Adobe-3.0\n",
    "a Parquet file": b"PAR1\x15\x04\x15\x00",
    "a GGUF model": b"GGUF\x03\x00\x00\x00",
    "a safetensors file": b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"a":{}}',
    "UTF-16 text": "text".encode("utf-16"),
    "UTF-32 text": "text".encode("utf-32"),
    "a zero byte at offset 4": b"text\x00text",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_are_refused_by_name(write, name):
    path = write(OTHERS[name])
    refusal(path, f"{path}: expected text, HTML or PDF, got ", name, "; ")


def test_an_sqlite_database_is_refused(tmp_path):
    path = tmp_path / "data.txt"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    refusal(path, "an SQLite database")


@pytest.mark.parametrize(
    "text",
    ["GIF89a is a format", "ID3 tags", "BZh 1", "MZ and BM", "PAR1", "Rar!", "II* or MM", "OggS",
     "    ftyp", "PK is short"],
)  # fmt: skip
def test_text_about_formats_is_text(write, text):
    assert read_document(write(text)) == text


# PDF


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page, as small as they come."""
    count = len(pages)
    kids = " ".join(f"{3 + 2 * k} 0 R" for k in range(count))
    font = 3 + 2 * count
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
    ]
    for k, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {4 + 2 * k} 0 R "
            f"/Resources << /Font << /F1 {font} 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    out, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    out += f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return f"{out}startxref\n{out.index('xref')}\n%%EOF\n".encode()


def locked(password: str) -> bytes:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf("behind a lock")))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    held = io.BytesIO()
    writer.write(held)
    return held.getvalue()


def test_a_pdf_gives_the_text_of_its_pages(write):
    pytest.importorskip("pypdf")
    assert read_document(write(pdf("Call me Ishmael.", "", "Some years ago"))) == (
        "Call me Ishmael.\n\nSome years ago"
    )


def test_an_encrypted_pdf(write):
    refusal(write(locked("secret")), "an encrypted one", "password")
    assert read_document(write(locked(""))) == "behind a lock"


def test_a_pdf_without_text(write):
    pytest.importorskip("pypdf")
    refusal(write(pdf("", "")), "2 pages without any", "ocrmypdf")


def test_a_damaged_pdf(write):
    pytest.importorskip("pypdf")
    whole = pdf("text")
    for data in (whole[:9], whole[: len(whole) // 3], b"%PDF-1.4\n" + b"\x00\xff" * 50):
        refusal(write(data), "cannot read this PDF")


def test_without_pypdf_the_extra_is_named(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(MissingExtraError, match=r"'pypdf'.*pip install 'apportion\[pdf\]'"):
        read_document(write(pdf("text")))
