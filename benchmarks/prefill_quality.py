"""What answers are worth from bounded memory: needle, recall and questions over a manual.

    python prefill_quality.py                runs what is missing, resumes after a kill
    python prefill_quality.py --minutes 60   as far as it gets in that time
    python prefill_quality.py --summary      the table of what has been run

SmolLM2-135M-Instruct in bfloat16, text from the Debian handbook, a third of the trials at each of
the depths 0.1, 0.5 and 0.9. Every method reads the same texts and is asked the same questions,
greedily; right is an answer that contains the right one. `full` is exact attention over everything
(beyond the model's 8,192 positions it shows that the model itself fails); `last M` and `last M + c`
read the end of the text alone, exactly. FM, IM and IMDC keep M entries and, since each layer evicts
before the next begins, have nearly the same peak at one M; it is measured and stands in each row.
Cells come in the order of what they decide; one cell is recorded at a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apportion.prefill.evaluation import evaluate, wilson
from harness import ledger, record, show
from prefill_setup import NEW_TOKENS, cases, load, several

NAME = "prefill_quality"
SINKS = 4
EACH = 11
"""Trials at each of the three depths."""
METHODS: dict[str, dict[str, Any]] = {
    "FM": {"schedule": "fixed", "chunks": "fixed"},
    "IM": {"schedule": "linear", "chunks": "fixed"},
    "IMDC": {"schedule": "linear", "chunks": "decremental"},
}
BLIND = ("snapkv", "h2o", "streaming")
KEYS = ("task", "length", "method", "scorer", "memory", "chunk", "known")


@dataclass(frozen=True)
class Cell:
    """One method on one task.

    Attributes:
        share: M is the length divided by it; 0 for full context.
        scorer: empty for full context and the last tokens.
        each: trials at each depth; texts, where all pairs of a text are asked for.
        parts: the text is read in so many, the context being extended.
    """

    task: str
    length: int
    method: str
    share: int = 0
    scorer: str = ""
    known: str = ""
    each: int = EACH
    parts: int = 1

    @property
    def memory(self) -> int:
        return self.length // self.share if self.share else 0

    @property
    def chunk(self) -> int:
        """A reference chunk is a sixth of the text, at most 1,024 tokens."""
        return min(1024, self.length // 6) if self.share and self.method != "last M" else 0

    @property
    def name(self) -> str:
        return self.method if self.parts == 1 else f"{self.method} in {self.parts} parts"

    @property
    def key(self) -> tuple[str, ...]:
        """As the ledger has it."""
        own = (self.task, self.length, self.name, self.scorer, self.memory, self.chunk, self.known)
        return tuple(map(str, own))

    def how(self) -> dict[str, Any] | int | None:
        """As `evaluate` wants it."""
        if self.method == "full":
            return None
        if self.method.startswith("last"):
            return self.memory + self.chunk + SINKS
        sizes = {"memory": self.memory, "chunk": self.chunk, "sinks": SINKS, "parts": self.parts}
        return {**METHODS[self.method], **sizes, "scorer": self.scorer}


def grid() -> Iterator[Cell]:
    """All cells, the cheap and decisive ones first."""
    tasks = ("needle", "recall", "questions")
    for length in (3072, 6144):
        for task in tasks:
            yield from _bars(task, length, 6)
        for task in tasks:
            yield Cell(task, length, "IM", 12, "query", "each")
            yield Cell(task, length, "last M + c", 12)
        if length == 3072:
            yield from _several(length)
        for scorer in BLIND:
            yield Cell("needle", length, "IM", 6, scorer, "none")
    yield Cell("needle", 16_384, "IM", 6, "query", "each", 6)
    yield Cell("needle", 16_384, "last M + c", 6, each=6)
    yield Cell("needle", 16_384, "full", each=2)
    for task in tasks[1:]:
        yield Cell(task, 3072, "IM", 6, "snapkv", "none")
    for scorer in BLIND:
        yield Cell("needle", 16_384, "IM", 6, scorer, "none", 4)
    for task in tasks:
        yield Cell(task, 3072, "last M", 12)
        for method in ("FM", "IMDC"):
            yield Cell(task, 3072, method, 12, "query", "each")
    for task in tasks[1:]:
        yield Cell(task, 16_384, "IM", 6, "query", "each", 6)


def _bars(task: str, length: int, share: int) -> Iterator[Cell]:
    yield Cell(task, length, "full")
    yield Cell(task, length, "IM", share, "query", "each")
    yield Cell(task, length, "last M + c", share)
    yield Cell(task, length, "FM", share, "query", "each")
    yield Cell(task, length, "IMDC", share, "query", "each")
    yield Cell(task, length, "last M", share)


def _several(length: int) -> Iterator[Cell]:
    """Eight questions known at once, and a context that is extended, beside one at a time."""
    task = "recall of 8"
    yield Cell(task, length, "full", each=4)
    yield Cell(task, length, "IM", 6, "query", "each", 4)
    yield Cell(task, length, "IM", 6, "query", "together", 4)
    yield Cell(task, length, "IM", 6, "query", "each", 4, parts=2)


def run(cell: Cell, each: int | None = None) -> list[dict[str, Any]]:
    """The rows of a cell, one a depth."""
    model, tokenizer = load()
    each = cell.each if each is None else each
    if cell.task == "recall of 8":
        trials, task = several(cell.length, each), "recall"
    else:
        trials, task = cases(cell.task, cell.length, each), cell.task
    rows = evaluate(
        model,
        tokenizer,
        trials,
        {cell.name: cell.how()},
        known=cell.known or "none",
        baselines=False,
        max_new_tokens=NEW_TOKENS[task],
    )
    own = dict(zip(KEYS, cell.key, strict=True))
    return [
        own
        | {"depth": row.depth, "correct": row.correct, "trials": row.trials}
        | {"low": round(row.low, 4), "high": round(row.high, 4)}
        | {"peak_bytes": row.peak_bytes, "seconds": round(row.seconds, 3)}
        for row in rows
    ]


def todo() -> list[Cell]:
    """Cells without rows, in order."""
    found = {tuple(row[key] for key in KEYS) for row in ledger(NAME)}
    cells = {cell.key: cell for cell in grid()}
    return [cell for key, cell in cells.items() if key not in found]


def summary() -> list[dict[str, Any]]:
    """A row a cell, all depths together, beside full context on the same trials."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in ledger(NAME):
        cells.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    full = {
        (task, length): _share(rows)
        for (task, length, method, *_), rows in cells.items()
        if method == "full"
    }
    out: list[dict[str, Any]] = []
    for key, rows in cells.items():
        own = dict(zip(KEYS, key, strict=True))
        correct = sum(int(row["correct"]) for row in rows)
        trials = sum(int(row["trials"]) for row in rows)
        low, high = wilson(correct, trials)
        most = full.get((own["task"], own["length"]))
        out.append(
            own
            | {"correct": correct, "trials": trials, "share": round(correct / trials, 4)}
            | {"low": round(low, 4), "high": round(high, 4)}
            | {"of_full": round(correct / trials / most, 4) if most else ""}
            | {"peak_bytes": max(int(row["peak_bytes"]) for row in rows)}
            | {"seconds": round(sum(float(row["seconds"]) for row in rows) / len(rows), 3)}
        )
    return out


def _share(rows: list[dict[str, str]]) -> float:
    return sum(int(row["correct"]) for row in rows) / sum(int(row["trials"]) for row in rows)


def main() -> None:
    """Run what is missing, one cell after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after")
    parser.add_argument("--task", help="only cells of this task")
    parser.add_argument("--length", type=int, help="only cells of this length")
    parser.add_argument("--each", type=int, help="trials at each depth")
    parser.add_argument("--dry", action="store_true", help="print only, record nothing")
    options = parser.parse_args()
    if options.summary:
        show(summary())
        return
    end = time.monotonic() + 60 * options.minutes
    left = [
        cell
        for cell in todo()
        if options.task in (None, cell.task) and options.length in (None, cell.length)
    ]
    for number, cell in enumerate(left):
        if time.monotonic() > end:
            break
        print(f"{len(left) - number} to do; {' '.join(cell.key)}", flush=True)
        rows = run(cell, options.each)
        if options.dry:
            show(rows)
        else:
            record(NAME, rows)


if __name__ == "__main__":
    main()
