"""Tables of reading in bounded memory, from the benchmarks' committed figures; see `tables.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import newest
from prefill_quality import summary as answers
from prefill_reads import PLAIN
from prefill_reads import summary as reads

Markdown = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
ASKED = {"each": "known", "together": "all known", "none": "unknown", "": ""}
TASKS = ("needle", "recall", "questions")


def tables(markdown: Markdown) -> dict[str, Callable[[], str]]:
    """By name.

    Args:
        markdown: makes a table of a head and rows.
    """
    return {
        "reads": lambda: markdown(*lengths()),
        "reads-speed": lambda: markdown(*of_cases("1k", "8k")),
        "reads-bytes": lambda: markdown(*of_cases("bytes 1k", "bytes 2k", "bytes 8k")),
        "overhead": lambda: markdown(*overhead()),
        "answers": lambda: markdown(*scores("3072", "6144")),
        "answers-unknown": lambda: markdown(*scores("3072", "6144", known=("none",))),
    }


def lengths() -> tuple[Sequence[str], list[Sequence[str]]]:
    """README's: plain prefill beside texts of several lengths in one memory."""
    rows = [r for r in reads() if r["case"] == "plain" or r["case"].startswith("length")]
    head = ("tokens", "read by", "seconds", "peak beyond the weights", "keys and values")
    return head, [
        (
            "32k" if row["case"] == "plain" else row["case"].split()[1],
            "plain prefill" if row["side"] == PLAIN.name else "memory of 2k",
            f"{row['seconds']:.0f}",
            f"{row['peak_mb']:.0f} MB",
            f"{row['memory_mb']:.0f} MB",
        )
        for row in sorted(rows, key=lambda r: r["case"] != "plain")
    ]


def of_cases(*wanted: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Ways to read the same text, beside the first of each case."""
    head = ("M, c", "side", "forwards", "seconds", "times faster", "single chunks say", "peak",
            "of the first")  # fmt: skip
    rows = [row for row in reads() if row["case"] in wanted]
    return head, [
        (
            row["case"].removeprefix("bytes ") + ("" if "bytes" in row["case"] else ", 1k"),
            row["side"],
            str(row["forwards"]),
            f"{row['seconds']:.1f}",
            f"{row['times_faster']:.2f}",
            row["chunk_bound"] if row["side"].startswith("incremental mem") else "",
            f"{row['peak_mb']:.0f} MB",
            f"{row['of_first_peak']:.2f}",
        )
        for row in rows
    ]


def overhead() -> tuple[Sequence[str], list[Sequence[str]]]:
    """Time of remembering, scorer by scorer."""
    rows = newest("prefill_overhead", "side")
    return ("scorer", "seconds of two chunks", "more than without"), [
        (row["side"], f"{float(row['median_s']):.2f}", f"{float(row['overhead']):.1%}")
        for row in rows
    ]


def scores(
    *wanted: str, known: Sequence[str] = ("each", "together", "")
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Right answers of each way to read, with their interval, beside full context's."""
    rows: list[Mapping[str, Any]] = [
        row for row in answers() if row["length"] in wanted and row["known"] in known
    ]
    head = ("task", "tokens", "method", "scorer", "M", "question", "right", "95 %", "of full's")
    return head, [
        (
            row["task"],
            f"{int(row['length']):,}",
            row["method"],
            row["scorer"],
            "" if row["method"] == "full" else row["memory"],
            ASKED[row["known"]],
            f"{row['correct']} of {row['trials']}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            "" if row["of_full"] == "" else f"{row['of_full']:.2f}",
        )
        for row in rows
    ]
