"""Reading a long text: incremental memory against fixed memory and plain prefill, time and bytes.

    python prefill_reads.py CASE       runs what is missing of a case, resumes after a kill
    python prefill_reads.py --summary  the tables of what has been run

SmolLM2-135M-Instruct in bfloat16, real English text, repeated where it is too short: what is read
changes neither time nor bytes. Sides take turns, a whole read each, one row a read. Bytes are those
of live storages at the peak, beyond the weights: memory, activations and scores. Attention is
rectangular on all sides, so fixed memory is not slowed down by the squares of the released code.
The bound beside each ratio is what times of single chunks of the same run predict: a chunk over so
many entries, for every step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from apportion import prefill as pf
from apportion.meter import LiveStorages
from apportion.prefill.engine import Chunk
from harness import ledger, record, show
from prefill_setup import load, manual

NAME = "prefill_reads"


@dataclass(frozen=True)
class Side:
    """One way to read.

    Attributes:
        options: of the reader; None: plain prefill.
    """

    name: str
    options: Mapping[str, Any] | None


@dataclass(frozen=True)
class Case:
    """A text of one length, read in several ways.

    Attributes:
        rounds: whole reads of every side.
    """

    tokens: int
    memory: int
    chunk: int
    sides: tuple[Side, ...]
    rounds: int = 3


FIXED = {"schedule": "fixed", "chunks": "fixed"}
FM = Side("fixed memory", FIXED)
PUBLISHED = Side("fixed memory, evicts after the forward", {**FIXED, "evict": "forward"})
IM = Side("incremental memory", {"schedule": "linear", "chunks": "fixed"})
IMDC = Side("incremental, decremental chunks", {"schedule": "linear", "chunks": "decremental"})
OURS = Side("incremental, chunks by bytes", {"schedule": "linear", "chunks": "bytes"})
LATE = Side(
    "incremental, decremental chunks, evicts after the forward",
    {"schedule": "linear", "chunks": "decremental", "evict": "forward"},
)
PLAIN = Side("plain prefill", None)

CASES: dict[str, Case] = {
    # Time against fixed memory.
    "1k": Case(16_384, 1024, 1024, (FM, IM, IMDC)),
    "8k": Case(65_536, 8192, 1024, (FM, IM, IMDC), 1),
    # Bytes against the published fixed memory, at c = M.
    "bytes 1k": Case(16_384, 1024, 1024, (PUBLISHED, FM, IM, LATE, IMDC, OURS)),
    "bytes 2k": Case(16_384, 2048, 2048, (PUBLISHED, FM, IM, LATE, IMDC, OURS)),
    "bytes 8k": Case(32_768, 8192, 8192, (PUBLISHED, FM, IM, LATE, IMDC, OURS), 1),
    # Against exact attention.
    "plain": Case(32_768, 2048, 1024, (PLAIN, IMDC)),
    # The same bound whatever the length.
    "length 16k": Case(16_384, 2048, 1024, (IMDC,)),
    "length 64k": Case(65_536, 2048, 1024, (IMDC,), 1),
    "length 256k": Case(262_144, 2048, 1024, (IMDC,), 1),
}


def read(model: Any, ids: torch.Tensor, case: Case, side: Side) -> dict[str, Any]:
    """One whole read; its row's figures."""
    if side.options is None:
        return plain(model, ids)
    reader = pf.Reader(model, memory=case.memory, chunk=case.chunk, scorer="snapkv", **side.options)
    start = time.perf_counter()
    context = reader.read(ids)
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 3),
        "peak_bytes": context.peak_bytes,
        "memory_bytes": context.trace[-1].memory_bytes,
        "forwards": len(context.trace),
        "largest_chunk": max(step.tokens for step in context.trace),
        "most_entries": most_entries(context),
    }


def most_entries(context: pf.Context) -> int:
    """The largest sum, over the steps, of a chunk and the longest memory before it."""
    held = [0, *(max(step.memory) for step in context.trace)]
    return max(h + step.tokens for h, step in zip(held, context.trace, strict=False))


@torch.no_grad()
def plain(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    """Exact attention over everything in one forward; the cache is transformers' own."""
    with LiveStorages() as meter:
        start = time.perf_counter()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - start
    cache = getattr(out, "cache", None) or out.past_key_values
    held = sum(
        x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values)
    )
    return {
        "seconds": round(seconds, 3),
        "peak_bytes": meter.peak,
        "memory_bytes": held,
        "forwards": 1,
        "largest_chunk": ids.shape[1],
        "most_entries": ids.shape[1],
    }


