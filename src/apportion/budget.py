"""Amounts as the user writes them: `1.2B` parameters, `50B` tokens, `4k` tokens, `1.5GB`.

Counts use decimal suffixes (k, M, B, T: the field's habit for parameters and tokens). Bytes accept
decimal (`GB`) and binary (`GiB`) units.
"""

from __future__ import annotations

import math
import re

from apportion.errors import InputError

_COUNT_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BYTE_SUFFIXES = {
    "": 1.0,
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
}
MOST_PARAMS, MOST_TOKENS = 1e15, 1e18
"""Far above any model or training set there is: a larger number is a slip of the unit."""
FEWEST_TOKENS = 0.1
"""Training tokens a parameter: with fewer a run table is refused as a slip of the unit."""

# A comma or underscore separates thousands only: half of Europe reads "1,5B" as 1.5e9.
_AMOUNT = re.compile(
    r"\s*([+-]?(?:\d{1,3}(?:[,_]\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*",
    re.IGNORECASE,
)


def _parse(text: str | float, suffixes: dict[str, float], what: str, example: str) -> float:
    match = _AMOUNT.fullmatch(str(text))
    if match is None or match[2].lower() not in suffixes:
        raise InputError(f"expected {what} such as {example}, got {text!r}")
    value = float(re.sub("[,_]", "", match[1])) * suffixes[match[2].lower()]
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"expected {what}, positive and finite, such as {example}; got {text!r}")
    return value


def parse_count(text: str | float, what: str = "a count") -> float:
    """`"1.2B"` → 1.2e9, `"400k"` → 4e5, `"5e10"` → 5e10.

    Raises:
        InputError: not a number with an optional suffix k, M, B (or G), T; zero; negative.
    """
    return _parse(text, _COUNT_SUFFIXES, what, "1.2B, 400k or 5e10")


def parse_params(text: str | float) -> float:
    """As `parse_count`, for the parameters N of a model.

    Raises:
        InputError: as `parse_count`; more than `MOST_PARAMS`.
    """
    return _at_most(MOST_PARAMS, text, "a number of parameters")


def parse_tokens(text: str | float) -> float:
    """As `parse_count`, for the tokens D that a model is trained on.

    Raises:
        InputError: as `parse_count`; more than `MOST_TOKENS`.
    """
    return _at_most(MOST_TOKENS, text, "a number of tokens")


def _at_most(most: float, text: str | float, what: str) -> float:
    value = parse_count(text, what)
    if value > most:
        raise InputError(f"expected {what} of at most {most:g} such as 1.2B or 400k, got {text!r}")
    return value


def counted(count: int, one: str, many: str = "") -> str:
    """`counted(1, "run")` → `"1 run"`, `counted(3, "family", "families")` → `"3 families"`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def parse_bytes(text: str | float) -> int:
    """`"1.5GB"` → 1_500_000_000, `"2GiB"` → 2_147_483_648; a bare number is bytes.

    Raises:
        InputError: not a number with an optional unit; zero; negative.
    """
    value = round(_parse(text, _BYTE_SUFFIXES, "an amount of bytes", "1.5GB, 200MB or 2GiB"))
    if value < 1:
        raise InputError(f"expected one byte at least, got {text!r}")
    return value


def format_count(value: float) -> str:
    """1.2e9 → `"1.2B"`, 1e17 → `"1e17"`; four significant digits at most."""
    if abs(value) >= 1e16:  # more trillions than read well
        return f"{value:.4g}".replace("e+", "e")
    return _format(value, (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))) or f"{value:.4g}"


def format_bytes(value: float) -> str:
    """1_500_000_000 → `"1.5 GB"` (decimal units)."""
    units = ((" TB", 1e12), (" GB", 1e9), (" MB", 1e6), (" kB", 1e3))
    return _format(value, units) or f"{value:.0f} B"


def _format(value: float, units: tuple[tuple[str, float], ...]) -> str:
    for suffix, scale in units:
        # The largest unit that the rounded value fills: 999,999 is "1M", not "1000k".
        if abs(float(f"{value:.4g}")) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return ""
