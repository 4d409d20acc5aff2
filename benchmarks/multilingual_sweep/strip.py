"""From markup to paragraphs: HTML, Mallard and man pages, and the messages of programs.

Each function takes the text of one file (or one message) and gives plain paragraphs in their
order. Whether a paragraph is prose worth keeping is decided later, in `prose.py`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_SPACE = re.compile(r"\s+")
_BETWEEN_HAN = re.compile(
    r"(?<=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])"
)


def tidy(text: str) -> str:
    """One line, single spaces; none between Chinese characters, where a line break is no space."""
    text = text.replace("\u00ad", "").replace("\ufeff", "").replace("\u200b", "")
    return _BETWEEN_HAN.sub("", _SPACE.sub(" ", text)).strip()


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


_TAG = re.compile(
    r"<!--.*?-->|<\?.*?\?>|<!\[CDATA\[|\]\]>|<!?(/?)([A-Za-z][\w:.-]*)([^<>]*)>", re.S
)
_DROPPED = _words(
    "script style pre head header footer nav aside info screen programlisting svg button math"
)
_INLINE = _words(
    "a abbr acronym app b big bdi bdo br cite cmd code dfn em emph file font gui guiseq i img "
    "input "
    "ins kbd key keyseq label link mark output q s samp small span strike strong sub sup sys "
    "tt u var wbr"
)


def strip_tags(text: str) -> list[str]:
    """Paragraphs of HTML or Mallard: inline tags vanish, any other tag ends a paragraph.

    Scripts, navigation, page headers and preformatted blocks are dropped with their content.
    """
    paragraphs: list[str] = []
    current: list[str] = []
    skipping, depth, end = "", 0, 0
    for match in _TAG.finditer(text):
        name = (match[2] or "").lower()
        closing, alone = match[1] == "/", (match[3] or "").rstrip().endswith("/")
        if not skipping:
            current.append(text[end : match.start()])
        end = match.end()
        if skipping:
            if name == skipping and not alone:
                depth += -1 if closing else 1
                skipping = skipping if depth else ""
        elif name in _DROPPED and not closing and not alone:
            skipping, depth = name, 1
        if name == "br":
            current.append(" ")
        elif name and name not in _INLINE:
            paragraphs.append("".join(current))
            current = []
    if not skipping:
        current.append(text[end:])
    paragraphs.append("".join(current))
    tidied = (tidy(html.unescape(paragraph)) for paragraph in paragraphs)
    return [paragraph for paragraph in tidied if paragraph]


_GLYPHS = {
    "aq": "'", "cq": "'", "oq": "'", "dq": '"', "lq": "“", "rq": "”", "Fo": "«", "Fc": "»",
    "fo": "‹", "fc": "›", "Bq": "„", "bq": "‚", "en": "–", "em": "—", "hy": "-", "bu": "•",
    "co": "©", "rg": "®", "ha": "^", "ti": "~", "ga": "`", "rs": "\\", "->": "→", "mu": "×",
    "+-": "±", "de": "°", "sc": "§", "<=": "≤", ">=": "≥", "~~": "≈", "*m": "µ", "eu": "€",
    "Eu": "€", "sl": "/", "at": "@", "sh": "#", "lB": "[", "rB": "]", "lC": "{", "rC": "}",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:[\"#].*"
    r"|[fmFMgkYVnZ*](?:\[[^\]]*\]|\(..|[+-]?.)"
    r"|s(?:\[[^\]]*\]|\(..|[+-]?\d)"
    r"|[hvwDlLobNC]'[^']*'"
    r"|\[([^\]]*)\]|\((..)"
    r"|(.)|$)"
)
_PLAIN = {
    "-": "-",
    "e": "\\",
    "\\": "\\",
    " ": " ",
    "~": " ",
    "0": " ",
    "'": "'",
    "`": "`",
    ".": ".",
}


def _escape(match: re.Match[str]) -> str:
    glyph = match[1] or match[2]
    if glyph is None:
        return _PLAIN.get(match[3] or "", "")
    if re.fullmatch(r"u[0-9A-F]{4,5}", glyph):
        return chr(int(glyph[1:], 16))
    return _GLYPHS.get(glyph, "")


_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_FONT = _words("B I SM SB BR RB IR RI BI IB R")
_BREAK = _words("PP LP P IP HP TP TQ RS RE sp SH SS TH ce in ti bp")
_OPEN = {
    "nf": "fi",
    "EX": "EE",
    "TS": "TE",
    "EQ": "EN",
    "SY": "YS",
    "de": ".",
    "ig": ".",
    "PS": "PE",
}


def _request(line: str) -> tuple[str, str]:
    body = line[1:].lstrip()
    name = re.match(r"[^\s\\]*", body)
    assert name is not None  # the pattern matches the empty string too
    return name[0], body[name.end() :].strip()


def _font_text(name: str, arguments: str) -> str:
    parts = [quoted.replace('""', '"') or bare for quoted, bare in _ARGUMENT.findall(arguments)]
    alternating = len(name) == 2 and name not in ("SM", "SB")
    return ("" if alternating else " ").join(parts)


def strip_man(text: str) -> list[str]:
    """Paragraphs of a man page written with the `man` macros (a page in `mdoc` gives none).

    Headings, examples, tables and synopses are dropped; the term of a tagged paragraph is a
    paragraph of its own.
    """
    if re.search(r"^\.Dd\b", text, re.M):
        return []
    paragraphs: list[list[str]] = [[]]
    until, term = "", False
    for line in re.sub(r"\\\n", "", text).split("\n"):
        is_request = line[:1] in (".", "'")
        name, arguments = _request(line) if is_request else ("", line)
        if until:
            until = "" if is_request and name == until else until
            continue
        if name in _OPEN:
            until = _OPEN[name]
            paragraphs.append([])
        elif name in _BREAK or (not is_request and not line.strip()):
            paragraphs.append([])
            term = name in ("TP", "TQ")
        elif name in _FONT or not is_request:
            words = _font_text(name, arguments) if is_request else line
            paragraphs[-1].append(_ESCAPE.sub(_escape, words))
            if term:
                paragraphs.append([])
                term = False
    tidied = (tidy(" ".join(lines)) for lines in paragraphs)
    return [paragraph for paragraph in tidied if paragraph]


_WIKI_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_OUTER_LINK = re.compile(r"\[(?:https?:)?//\S+ ([^\]]*)\]")
_BRACES = re.compile(r"\{\{([^{}]*)\}\}")
_PLACEHOLDER = re.compile(
    r"\$\{?\w+\}?|%\(\w+\)[sd]|%\d+\$[sSd]|%[sSdluif](?!\w)|%\d\b|\{\s*[-$]?[\w-]*(?:\(\))?\s*\}|\{\{\w+\}\}"
)


def _template(match: re.Match[str]) -> str:
    """Last branch of a {{PLURAL:$1|…|…}} and its like: a whole sentence stays a sentence."""
    parts = match[1].split("|")
    return parts[-1].split("=")[-1] if len(parts) > 1 else ""


def _icu(text: str) -> str | None:
    """The `other` branch of ICU plural and select patterns; None when the braces do not close."""
    while (
        match := re.search(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,", text)
    ) is not None:
        depth, branches, start, position = 1, {}, match.end(), match.end()
        key = ""
        while depth and position < len(text):
            if text[position] == "{":
                depth += 1
                if depth == 2:
                    key, start = text[start:position].strip(), position + 1
            elif text[position] == "}":
                depth -= 1
                if depth == 1:
                    branches[key], start = text[start:position], position + 1
            position += 1
        if depth or not branches:
            return None
        chosen = branches.get("other", next(reversed(branches.values())))
        text = text[: match.start()] + chosen + text[position:]
    return text


def strip_message(text: str) -> list[str]:
    """Paragraphs of one program message: wiki markup, tags, plural forms and accelerators go.

    What the program would fill in ("$1", "%s", "{name}") becomes an ellipsis.
    """
    resolved = _icu(text)
    if resolved is None:
        return []
    resolved = _BRACES.sub(_template, _BRACES.sub(_template, resolved))
    resolved = _OUTER_LINK.sub(r"\1", _WIKI_LINK.sub(r"\1", resolved))
    resolved = resolved.replace("'''", "").replace("''", "")
    resolved = _PLACEHOLDER.sub("…", resolved)
    resolved = re.sub(r"(?<!\w)[_&~](?=\w)|(?<=\w)~(?=\w)|\([&_]\w\)", "", resolved)
    return [
        paragraph
        for block in re.split(r"\n\s*\n|\\n\\n", resolved)
        for paragraph in strip_tags(block)
    ]


_FLUENT = re.compile(r"^(?:([\w-]+)|\s+\.([\w-]+)) *= *(.*)$")


def fluent_messages(text: str) -> Iterator[tuple[str, str]]:
    """(key, value) of a Fluent (.ftl) or .properties file; values with selectors are left out."""
    key, identifier, value = "", "", [""]
    for line in [*text.split("\n"), "end ="]:
        match = _FLUENT.match(line)
        if match is None and key and line[:1] in (" ", "\t") and line.strip():
            value.append(line.strip())
            continue
        if key and "->" not in "".join(value):
            yield key, " ".join(value).strip()
        key = ""
        if match is not None:
            identifier = match[1] or identifier
            key = identifier + (f".{match[2]}" if match[2] else "")
            value = [match[3]]
