"""The pure pieces of the corpus preparation: stripping, catalogues, prose, duplicates."""

from __future__ import annotations

import gzip
import io
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "multilingual_sweep"
MODULES = (
    "catalogues",
    "extract",
    "fetch",
    "languages",
    "prepare",
    "prose",
    "sources",
    "strip",
)


@pytest.fixture(scope="module")
def sweep() -> Iterator[Any]:
    """The scripts' modules as attributes; their short names are gone again afterwards."""
    import importlib
    from types import SimpleNamespace

    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def make_pak(strings: dict[int, bytes], version: int, encoding: int) -> bytes:
    """A resource pack as Chromium lays it out."""
    if version == 4:
        header = struct.pack("<IIB", 4, len(strings), encoding)
    else:
        header = struct.pack("<IB3xHH", 5, encoding, len(strings), 0)
    offset = len(header) + 6 * (len(strings) + 1)
    index = b""
    for identifier, entry in strings.items():
        index += struct.pack("<HI", identifier, offset)
        offset += len(entry)
    return header + index + struct.pack("<HI", 0, offset) + b"".join(strings.values())


def make_mo(pairs: dict[bytes, bytes], order: str = "<") -> bytes:
    """A gettext catalogue with its two tables after the header."""
    count = len(pairs)
    start = 28 + 16 * count
    tables = [b"", b""]
    blob = b""
    for column, texts in enumerate((list(pairs), list(pairs.values()))):
        for text in texts:
            tables[column] += struct.pack(order + "2I", len(text), start + len(blob))
            blob += text + b"\0"
    head = struct.pack(order + "7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    return head + tables[0] + tables[1] + blob


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("encoding", "codec"), [(1, "utf-8"), (2, "utf-16-le")])
def test_pak_gives_back_its_strings(sweep: Any, version: int, encoding: int, codec: str) -> None:
    strings = {7: "मेरी नई खिड़की", 300: "zweiter Eintrag", 65000: ""}
    pack = make_pak({i: text.encode(codec) for i, text in strings.items()}, version, encoding)
    assert sweep.catalogues.read_pak(pack) == strings
    assert sweep.catalogues.read_pak(gzip.compress(pack)) == strings


def test_pak_reads_gzipped_entries_and_leaves_out_binary_ones(sweep: Any) -> None:
    pack = make_pak({1: gzip.compress("größer".encode()), 2: b"\x1e\x9b\xff\xfe"}, 5, 1)
    assert sweep.catalogues.read_pak(pack) == {1: "größer"}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda pack: pack[:6], "at least 9 bytes"),
        (lambda pack: struct.pack("<I", 3) + pack[4:], "found 3"),
        (lambda pack: pack[:20], "cut short"),
        (lambda pack: pack[:-3], "lies outside"),
    ],
)
def test_a_damaged_pak_is_refused(sweep: Any, damage: Any, words: str) -> None:
    pack = make_pak({1: b"one entry", 2: b"another"}, 5, 1)
    with pytest.raises(sweep.catalogues.CatalogueError, match=words):
        sweep.catalogues.read_pak(damage(pack))


@pytest.mark.parametrize("order", ["<", ">"])
def test_mo_pairs_lose_header_context_and_first_plural(sweep: Any, order: str) -> None:
    catalogue = make_mo(
        {
            b"": b"Content-Type: text/plain",
            b"menu\x04Open": "Öffnen".encode(),
            b"%d day\0%d days": b"%d Tag\0%d Tage",
        },
        order,
    )
    assert list(sweep.catalogues.read_mo(catalogue)) == [("Open", "Öffnen"), ("%d days", "%d Tage")]
    with pytest.raises(sweep.catalogues.CatalogueError, match="cut short"):
        list(sweep.catalogues.read_mo(catalogue[:40]))
    with pytest.raises(sweep.catalogues.CatalogueError, match="not a gettext"):
        list(sweep.catalogues.read_mo(b"plain text"))


def test_a_catalogue_yields_english_once_and_no_fallback(sweep: Any) -> None:
    catalogue = make_mo({b"Kept as it is": b"Kept as it is", b"The door": "Die Tür".encode()})
    read = list(sweep.extract.read_file(catalogue, "mo", "de"))
    assert read == [("en", "Kept as it is"), ("de", "Die Tür"), ("en", "The door")]
    assert list(sweep.extract.read_file(catalogue, "mo", "nl")) == [("nl", "Die Tür")]


def test_html_keeps_prose_and_drops_the_rest(sweep: Any) -> None:
    page = """<html><head><title>No</title></head><body><nav><p>Menu</p></nav>
    <script>if (a < b) { run(); }</script>
    <h1>Ein&nbsp;Titel</h1><p>Der <b>erste</b> Absatz &amp; mehr,<br>
    auf zwei Zeilen.</p><!-- <p>hidden</p> --><pre>ls -l <b>/tmp</b></pre>
    <ul><li>Punkt eins</li><li>Punkt <code>zwei</code></li></ul></body></html>"""
    assert sweep.strip.strip_tags(page) == [
        "Ein Titel",
        "Der erste Absatz & mehr, auf zwei Zeilen.",
        "Punkt eins",
        "Punkt zwei",
    ]


