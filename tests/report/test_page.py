"""The page: escaped, self-contained, the same bytes for the same input, and it fits a phone."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError
from apportion.report import render, write_page
from apportion.report.cells import cell, grid
from apportion.report.vector import embed
from browser import measure

HOSTILE = "<script>window.hostile = true</script>\"'&"
SVG = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
 width="270pt" height="90pt" viewBox="0 0 270 90" version="1.1">
<metadata><x xmlns="http://other.example/">gone</x></metadata>
<defs><style>*{stroke-linejoin: round}</style><clipPath id="c"><path id="p"
 d="M 1.23456 2.5 L 3 4"/></clipPath></defs>
<g id="axes_1" clip-path="url(#c)"><use xlink:href="#p"/></g><text x="9" y="50">words</text></svg>
"""


@dataclass
class Table:
    title: str
    frame: pd.DataFrame
    note: str = ""
    folded: bool = False


@dataclass
class Picture:
    svg: str
    caption: str


@dataclass
class Section:
    title: str
    answer: str = ""
    tone: str = ""
    text: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass
class Page:
    title: str
    lead: str = ""
    sections: tuple[Section, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)


def example(name: str = "romance") -> Page:
    wide = pd.DataFrame({f"column {k} {name}": [name, f"{k}.5 (1 to 2)", k] for k in range(24)})
    sections = tuple(
        Section(
            f"Question {k} about {name}",
            f"answer {name}",
            tone,
            (f"A paragraph on {name} " + "with words " * 60,),
            (f"a point on {name}", f"  a detail of {name}"),
            tuple(Picture(SVG, f"caption {name}") for _ in range(k)),
            (Table(f"table {name}", wide, "a note"), Table("more", wide, folded=True)),
        )
        for k, tone in enumerate(("", "good", "care", "bad"))
    )
    values = {"x": np.float64(1.5), "gone": np.nan, "rows": pd.DataFrame({name: [np.inf, 2.0]})}
    return Page(f"Title {name}", f"lead {name}", sections, {"results.json": values})


