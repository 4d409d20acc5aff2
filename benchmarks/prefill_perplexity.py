"""Perplexity from bounded memory, and what that memory looks like from inside.

    python prefill_perplexity.py after     the 512 tokens after a context of 6,144
    python prefill_perplexity.py whole     every token of a text of 32,768 as it is read
    python prefill_perplexity.py probes    forgetting curve, retention, attention on memory
    python prefill_perplexity.py --summary what has been run, each text beside the same text

SmolLM2-135M-Instruct in bfloat16, text from the Debian handbook, means over tokens in nats. `full`
and the last tokens are read exactly; of a whole text the last M tokens are memory that keeps the
newest. Every cell is recorded at once, and a run resumes where another stopped. Perplexity hardly
tells memories apart: the answers of prefill_quality.py do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from apportion.prefill.evaluation import (
    attention_shares,
    forgetting,
    loss_after,
    loss_of,
    needle,
    retention,
)
from apportion.prefill.evaluation.held import exactly, in_memory
from apportion.prefill.reader import Reader
from harness import ledger, record, show
from prefill_quality import METHODS
from prefill_setup import haystack, load, manual

NAME, PROBES = "prefill_perplexity", "prefill_probes"
CHUNK = 1024
AHEAD = 512
CONTEXT, WHOLE = 6144, 32_768
MEMORIES = (1024, 512, 2048)
STARTS = 8
KEYS = ("what", "length", "method", "scorer", "memory", "start")


def tokens(start: int, count: int) -> Tensor:
    """So many tokens of the manual, from a place that `start` numbers."""
    ids = _ids()
    place = start * (len(ids) - count) // max(1, STARTS - 1)
    return ids[place : place + count]


def _ids() -> Tensor:
    return torch.tensor(load()[1](manual(), verbose=False)["input_ids"])


def after(method: str, scorer: str, memory: int, start: int) -> float:
    """Loss of what follows a context."""
    ids = tokens(start, CONTEXT + AHEAD)
    context, ahead = ids[:CONTEXT], ids[CONTEXT:]
    reader = _reader(method, scorer, memory)
    if method in METHODS:
        return loss_after(in_memory(reader, context), ahead)
    kept = {"full": CONTEXT, "last M": memory, "last M + c": memory + CHUNK}[method]
    return loss_after(exactly(reader, context[-kept:]), ahead)


def whole(method: str, scorer: str, memory: int, start: int) -> float:
    """Loss of a text as it is read."""
    return loss_of(_reader(method, scorer, memory), tokens(start, WHOLE)[None]).mean


def _reader(method: str, scorer: str, memory: int) -> Reader:
    how = METHODS.get(method, METHODS["FM"])
    return Reader(*load(), memory=max(1, memory), chunk=CHUNK, scorer=scorer or "streaming", **how)


def grid(what: str) -> Iterator[tuple[str, int, str, str, int, int]]:
    """Cells in order: all methods at one memory on one text, then the next text."""
    if what == "after":
        for start in range(STARTS):
            yield what, CONTEXT, "full", "", 0, start
        for memory in MEMORIES[:2]:
            for start in range(STARTS):
                yield what, CONTEXT, "last M", "", memory, start
                yield what, CONTEXT, "last M + c", "", memory, start
                for method in METHODS:
                    yield what, CONTEXT, method, "snapkv", memory, start
        for start in range(STARTS):
            yield what, CONTEXT, "IM", "random", MEMORIES[0], start
    else:
        for memory in MEMORIES:
            for method in METHODS:
                yield what, WHOLE, method, "snapkv", memory, 0
            yield what, WHOLE, "FM", "streaming", memory, 0


def summary() -> list[dict[str, Any]]:
    """Mean loss of each method, and its difference to full context or to FM on the same texts."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for row in ledger(NAME):
        key = tuple(row[k] for k in KEYS[:-1])
        found.setdefault(key, {})[row["start"]] = float(row["loss"])
    out: list[dict[str, Any]] = []
    for key, losses in found.items():
        what, length, _, _, memory = key
        beside = found.get(
            (what, length, "full", "", "0")
            if what == "after"
            else (what, length, "FM", "snapkv", memory),
            {},
        )
        shared = sorted(set(losses) & set(beside))
        steps = [losses[s] - beside[s] for s in shared]
        spread = statistics.stdev(steps) / len(steps) ** 0.5 if len(steps) > 1 else 0.0
        out.append(
            dict(zip(KEYS, key, strict=False))
            | {"texts": len(losses), "loss": round(statistics.fmean(losses.values()), 4)}
            | {"beside": round(statistics.fmean(steps), 4) if steps else ""}
            | {"standard_error": round(spread, 4)}
        )
    return out


def probes(trials: int = 4) -> Iterator[dict[str, Any]]:
    """Memory from inside, for FM and IM with the question unknown and known."""
    model, tokenizer = load()
    hay = haystack()
    for method in ("FM", "IM", "IMDC"):
        for scorer in ("snapkv", "query", "random"):
            sums: dict[tuple[str, int], list[float]] = {}
            for seed in range(trials):
                case = needle(hay, CONTEXT, (seed + 0.5) / trials, 1000 + seed)
                how = {"memory": CHUNK, "chunk": CHUNK, "scorer": scorer}
                reader = Reader(model, tokenizer, **how, **METHODS[method])
                known = [case.question] if scorer == "query" else []
                context = reader.read(case.text, known)
                curve = forgetting(context).mean(axis=0)
                kept = retention(context)[1:].mean(axis=0)
                looks = attention_shares(context, reader.question(case.question)).mean(axis=0)
                for what, values in (
                    ("forgetting", curve),
                    ("retention", kept),
                    ("attention", looks),
                ):
                    for place, value in enumerate(values):
                        sums.setdefault((what, place), []).append(float(value))
            for (what, place), values in sums.items():
                yield {
                    "what": what,
                    "place": place,
                    "length": CONTEXT,
                    "method": method,
                    "scorer": scorer,
                    "memory": CHUNK,
                    "chunk": CHUNK,
                    "texts": len(values),
                    "share": round(statistics.fmean(values), 5),
                    "lowest": round(min(values), 5),
                    "highest": round(max(values), 5),
                }


def main() -> None:
    """Run what is missing of one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", nargs="?", choices=["after", "whole", "probes"])
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after")
    parser.add_argument("--dry", action="store_true", help="print only, record nothing")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    if options.part == "probes":
        rows = list(probes(1 if options.dry else 4))
        show(rows)
        if not options.dry:
            record(PROBES, rows)
    elif options.part is not None and not options.summary:
        found = {tuple(row[key] for key in KEYS) for row in ledger(NAME)}
        for cell in grid(options.part):
            if tuple(map(str, cell)) in found or time.monotonic() > end:
                continue
            begun = time.perf_counter()
            loss = {"after": after, "whole": whole}[options.part](*cell[2:])
            row = dict(zip(KEYS, cell, strict=True)) | {"loss": round(loss, 6)}
            row["seconds"] = round(time.perf_counter() - begun, 2)
            print(*row.values(), flush=True)
            if not options.dry:
                record(NAME, [row])
    show(summary() or [{"rows": 0}])


if __name__ == "__main__":
    main()
