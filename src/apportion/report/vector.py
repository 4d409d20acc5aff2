"""An SVG file made fit to stand inside an HTML page, beside others.

Ids get a prefix of their own (two figures of one page both have an `axes_1`), style rules that
would reach into the page become attributes, and coordinates keep two decimals. Refused: anything
that could run or fetch (scripts, event attributes, references out of the file).
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from apportion.errors import InputError

_ALLOWED = {
    "circle", "clipPath", "defs", "desc", "ellipse", "g", "image", "line", "linearGradient",
    "marker", "mask", "path", "pattern", "polygon", "polyline", "radialGradient", "rect", "stop",
    "svg", "symbol", "text", "title", "tspan", "use",
}  # fmt: skip
_DROPPED = {"metadata", "style"}
_LONG = re.compile(r"-?\d+\.\d{3,}(?![\de])")
_COORDINATES = {"d", "points", "x", "y", "width", "height"}


def embed(svg: str, prefix: str, label: str) -> str:
    """The `<svg>` element alone, safe to put into a page.

    Args:
        svg: the text of an SVG file.
        prefix: put before every id; unique on the page.
        label: what it shows, for screen readers.

    Raises:
        InputError: not an SVG, or one that holds scripts or references to other files.
    """
    start = svg.find("<svg")
    try:
        root = ElementTree.fromstring(svg[max(start, 0) :])
    except ElementTree.ParseError as error:
        raise InputError(f"expected a figure as SVG, got text that is no XML: {error}") from error
    _clean(root, prefix)
    root.attrib |= {"role": "img", "aria-label": label}
    # What matplotlib says in a style sheet, which here would apply to the whole page.
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str) -> None:
    element.tag = _local(element.tag)
    if element.tag not in _ALLOWED:
        raise InputError(f"expected a plain SVG figure, found the element <{element.tag}>")
    given = dict(element.attrib)
    element.attrib.clear()
    for full, value in given.items():
        name = _local(full)
        if name.startswith("on"):
            raise InputError(f"expected a plain SVG figure, found the attribute {name}")
        if name in ("space", "version"):
            continue
        element.set(name, _reference(name, value, prefix))
    for child in list(element):
        if _local(child.tag) in _DROPPED:
            element.remove(child)
        else:
            _clean(child, prefix)


def _reference(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "href":
        if value.startswith("#"):
            return f"#{prefix}{value[1:]}"
        if value.startswith("data:image/png;base64,"):
            return value
        raise InputError(f"expected a figure by itself, found a reference to {value[:60]!r}")
    targets = re.findall(r"url\(\s*[\"']?([^)\"']*)", value)
    if any(not target.startswith("#") for target in targets):
        raise InputError(f"expected a figure by itself, found a reference to {targets[0]!r}")
    if targets:
        return re.sub(r"url\(\s*[\"']?#", f"url(#{prefix}", value).replace('"', "")
    if name in _COORDINATES:
        return _LONG.sub(lambda found: f"{float(found[0]):.2f}", value)
    return value


def _local(tag: object) -> str:
    return str(tag).rsplit("}", 1)[-1]