class Reader(HTMLParser):
    """Elements, attributes that fetch, text and ids of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: dict[str, str] = {}
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.fetched.append(value or "")
            assert not name.startswith("on"), f"<{tag} {name}>"
        given = dict(attrs)
        if tag == "a" and given.get("download"):
            self.links[str(given["download"])] = str(given["href"])

    def handle_data(self, data: str) -> None:
        self.words += data


def test_everything_given_is_on_the_page():
    found = Reader(render(example()))
    for words in (
        "Title romance",
        "lead romance",
        "Question 3 about romance",
        "answer romance",
        "a point on romance",
        "a detail of romance",
        "caption romance",
        "column 23 romance",
        "23.5 (1 to 2)",
        "a note",
        "words",
    ):
        assert words in found.words
    assert found.tags.count("svg") == 0 + 1 + 2 + 3
    assert found.tags.count("table") == 8
    assert found.tags.count("details") == 4


def test_hostile_names_are_text():
    html = render(example(HOSTILE))
    found = Reader(html)
    assert "script" not in found.tags
    assert HOSTILE in found.words
    assert "<script" not in html


def test_nothing_is_fetched():
    html = render(example())
    assert re.search(r"https?://", html) is None
    assert "@import" not in html
    assert all(
        each.startswith(("#", "data:application/json;base64,")) for each in Reader(html).fetched
    )
    assert re.findall(r"url\(\s*[^#)\s]", html) == []
    assert "default-src 'none'" in html
    assert not {"link", "script", "iframe", "img", "object", "embed"} & set(Reader(html).tags)


def test_ids_are_unique_and_references_hit_them():
    found = Reader(render(example()))
    assert len(found.ids) == len(set(found.ids)) > 10
    inside = [each[1:] for each in found.fetched if each.startswith("#")]
    assert set(inside) <= set(found.ids)
    assert len(inside) > 6


def test_the_numbers_can_be_saved():
    links = Reader(render(example())).links
    stored = links["results.json"].removeprefix("data:application/json;base64,")
    assert json.loads(base64.b64decode(stored)) == {
        "x": 1.5,
        "gone": None,
        "rows": [{"romance": None}, {"romance": 2.0}],
    }


def test_same_input_same_bytes(tmp_path):
    for name in ("a.html", "b.html"):
        write_page(example(), tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_an_unwritable_path_is_said(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*no-folder"):
        write_page(example(), tmp_path / "no-folder" / "page.html")


def test_an_empty_page_is_a_page():
    found = Reader(render(Page("Nothing yet")))
    assert "Nothing yet" in found.words
    assert "nav" not in found.tags


@pytest.mark.parametrize("name", ["romance", HOSTILE, "a" * 300])
def test_fits_desktop_and_phone(tmp_path, name):
    for seen, width in zip(
        measure(render(example(name)), tmp_path, (1280, 390)), (1280, 390), strict=True
    ):
        assert seen["viewport"] == width
        assert seen["scroll"] <= width
        assert seen["wide"] == []
        assert seen["figures"] == 6
        assert seen["loaded"] == []
        assert not seen["ran"]
        assert "a detail of" in seen["text"]


def test_the_measure_sees_what_is_too_wide(tmp_path):
    html = render(example()).replace(
        "</main>", '<p style="width: 900px; max-width: none">x</p></main>'
    )
    wide, narrow = measure(html, tmp_path, (1280, 390))
    assert wide["wide"] == []
    assert narrow["scroll"] >= 900
    assert len(narrow["wide"]) == 1


def test_embedded_figures_lose_what_reaches_out():
    out = embed(SVG, "f1-", 'a "caption"')
    assert out.startswith("<svg ")
    for kept in ('id="f1-axes_1"', 'href="#f1-p"', "url(#f1-c)", 'd="M 1.23 2.5 L 3 4"', "words"):
        assert kept in out
    for gone in ("metadata", "<style", "DOCTYPE", "http:", "xlink"):
        assert gone not in out
    assert 'aria-label="a &quot;caption&quot;"' in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("<script>1</script>", "element <script>"),
        ("<foreignObject/>", "element <foreignObject>"),
        ('<g onload="x()"/>', "attribute onload"),
        ('<image href="https://x.example/y.png"/>', "reference to 'https://x.example"),
        ('<use href="other.svg#a"/>', "reference to 'other.svg#a'"),
        ('<g style="fill: url(https://x.example/y)"/>', "reference to 'https://x.example"),
        ("<g>", "no XML"),
    ],
)
def test_figures_that_run_or_fetch_are_refused(content, said):
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">{content}</svg>'
    with pytest.raises(InputError, match=re.escape(said)):
        embed(svg, "f-", "x")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.1235"),
        (-2.0, "−2"),
        (np.float32(0.5), "0.5"),
        (1234567, "1234567"),
        (float("nan"), "–"),
        (None, "–"),
        (float("-inf"), "−∞"),
        (True, "yes"),
        (np.bool_(False), "no"),
        (["a", 0.25], "a, 0.25"),
        ({"romance": 0.5}, "romance 0.5"),
        ("as it is", "as it is"),
    ],
)
def test_cells(value, shown):
    assert cell(value) == shown


def test_columns_stand_as_their_content_asks():
    frame = pd.DataFrame(
        {
            "family": ["a", "b"],
            "loss_x": [1.5, np.nan],
            "ratio": ["0.1 (0 to 1)", "open"],
            "why": ["it moves together with A, so nothing follows", ""],
        }
    )
    found = grid(frame)
    assert [(c.heading, c.kind) for c in found.columns] == [
        ("family", "name"),
        ("loss x", "number"),
        ("ratio", "number"),
        ("why", "words"),
    ]
    assert found.rows[1] == ("b", "–", "open", "")
