"""Tables in Markdown pages that are made from the benchmarks' committed figures.

    python tools/tables.py            write every table between its marks
    python tools/tables.py --check    only say what differs

A page holds `<!-- table: NAME -->` and `<!-- end of table -->`; what stands between them is made
from `benchmarks/results/`. Ledgers only grow: of each line the newest measurement counts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

from tables_prefill import tables as of_reading  # noqa: E402 - from here

from harness import newest  # noqa: E402 - from benchmarks

PAGES = ("README.md", "docs/finetune.md", "docs/prefill.md")
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", flags=re.DOTALL)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all columns but the first to the right."""
    lines = [" | ".join(head), " | ".join(["---", *["---:"] * (len(head) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def megabytes(value: str) -> str:
    """Bytes as MB, or GB from a thousand of them on; nothing stays nothing."""
    if not value:
        return ""
    number = float(value) / 1e6
    return f"{number / 1e3:.2f} GB" if number >= 1000 else f"{number:.1f} MB"


def share(value: str) -> str:
    """A ratio in two places; nothing stays nothing."""
    return f"{float(value):.2f}" if value else ""


def nearness(value: str) -> str:
    """A cosine, with as many places as it takes to see how far from 1 it is."""
    if not value:
        return ""
    number = float(value)
    return "1" if number >= 0.99995 else f"{number:.4f}" if number > 0.99 else f"{number:.3f}"


def ablation() -> str:
    """README's: every part added in turn."""
    rows = newest("finetune_ablation", "part")
    return markdown(
        ("each line adds", "saved", "peak", "time", "cosine"),
        [
            (
                row["part"],
                megabytes(row["saved_bytes"]),
                megabytes(row["peak_bytes"]),
                share(row["time_of_plain"]),
                nearness(row["cosine"]),
            )
            for row in rows
        ],
    )


def modes(data: str) -> str:
    """Bytes, times and gradients of the modes."""
    rows = [r for r in newest("finetune_modes", "data", "side") if r["data"] == data]
    return markdown(
        ("side", "time of plain", "of checkpointing", "saved, fp32", "saved, bf16", "cosine"),
        [
            (
                row["side"],
                share(row["time_of_plain"]),
                share(row["time_of_checkpointing"]),
                share(row["saved_fp32_of_checkpointing"]),
                share(row["saved_bf16_of_checkpointing"]),
                nearness(row["cosine"]),
            )
            for row in rows
        ],
    )


def whole() -> str:
    """Peaks of long context."""
    rows = newest("finetune_whole", "labelled", "side")
    return markdown(
        ("tokens with loss", "side", "peak above the weights", "of plain", "of checkpointing"),
        [
            (
                f"{row['labelled']} of 2,048",
                row["side"],
                megabytes(row["peak"]),
                share(row["peak_of_plain"]),
                share(row["peak_of_checkpointing"]),
            )
            for row in rows
        ],
    )


def loss() -> str:
    """The chunked loss beside the plain one."""
    rows = [r for r in newest("finetune_loss", "data", "head", "side") if r["side"] == "chunked"]
    plain = {
        (r["data"], r["head"]): r
        for r in newest("finetune_loss", "data", "head", "side")
        if r["side"] == "plain"
    }
    return markdown(
        ("data", "head", "time of plain", "peak", "plain's peak", "gradient differs by"),
        [
            (
                row["data"],
                row["head"],
                share(row["time_of_plain"]),
                megabytes(row["peak_bytes"]),
                megabytes(plain[row["data"], row["head"]]["peak_bytes"]),
                row["gradient_error"],
            )
            for row in rows
        ],
    )


def frontier() -> str:
    """Sparse gradients beside fewer samples."""
    rows = newest("finetune_frontier", "share")
    return markdown(
        (
            "tokens with loss",
            "keep 0.25",
            "fewer samples, its time",
            "keep 0.5",
            "fewer samples, its time",
        ),
        [
            (
                f"{float(row['share']):.0%}",
                share(row["sparse 0.25"]),
                share(row["fewer at time of 0.25"]),
                share(row["sparse 0.5"]),
                share(row["fewer at time of 0.5"]),
            )
            for row in rows
        ],
    )


def plan() -> str:
    """How far predictions were off, over the newest measurement of every setting and way."""
    rows = newest("finetune_plan", "number", "way")
    lines = []
    for name, said, bar in (("bytes_error", "peak bytes", 0.05), ("seconds_error", "seconds", 0.2)):
        errors = sorted(abs(float(row[name])) for row in rows)
        within = sum(error <= bar for error in errors) / len(errors)
        middle = f"{median(errors):.1%}"
        lines.append((said, middle, f"{errors[-1]:.1%}", f"{within:.0%} within {bar:.0%}"))
    return markdown(("error of the prediction", "median", "largest", ""), lines)


def quality(task: str) -> str:
    """What training with each mode reaches, beside plain training at its own best rate."""
    from finetune_quality import summary

    lines = [
        (
            row["mode"],
            f"{row['time_of_plain']:.2f}",
            f"{row['rate']:g}",
            str(row["seeds"]),
            f"{row['reduction']:.3f}",
            f"{row['of_plain']:.3f}",
            f"{row['lowest']:.3f} to {row['highest']:.3f}" if row["seeds"] > 1 else "",
        )
        for row in summary()
        if row["task"] == task and row["seeds"] and row["tuned"]
    ]
    head = ("mode", "time of plain", "rate", "seeds", "loss falls by", "of plain", "over the seeds")
    return markdown(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "ablation": ablation,
    "modes-completions": lambda: modes("completions"),
    "modes-every-token": lambda: modes("every token"),
    "whole": whole,
    "loss": loss,
    "frontier": frontier,
    "plan": plan,
    "quality-completion": lambda: quality("completion"),
    **of_reading(markdown),
}


def filled(text: str) -> str:
    """A page with its tables as the figures are now."""
    return MARKED.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n{m[4]}", text)


def main(arguments: Sequence[str]) -> int:
    """Write or check; how many pages differ."""
    different = 0
    for name in PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        made = filled(text)
        if made != text:
            different += 1
            print(f"{name} differs")
            if "--check" not in arguments:
                path.write_text(made, encoding="utf-8")
    return different if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