def chunk_times(model: Any, ids: torch.Tensor, case: Case) -> dict[int, float]:
    """Seconds of one chunk over so many entries, without eviction: the median of three."""
    found: dict[int, float] = {}
    for held in sorted({0, case.memory // 4, case.memory // 2, case.memory}):
        reader = pf.Reader(model, memory=max(1, held), chunk=case.chunk, scorer="streaming")
        context = reader.read(ids[:, : held + 1])
        taken = []
        for _ in range(3):
            fork = context.engine.fork(0)
            part = Chunk(ids[:, held + 1 : held + 1 + case.chunk], held + 1, None)
            start = time.perf_counter()
            fork.read(part)
            taken.append(time.perf_counter() - start)
        found[held] = statistics.median(taken)
    return found


def predicted(times: Mapping[int, float], memories: list[int]) -> float:
    """Seconds of chunks over so many entries each, by the lines between measured ones."""
    total = 0.0
    points = sorted(times.items())
    for held in memories:
        (a, at), (b, bt) = next(
            ((x, y) for x, y in pairwise(points) if held <= y[0]), (points[-2], points[-1])
        )
        total += at + (bt - at) * (held - a) / (b - a)
    return total


def bound(case: Case, times: Mapping[int, float]) -> float:
    """How many times longer fixed memory takes than incremental, by single chunks."""
    steps = -(-case.tokens // case.chunk)
    fixed = [0, *[case.memory] * (steps - 1)]
    growing = [case.memory * t // steps for t in range(steps)]
    return predicted(times, fixed) / predicted(times, growing)


def run(name: str, threads: int, dry: bool) -> None:
    """What is missing of a case; sides in turn, so a kill loses one read."""
    case = CASES[name]
    torch.set_num_threads(threads)
    model, tokenizer = load()
    # Time and bytes don't know that positions beyond 8,192 were never trained.
    model.config.max_position_embeddings = 2**20
    ids = torch.tensor([tokenizer(manual(), verbose=False)["input_ids"]])
    ids = ids.repeat(1, -(-case.tokens // ids.shape[1]))[:, : case.tokens]
    found = [row for row in ledger(NAME) if row["case"] == name]
    theory: float | str = ""
    if FM in case.sides and IM in case.sides and not name.startswith("bytes"):
        theory = round(bound(case, chunk_times(model, ids, case)), 4)
    for number in range(case.rounds):
        for side in case.sides:
            if any(r["side"] == side.name and r["round"] == str(number) for r in found):
                continue
            row = {
                "case": name,
                "tokens": case.tokens,
                "memory": case.memory,
                "chunk": case.chunk,
                "side": side.name,
                "round": number,
                **read(model, ids, case, side),
                "chunk_bound": theory,
                "threads": threads,
            }
            show([{k: row[k] for k in ("case", "side", "round", "seconds", "peak_bytes")}])
            if not dry:
                record(NAME, [row])


def summary() -> list[dict[str, Any]]:
    """Per case and side: medians, and what they are of the case's first side."""
    out: list[dict[str, Any]] = []
    rows = ledger(NAME)
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        first: dict[str, Any] = {}
        for side in dict.fromkeys(row["side"] for row in own):
            mine = [row for row in own if row["side"] == side]
            middle = {
                k: statistics.median(float(row[k]) for row in mine)
                for k in ("seconds", "peak_bytes", "memory_bytes", "forwards", "most_entries")
            }
            first = first or middle
            out.append(
                {
                    "case": name,
                    "side": side,
                    "rounds": len(mine),
                    "seconds": round(middle["seconds"], 2),
                    "times_faster": round(first["seconds"] / middle["seconds"], 3),
                    "peak_mb": round(middle["peak_bytes"] / 1e6, 1),
                    "of_first_peak": round(middle["peak_bytes"] / first["peak_bytes"], 3),
                    "memory_mb": round(middle["memory_bytes"] / 1e6, 1),
                    "forwards": int(middle["forwards"]),
                    "most_entries": int(middle["most_entries"]),
                    "chunk_bound": mine[-1]["chunk_bound"],
                }
            )
    return out


def main() -> None:
    """Run a case, or show what has been run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("case", nargs="*", choices=[*CASES, []])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print only, record nothing")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if not options.summary:
        for name in options.case or CASES:
            run(name, options.threads, options.dry)
    show(summary())


if __name__ == "__main__":
    main()
