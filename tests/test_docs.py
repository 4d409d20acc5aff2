"""The docs site builds strictly, opens without network, and its examples are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import apportion.mixture.laws as laws
from apportion.mixture.laws import LAWS, Conditions, Law
from apportion.mixture.read import read_runs

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language on a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


class Fetched(HTMLParser):
    """What a browser fetches by itself when it opens a page (links are only followed)."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in {"script", "img", "iframe", "source", "video", "audio", "embed"}:
            self.addresses.append(given.get("src", ""))
        if tag == "link" and given.get("rel") not in {"next", "prev", "canonical"}:
            self.addresses.append(given.get("href", ""))


def is_remote(address: str) -> bool:
    return address.startswith(("http:", "https:", "//"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a broken link or a missing name fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_fetch_nothing(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md"))) - 1
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.addresses
        assert not [address for address in parser.addresses if is_remote(address)], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        fetched = re.findall(r"(?:@import\s*|url\()\s*[\"']?([^\"')\s]+)", text)
        assert not [address for address in fetched if is_remote(address)], sheet


def test_the_check_for_fetches_can_see_one():
    parser = Fetched()
    parser.feed('<a href="https://x.y/"></a><script src="//x.y/z.js"></script>')
    assert [is_remote(address) for address in parser.addresses] == [True]


@pytest.mark.parametrize("name", sorted(LAWS))
def test_every_law_has_its_line_and_its_entry(name):
    text = (DOCS / "laws.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in text
    assert f"::: apportion.mixture.laws.{LAWS[name].__name__}\n" in text
    assert LAWS[name].__name__ in laws.__all__


def test_the_run_table_shown_can_be_read(tmp_path):
    (example,) = blocks("run-table.md", "csv")
    path = tmp_path / "runs.csv"
    path.write_text(example, encoding="utf-8")
    runs = read_runs(path)
    assert len(runs) == example.count("\n") - 1
    assert runs.families == ("romance", "slavic")
    assert runs.seed is not None


def test_the_law_shown_is_a_law():
    source = blocks("add-a-law.md", "python")[0]
    made: dict[str, object] = {"__name__": "example"}
    exec(compile(source, "add-a-law.md", "exec"), made)
    law = made["DataShare"]()
    assert isinstance(law, Law)
    at = Conditions(
        params=np.array([1e6, 4e6, 2e7]),
        tokens=np.array([1e8, 1e9, 5e9]),
        ratios=np.array([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]]),
    )
    theta = np.array([0.5, 0.3, -0.4, 0.35, 0.3, 0.2])
    n, d, p = at.params / 1e6, at.tokens / 1e9, at.own
    e, a, b = np.exp(theta[:3])
    expected = np.log(e + a / n**0.35 + b / (d**0.3 * p**0.2))
    value, gradient = law.gradient(theta, at)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    for k in range(6):
        step = 1e-6 * np.eye(6)[k]
        slope = (law.log_loss(theta + step, at) - law.log_loss(theta - step, at)) / 2e-6
        np.testing.assert_allclose(gradient[:, k], slope, rtol=1e-7, atol=1e-9)
