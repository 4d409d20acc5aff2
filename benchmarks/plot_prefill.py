"""Figures of the guide to reading: what memory remembers, from the committed ledgers.

python plot_prefill.py        writes docs/figures/prefill-*.svg
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from harness import RESULTS, newest
from plot import FOLDER, OTHERS, OURS, PALE, STYLE
from prefill_quality import KEYS, NAME, summary

TASKS = ("needle", "recall", "questions")
LINES = {
    "FM": ("#7fb3d5", "s"),
    "IM": (OURS, "o"),
    "IMDC": ("#0b3954", "^"),
    "last M": (OTHERS, "v"),
    "last M + c": (OTHERS, "x"),
    "full": ("k", "D"),
}
ORDER = ("full", "FM", "IM", "IMDC", "last M + c", "last M")


def side(row: dict[str, Any]) -> str:
    """How a figure calls the method of a row."""
    known = ", question known" if row["known"] in ("each", "together") else ""
    return row["method"] + (f", {row['scorer']}{known}" if row["scorer"] else "")


def heat() -> Any:
    """Needles found, by depth and length, a panel for each method."""
    rows = [r for r in newest(NAME, *KEYS, "depth") if r["task"] == "needle"]
    # At one share of the length; full context has none.
    rows = [r for r in rows if r["memory"] in ("0", str(int(r["length"]) // 6))]
    # Ours without the question last.
    rows.sort(key=lambda r: (r["known"] == "none", ORDER.index(r["method"])))
    sides = list(dict.fromkeys(map(side, rows)))
    lengths = sorted({int(r["length"]) for r in rows})
    depths = sorted({float(r["depth"]) for r in rows})
    columns = min(4, len(sides))
    lines = -(-len(sides) // columns)
    size = (2.1 * columns, 1.9 * lines + 0.4)
    figure, panels = plt.subplots(lines, columns, figsize=size, squeeze=False, sharey=True)
    colours = mpl.colors.LinearSegmentedColormap.from_list("share", ["#ffffff", OURS])
    for axes in panels.flat[len(sides) :]:
        axes.axis("off")
    for axes, name in zip(panels.flat, sides, strict=False):
        grid = np.full((len(depths), len(lengths)), np.nan)
        for row in (r for r in rows if side(r) == name):
            place = depths.index(float(row["depth"])), lengths.index(int(row["length"]))
            grid[place] = int(row["correct"]) / int(row["trials"])
        axes.imshow(grid, cmap=colours, vmin=0, vmax=1, aspect="auto")
        for (y, x), value in np.ndenumerate(grid):
            # A cell that was not run stays empty.
            said = "" if np.isnan(value) else f"{100 * value:.0f}"
            axes.text(x, y, said, ha="center", va="center", color="w" if value > 0.6 else "k")
        axes.set_xticks(range(len(lengths)), [f"{n / 1024:.0f}k" for n in lengths])
        axes.set_yticks(range(len(depths)), [f"{d:g}" for d in depths])
        axes.tick_params(length=0)
        axes.set_title(name.replace(", ", "\n", 1), fontsize=8)
        axes.spines[:].set_visible(False)
    panels[0][0].set_ylabel("depth")
    figure.suptitle("Needles found, %, memory of a sixth of the text", x=0.02, ha="left")
    figure.tight_layout()
    return figure


def frontier() -> Any:
    """Score of full context's against bytes at the peak, a panel for each task and length."""
    rows = [r for r in summary() if r["of_full"] != "" and r["task"] in TASKS]
    rows = [r for r in rows if r["known"] != "none"]
    lengths = sorted({int(r["length"]) for r in rows})[:2]
    size = (2.7 * len(TASKS), 2.3 * len(lengths) + 0.4)
    figure, panels = plt.subplots(
        len(lengths), len(TASKS), figsize=size, squeeze=False, sharey=True
    )
    for line, length in zip(panels, lengths, strict=True):
        for axes, task in zip(line, TASKS, strict=True):
            own = [r for r in rows if (r["task"], int(r["length"])) == (task, length)]
            for method, (colour, mark) in LINES.items():
                points = sorted(
                    (r["peak_bytes"] / 1e6, 100 * r["of_full"])
                    for r in own
                    if r["method"] == method
                )
                if points:
                    axes.plot(*zip(*points, strict=True), color=colour, marker=mark, ms=5,
                              lw=1.2, label=method)  # fmt: skip
            axes.axhline(100, color=PALE, lw=0.8, ls="--")
            axes.set(ylim=(-4, 116), title=f"{task}, {length:,} tokens")
            axes.set_xlim(left=0)
    for axes in panels[-1]:
        axes.set_xlabel("bytes at the peak, MB")
    for line in panels:
        line[0].set_ylabel("right, % of full's")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncols=len(labels))
    return figure


def forgetting() -> Any:
    """Where memory comes from, a line for each method."""
    ledger = newest("prefill_probes", "what", "place", "method", "scorer")
    rows = [r for r in ledger if r["what"] == "forgetting"]
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 3), sharey=True)
    titles = {"snapkv": "question unknown", "query": "question known", "random": "random"}
    for axes, (scorer, title) in zip(panels, titles.items(), strict=True):
        for method, (colour, mark) in list(LINES.items())[:3]:
            own = [r for r in rows if (r["scorer"], r["method"]) == (scorer, method)]
            own.sort(key=lambda r: int(r["place"]))
            shares = [100 * float(r["share"]) for r in own]
            axes.plot(range(1, len(own) + 1), shares, color=colour, marker=mark, ms=3, label=method)
        axes.axhline(10, color=PALE, lw=0.8, ls="--")
        axes.set(title=title if title == scorer else f"{title} ({scorer})", yscale="log")
        axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.set_xlabel("tenth of the text")
    panels[0].set_ylabel("share of memory, % (log)")
    panels[0].legend(loc="upper left")
    return figure


FIGURES: dict[str, tuple[str, Callable[[], Any]]] = {
    "needle": (NAME, heat),
    "answers": (NAME, frontier),
    "forgetting": ("prefill_probes", forgetting),
}


def draw(folder: Path = FOLDER) -> list[Path]:
    """Write every figure whose ledger there is."""
    return write(FIGURES, folder)


def write(figures: Mapping[str, tuple[str, Callable[[], Any]]], folder: Path) -> list[Path]:
    """Write figures whose ledger there is, each `prefill-<name>.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, (ledger, make) in figures.items():
        if not (RESULTS / f"{ledger}.csv").exists():
            print(f"{name}: no {ledger}.csv yet")
            continue
        with mpl.rc_context(STYLE):
            figure = make()
            path = folder / f"prefill-{name}.svg"
            figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)
        written.append(path)
    return written


if __name__ == "__main__":
    for each in draw():
        print(each)