def test_nested_dropped_tags_end_where_the_outer_one_ends(sweep: Any) -> None:
    page = "<p>a</p><aside>x<aside>y</aside>z</aside><p>b</p><info/><p>c</p>"
    assert sweep.strip.strip_tags(page) == ["a", "b", "c"]


def test_mallard_page(sweep: Any) -> None:
    page = """<page xmlns="x"><info><desc>Nein</desc></info><title>Titel</title>
    <steps><item><p>Drücken Sie <guiseq><gui>A</gui> <gui>B</gui></guiseq>.</p></item></steps>
    <screen>sudo make</screen></page>"""
    assert sweep.strip.strip_tags(page) == ["Titel", "Drücken Sie A B."]


def test_man_page(sweep: Any) -> None:
    page = r""".\" a comment
.TH LS 1 "heute"
.SH BEZEICHNUNG
ls \- Verzeichnisse
auflisten
.SH BESCHREIBUNG
Das Programm
.BR ls (1)
zeigt \fIDateien\fP an, \(lqauch\(rq \[u00FC]ber Netz.
.TP
.B \-a
Alle Dateien.
.nf
int main(void);
.fi
.PP
Nach dem Beispiel\c
"""
    assert sweep.strip.strip_man(page) == [
        "ls - Verzeichnisse auflisten",
        "Das Programm ls(1) zeigt Dateien an, “auch” über Netz.",
        "-a",
        "Alle Dateien.",
        "Nach dem Beispiel",
    ]
    assert sweep.strip.strip_man(".Dd heute\n.Sh NAME\nText\n") == []


@pytest.mark.parametrize(
    ("message", "paragraphs"),
    [
        ("Die Seite [[Hilfe:Start|Hilfe]] von $1", ["Die Seite Hilfe von …"]),
        ("{{PLURAL:$1|eine Datei|viele Dateien}} '''neu'''", ["viele Dateien neu"]),
        ("{N, plural, =1 {ein Tab} other {{N} Tabs}} offen", ["… Tabs offen"]),
        ("<b>%s</b> öffnet %1$S", ["… öffnet …"]),
        ("_Datei ~öffnen", ["Datei öffnen"]),
        ("Erster Teil\n\nzweiter Teil", ["Erster Teil", "zweiter Teil"]),
        ("{N, plural, =1 {offen", []),
    ],
)
def test_messages(sweep: Any, message: str, paragraphs: list[str]) -> None:
    assert sweep.strip.strip_message(message) == paragraphs


def test_fluent_and_the_language_pack(sweep: Any) -> None:
    text = (
        "# note\nkey = Ein Wert\n    geht weiter\nother =\n    .label = Etwas\n"
        "sel = { $n ->\n    [one] eins\n   *[other] mehr\n }\nlast = Ende\n"
    )
    assert list(sweep.strip.fluent_messages(text)) == [
        ("key", "Ein Wert geht weiter"),
        ("other", ""),
        ("other.label", "Etwas"),
        ("last", "Ende"),
    ]
    pack = io.BytesIO()
    with zipfile.ZipFile(pack, "w") as archive:
        archive.writestr("localization/de/a.ftl", "key = Ein { -brand } Fenster")
        archive.writestr("image.png", b"\x89PNG")
    read = sweep.extract.read_file(pack.getvalue(), "langpack", "de")
    assert list(read) == [("de", "Ein … Fenster")]


def test_line_breaks_between_chinese_characters_are_no_spaces(sweep: Any) -> None:
    assert sweep.strip.tidy("中文\n段落， 用 Vim\u00ad 写") == "中文段落，用 Vim 写"


@pytest.mark.parametrize(
    ("locale", "code"),
    [
        ("pt_BR", "pt"),
        ("zh-CN", "zh"),
        ("zh_TW", "zh-hant"),
        ("zh-hant", "zh-hant"),
        ("sr@latin", "sr-latn"),
        ("sr-ec", "sr"),
        ("C", "en"),
        ("nb-no", "nb"),
        ("es-419", "es"),
        ("de.UTF-8", "de"),
        ("de-formal", None),
        ("pa-arab", None),
        ("fi", None),
    ],
)
def test_locale_names(sweep: Any, locale: str, code: str | None) -> None:
    assert sweep.languages.normalise_locale(locale) == code


