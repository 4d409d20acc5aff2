"""Numbers as a reader wants them in running text and tables: with their interval, with a sign."""

from __future__ import annotations

import numpy as np
import pandas as pd


def intervals(frame: pd.DataFrame, value: str, low: str, high: str, digits: int) -> list[str]:
    """`interval` for every row of a table."""
    columns = (frame[value], frame[low], frame[high])
    return [interval(*each, digits) for each in zip(*columns, strict=True)]


def interval(value: float, low: float, high: float, digits: int) -> str:
    """A value with its interval, if it has one; a dash if it is not known."""
    if not np.isfinite(value):
        return "–"
    text = signed(f"{value:.{digits}f}")
    if np.isnan(low) or np.isnan(high):
        return text
    return f"{text} ({signed(f'{low:.{digits}f}')} to {signed(f'{high:.{digits}f}')})"


def fitted(value: float, low: float, high: float, bound: str, digits: int) -> str:
    """A parameter with its interval; one on a bound of its law says so."""
    text = interval(value, low, high, digits)
    if not bound:
        return text
    return text.replace(signed(f"{value:.{digits}f}"), signed(f"{value:g}") + " (bound)", 1)


def percent(value: float) -> str:
    """A signed share in percent."""
    return "–" if np.isnan(value) else signed(f"{value:+.2%}")


def signed(text: str) -> str:
    """A number's text with a true minus sign."""
    return text.replace("-", "−")
