"""Figures of the guide, one a claim, from the committed ledgers.

python plot.py        writes docs/figures/finetune-*.svg
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from harness import RESULTS, ROOT, newest

FOLDER = ROOT / "docs" / "figures"
OURS, OTHERS, PALE = "#1b6ca8", "#8a8f98", "#c9d6e2"
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.dpi": 100,
    "svg.hashsalt": "apportion",
    "svg.fonttype": "none",
    "legend.frameon": False,
}


def colour(side: str) -> str:
    """Ours stand out."""
    return OURS if side.startswith(("ladder", "sparse")) else OTHERS


def modes() -> Any:
    """Bytes against time: both of a step beside gradient checkpointing."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    rows = [r for r in newest("finetune_modes", "data", "side") if r["time_of_plain"]]
    for row in rows:
        if row["data"] != "completions" or row["side"] == "plain":
            continue
        x, y = float(row["saved_bf16_of_checkpointing"]), float(row["time_of_plain"])
        axes.scatter(x, y, s=60, color=colour(row["side"]), zorder=3)
        said = f"{row['side']}\ncosine {float(row['cosine']):.3f}"
        # Both ladders take about as long; their names stand on either side.
        left = row["side"] == "ladder 4bit"
        axes.annotate(said, (x, y), (-7 if left else 7, -4), textcoords="offset points", va="top",
                      ha="right" if left else "left")  # fmt: skip
    axes.axhline(1.0, color=OTHERS, lw=0.8, ls="--")
    plain = next(r for r in rows if (r["data"], r["side"]) == ("completions", "plain"))
    times = float(plain["saved_bf16_of_checkpointing"])
    axes.text(0.02, 1.01, f"plain training ({times:.0f} × the bytes)", color=OTHERS, va="bottom")
    axes.set(xlim=(0, 1.35), ylim=(0.5, 1.5))
    axes.set_xlabel("bytes stored for the backward, of checkpointing's (bfloat16)")
    axes.set_ylabel("time of a step, of plain's")
    axes.set_title("A third to two thirds of checkpointing's bytes, at its time or far less")
    return figure


def frontier() -> Any:
    """Sparse gradients beside fewer samples, by the share of tokens with loss."""
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2), sharey=True)
    rows = sorted(newest("finetune_frontier", "share"), key=lambda r: float(r["share"]))
    shares = [100 * float(r["share"]) for r in rows]
    for axes, keep in zip(panels, ("0.25", "0.5"), strict=True):
        sparse = [float(r[f"sparse {keep}"]) for r in rows]
        fewer = [float(r[f"fewer at time of {keep}"]) for r in rows]
        axes.plot(shares, sparse, color=OURS, marker="o", ms=4, label=f"sparse, keep {keep}")
        axes.plot(shares, fewer, color=OTHERS, marker="s", ms=4, label="fewer samples, same time")
        axes.set_xlabel("tokens with loss, %")
        axes.legend(loc="lower left")
    panels[0].set_ylabel("cosine to the exact gradient")
    panels[0].set_ylim(0.2, 1.01)
    panels[0].set_title(
        "Where few tokens carry loss, a sparse backward beats training on fewer samples"
    )
    return figure


def ablation() -> Any:
    """Every part added in turn: bytes, time, gradient."""
    rows = newest("finetune_ablation", "part")[::-1]
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 3.6), sharey=True)
    names = [r["part"] for r in rows]
    columns = (
        ("saved bytes, MB (log)", [float(r["saved_bytes"]) / 1e6 for r in rows], "{:.0f}"),
        ("time of a step, of plain's", [float(r["time_of_plain"]) for r in rows], "{:.2f}"),
        ("1 - cosine (log)", [max(2e-4, 1 - float(r["cosine"])) for r in rows], "{:.4f}"),
    )
    for axes, (title, values, form) in zip(panels, columns, strict=True):
        axes.barh(names, values, color=PALE)
        for k, value in enumerate(values):
            axes.text(value, k, " " + (form.format(value) if value > 2e-4 else "0"), va="center")
        axes.set_title(title)
        if "log" in title:
            axes.set_xscale("log")
            axes.set_xlim(left=min(values) / (1 if title.startswith("1") else 2))
        axes.margins(x=0.35)
        axes.tick_params(axis="y", length=0)
    return figure