PROSE = {
    "de": "Mit diesem Befehl öffnet sich ein neues Fenster auf dem Bildschirm.",
    "hi": "इस आदेश से आपके स्क्रीन पर एक नई खिड़की अपने आप खुल जाती है।",
    "zh": "使用此命令可以在屏幕上打开一个新的窗口。",
    "en": "This command opens a new window on the screen when it is called.",
}


@pytest.mark.parametrize("code", list(PROSE))
def test_prose_is_kept_in_its_own_language_only(sweep: Any, code: str) -> None:
    for other in PROSE:
        language = sweep.languages.LANGUAGES[other]
        # German passes for English: a Latin script alone does not tell them apart.
        expected = other == code or (code, other) == ("de", "en")
        assert sweep.prose.is_prose(PROSE[code], language) is expected


@pytest.mark.parametrize(
    "text",
    [
        "Zu kurz für einen Absatz.",
        "--recursive --verbose --output=/tmp/datei --no-check --list=alle",
        "12 34 56 78 90 12 34 56 78 90 12 34 56 78 90 12 34 Zahlen",
        "/usr/share/doc /usr/lib/python3 /etc/apt/sources.list /var/cache/apt",
        "Zusammengesetztesungetuemwortmitendlosvielensilbenohneeinleerzeichen",
        "The file is opened with the name that you have given to this command.",
    ],
)
def test_what_is_no_german_prose(sweep: Any, text: str) -> None:
    assert not sweep.prose.is_prose(text, sweep.languages.LANGUAGES["de"])


def test_burmese_in_a_legacy_font_order_is_left_out(sweep: Any) -> None:
    burmese = sweep.languages.LANGUAGES["my"]
    assert sweep.prose.is_prose("ယခုဝဘ်ဆိုက်ကို မူဝါဒဖြင့် စီစဉ်တည်ဆောက်ထားသည်။", burmese)
    assert not sweep.prose.is_prose("ယခုဝဘ်ဆိုက်ကို မူဝါဒဖြင့် ေမးလ်စီစဉ်တည်ဆောက်ထားသည်။", burmese)


def test_duplicates_differ_in_digits_space_or_a_word(sweep: Any) -> None:
    german = sweep.languages.LANGUAGES["de"]
    first = "Die Datei mit der Nummer 17 wird beim nächsten Start des Programms wieder geladen."
    texts = [
        first,
        first.replace("17", "4"),
        first.replace(" beim", "  beim"),
        first.upper(),
        first.replace("Datei", "Tabelle"),
        PROSE["de"],
    ]
    seen: set[bytes] = set()
    assert sweep.prose.select(texts, german, seen) == [first, PROSE["de"]]
    assert sweep.prose.select([first], german, seen) == []


def test_the_order_is_fixed_by_seed_and_language(sweep: Any) -> None:
    german, dutch = (sweep.languages.LANGUAGES[code] for code in ("de", "nl"))
    lines = [str(i) for i in range(200)]
    order = sweep.prose.shuffled(lines, german, seed=3)
    assert order == sweep.prose.shuffled(lines, german, seed=3)
    assert sorted(order, key=int) == lines != order
    assert order != sweep.prose.shuffled(lines, dutch, seed=3)
    assert order != sweep.prose.shuffled(lines, german, seed=4)


def test_a_family_is_written_without_english_and_without_stale_files(
    sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep.prepare, "SMALLEST_FILE", 10)
    folder, out = tmp_path / "package", tmp_path / "text"
    folder.mkdir()
    (folder / "de.txt").write_text(f"{PROSE['de']}\n{PROSE['en']}\n", encoding="utf-8")
    (out / "germanic").mkdir(parents=True)
    (out / "germanic" / "nl.txt").write_text("von früher\n", encoding="utf-8")
    seen: set[bytes] = set()
    english = sweep.prose.select([PROSE["en"]], sweep.languages.LANGUAGES["en"], seen)
    rows = sweep.prepare.write_family("germanic", [folder], english, seen, out)
    assert {path.name for path in (out / "germanic").iterdir()} == {"en.txt", "de.txt"}
    assert (out / "germanic" / "de.txt").read_text(encoding="utf-8") == PROSE["de"] + "\n"
    sizes = {row["language"]: row for row in rows}
    assert sizes["de"]["bytes"] == len(PROSE["de"].encode()) + 1
    assert sizes["de"]["characters"] == len(PROSE["de"]) + 1


def test_every_source_names_a_licence_and_one_group(sweep: Any) -> None:
    names = [source.package for source in sweep.sources.SOURCES]
    assert len(names) == len(set(names))
    for source in sweep.sources.SOURCES:
        assert source.licence
        assert source.pattern.groups == 1


def test_without_apt_the_error_says_so(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(sweep.extract.PackageError, match="apt-get is not installed"):
        sweep.fetch.update_lists()
    with pytest.raises(sweep.extract.PackageError, match="dpkg-deb is not installed"):
        list(sweep.extract.extract(Path("x.deb"), sweep.sources.SOURCES[0]))
