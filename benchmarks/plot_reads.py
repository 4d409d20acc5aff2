"""Figures of the guide to reading: what a read costs, from the committed ledgers.

python plot_reads.py        writes docs/figures/prefill-*.svg
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from harness import newest
from plot import FOLDER, OTHERS, OURS, PALE
from plot_prefill import write
from prefill_reads import NAME, PLAIN, summary

SHORT = {
    "fixed memory, evicts after the forward": "FM, after the forward\n(published)",
    "fixed memory": "FM",
    "incremental memory": "IM",
    "incremental, decremental chunks, evicts after the forward": "IMDC, after the forward",
    "incremental, decremental chunks": "IMDC",
    "incremental, chunks by bytes": "IM, chunks by bytes",
    "plain prefill": "plain prefill",
}


def cases(*wanted: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of the summary by case."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in summary():
        if row["case"] in wanted:
            found.setdefault(row["case"], []).append(row)
    return found


def speed() -> Any:
    """How many times faster than fixed memory, beside what single chunks predict."""
    found = cases("1k", "8k")
    figure, panels = plt.subplots(1, len(found), figsize=(3.4 * len(found), 2), squeeze=False)
    for axes, (case, rows) in zip(panels[0], found.items(), strict=True):
        names = [SHORT[row["side"]] for row in rows]
        values = [row["times_faster"] for row in rows]
        axes.barh(names, values, color=[PALE, OURS, OURS][: len(rows)], height=0.6)
        for place, value in enumerate(values):
            axes.text(value + 0.02, place, f"{value:.2f}", va="center")
        bound = float(rows[0]["chunk_bound"])
        axes.axvline(bound, color=OTHERS, lw=1, ls="--")
        axes.text(bound, -0.75, f"single chunks: {bound:.2f}", color=OTHERS, ha="center", va="top")
        axes.set(xlim=(0, 1.25 * max([bound, *values])), title=f"memory of {case}")
        axes.invert_yaxis()
    figure.suptitle("Times faster than fixed memory", x=0.02, ha="left")
    figure.tight_layout()
    return figure


def held() -> Any:
    """Bytes at the peak, of those of the published fixed memory."""
    found = cases("bytes 1k", "bytes 2k", "bytes 8k")
    figure, panels = plt.subplots(1, len(found), figsize=(2.9 * len(found) + 1, 2.6), sharey=True,
                                  squeeze=False)  # fmt: skip
    for axes, (case, rows) in zip(panels[0], found.items(), strict=True):
        names = [SHORT[row["side"]] for row in rows]
        values = [100 * row["of_first_peak"] for row in rows]
        axes.barh(names, values, color=[PALE, *[OURS] * (len(rows) - 1)], height=0.6)
        for place, row in enumerate(rows):
            axes.text(values[place] + 1, place, f"{row['peak_mb']:.0f} MB", va="center")
        axes.set(xlim=(0, 130), title=f"M = c = {case.removeprefix('bytes ')}", xlabel="%")
        axes.invert_yaxis()
    figure.suptitle("Bytes at the peak, of published fixed memory", x=0.02, ha="left")
    figure.tight_layout()
    return figure


def length() -> Any:
    """Bytes and seconds against the length of the text, at one bound."""
    rows = [r for rows in cases("length 16k", "length 64k", "length 256k").values() for r in rows]
    tokens = [1024 * int(row["case"].split()[1].removesuffix("k")) for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4))
    for axes, key, label in ((left, "peak_mb", "MB at the peak"), (right, "seconds", "seconds")):
        values = [row[key] for row in rows]
        axes.plot(tokens, values, color=OURS, marker="o", ms=4)
        for x, y in zip(tokens, values, strict=True):
            axes.annotate(f"{y:.0f}", (x, y), (0, 5), textcoords="offset points", ha="center")
        axes.set(xscale="log", xlabel="tokens of the text", title=label)
        axes.set_xticks(tokens, [f"{n // 1024}k" for n in tokens])
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.set_xlim(tokens[0] / 1.5, tokens[-1] * 1.5)
    left.set_ylim(0, 1.4 * max(row["peak_mb"] for row in rows))
    right.set_yscale("log")
    right.set_ylim(top=2 * max(row["seconds"] for row in rows))
    plain = [row for row in cases("plain").get("plain", []) if row["side"] == PLAIN.name]
    if plain:
        place = (32_768, plain[0]["seconds"])
        right.plot(*place, color=OTHERS, marker="x", ls="")
        right.annotate(f"plain: {plain[0]['seconds']:.0f}", place, (6, 0), color=OTHERS,
                       textcoords="offset points", va="center")  # fmt: skip
    figure.tight_layout()
    return figure


def overhead() -> Any:
    """What remembering adds to the time of a chunk, for each scorer."""
    rows = [r for r in newest("prefill_overhead", "side") if float(r["overhead"]) != 0]
    rows.sort(key=lambda r: float(r["overhead"]))
    values = [100 * float(row["overhead"]) for row in rows]
    figure, axes = plt.subplots(figsize=(5.4, 0.26 * len(rows) + 0.9))
    axes.barh([row["side"] for row in rows], values, color=OURS, height=0.65)
    for place, value in enumerate(values):
        axes.text(max(value, 0) + 0.5, place, f"{value:.0f} %", va="center")
    axes.axvline(10, color=PALE, lw=1, ls="--")
    axes.set(title="Time of scoring, evicting and counting, % of a chunk's")
    axes.set_xlim(right=1.15 * max(values))
    axes.invert_yaxis()
    figure.tight_layout()
    return figure


FIGURES: dict[str, tuple[str, Callable[[], Any]]] = {
    "speed": (NAME, speed),
    "bytes": (NAME, held),
    "length": (NAME, length),
    "overhead": ("prefill_overhead", overhead),
}


def draw(folder: Path = FOLDER) -> list[Path]:
    """Write every figure whose ledger there is."""
    return write(FIGURES, folder)


if __name__ == "__main__":
    for each in draw():
        print(each)
