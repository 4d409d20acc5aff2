"""The visible text of an HTML page, by the parser of the standard library."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# What nobody sees. Nothing in them is text of the page.
_DROPPED = {"script", "style", "template", "noscript", "svg", "iframe", "object"}
# A line of their own, and those with an empty line around them.
_LINES = {
    "address", "article", "aside", "body", "br", "caption", "dd", "details", "dialog", "div", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "legend", "li",
    "main", "nav", "option", "section", "select", "summary", "tbody", "tfoot", "thead", "tr",
}  # fmt: skip
_PARAGRAPHS = {
    "blockquote", "dl", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "table", "title",
    "ul",
}  # fmt: skip
_BLANKS = re.compile(r"[ \t\n\r\f\xa0]+")


def text_of_html(page: str) -> str:
    """The text of a page, a line for each block, an empty one between paragraphs."""
    parser = _Visible()
    parser.feed(page)
    parser.close()
    parser.end_line()
    return "\n".join(parser.lines)


class _Visible(HTMLParser):
    """Gathers lines.

    Attributes:
        lines: so far.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._line, self._apart = "", False
        self._dropped: list[str] = []
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._dropped or tag in _DROPPED:
            if tag in _DROPPED:
                self._dropped.append(tag)
            return
        self._block(tag)
        if tag == "pre":
            self._verbatim += 1
        elif tag in ("td", "th") and self._line:
            self._line = f"{self._line.rstrip()}\t"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # <svg/> ends where it begins.
        if tag not in _DROPPED:
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._dropped:
            if tag in self._dropped:
                while self._dropped.pop() != tag:
                    pass
            return
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        self._block(tag)

    def handle_data(self, data: str) -> None:
        if self._dropped:
            return
        if self._verbatim:
            first, *more = data.split("\n")
            self._line += first
            for line in more:
                self.end_line(even_empty=True)
                self._line = line
            return
        text = _BLANKS.sub(" ", data)
        if not self._line or self._line[-1].isspace():
            text = text.removeprefix(" ")
        self._line += text

    def end_line(self, even_empty: bool = False) -> None:
        """What comes next stands on another line."""
        line = self._line.rstrip()
        self._line = ""
        if not line and not even_empty:
            return
        if self._apart and self.lines and self.lines[-1]:
            self.lines.append("")
        self._apart = False
        self.lines.append(line)

    def _block(self, tag: str) -> None:
        if tag in _LINES or tag in _PARAGRAPHS:
            self.end_line()
            self._apart = self._apart or tag in _PARAGRAPHS