def whole() -> Any:
    """Peaks at long context."""
    rows = [r for r in newest("finetune_whole", "labelled", "side") if r["labelled"] != "2048"]
    figure, axes = plt.subplots(figsize=(6.4, 2.4))
    rows = rows[::-1]
    names, peaks = [r["side"] for r in rows], [float(r["peak"]) / 1e9 for r in rows]
    axes.barh(names, peaks, color=[colour(n) for n in names])
    for k, value in enumerate(peaks):
        axes.text(value, k, f" {value:.2f} GB", va="center")
    axes.set_xlabel("peak above the weights, GB")
    axes.set_title("4 samples of 2,048 tokens with LoRA: the step's peak")
    axes.margins(x=0.15)
    return figure


def plan() -> Any:
    """Predicted against measured."""
    rows = newest("finetune_plan", "number", "way")
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.4))
    for axes, name, unit, wide in (
        (panels[0], "bytes", "GB", 0.05),
        (panels[1], "s", "s", 0.20),
    ):
        scale = 1e9 if name == "bytes" else 1.0
        x = [float(r[f"measured_{name}"]) / scale for r in rows]
        y = [float(r[f"predicted_{name}"]) / scale for r in rows]
        ends = [min(x + y) * 0.8, max(x + y) * 1.25]
        axes.fill_between(ends, [e * (1 - wide) for e in ends], [e * (1 + wide) for e in ends],
                          color=PALE, lw=0, label=f"within {wide:.0%}")  # fmt: skip
        axes.scatter(x, y, s=8, color=OURS, zorder=3)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set(xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}")
        axes.legend(loc="upper left")
    settings = len({r["number"] for r in rows})
    panels[0].set_title(f"The plan beside what came: {settings} random settings")
    return figure


def quality() -> Any:
    """Reduction of the eval loss against the time it took, by task."""
    from finetune_quality import summary

    rows = [row for row in summary() if row["tuned"]]
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    figure, panels = plt.subplots(1, len(tasks), figsize=(3.4 * len(tasks), 3.2), squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        for row in (r for r in rows if r["task"] == task and r["of_plain"] != ""):
            x, y = row["time_of_plain"], row["of_plain"]
            low, high = y - row["lowest"], row["highest"] - y
            axes.errorbar(x, y, yerr=[[low], [high]], fmt="o", ms=5, color=colour(row["mode"]))
            axes.annotate(row["mode"], (x, y), (5, -3), textcoords="offset points", fontsize=7)
        axes.set_title(task)
        axes.set_xlabel("time, of plain's")
    panels[0][0].set_ylabel("reduction of the eval loss, of plain's")
    return figure


FIGURES: dict[str, tuple[str, Callable[[], Any]]] = {
    "modes": ("finetune_modes", modes),
    "frontier": ("finetune_frontier", frontier),
    "ablation": ("finetune_ablation", ablation),
    "whole": ("finetune_whole", whole),
    "plan": ("finetune_plan", plan),
    "quality": ("finetune_quality", quality),
}


def draw(folder: Path = FOLDER) -> list[Path]:
    """Write every figure whose ledger there is."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (ledger, make) in FIGURES.items():
        if not (RESULTS / f"{ledger}.csv").exists():
            print(f"{name}: no {ledger}.csv yet")
            continue
        with mpl.rc_context(STYLE):
            figure = make()
            path = folder / f"finetune-{name}.svg"
            figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)
        written.append(path)
    return written


if __name__ == "__main__":
    for each in draw():
        print(each)
