"""What remembering costs: a chunk read with each scorer, beside the same chunk without any.

SmolLM2-135M-Instruct in bfloat16, real text, memory full. One side runs the model over the chunk
and the same number of entries, which stand rotated already: no scoring, no eviction, no rotation,
no meter, no trace. The others read on with `extend`, one scorer each, everything included; `query`
has a question of 16 tokens, whose rows it also computes. One side counts no bytes, which nobody can
ask for: it says what counting takes. Sides take turns, several chunks a turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from apportion import prefill as pf
from apportion.prefill import context
from apportion.prefill.engine import Chunk
from harness import arguments, ratio, record, show, take_turns
from prefill_setup import load, manual

NAME = "prefill_overhead"
WITHOUT, UNCOUNTED = "no eviction", "streaming, bytes not counted"
SCORERS = (
    "streaming", "tova", "snapkv", "query", "h2o", "mean", "roco", "value-aware", "prefix", "random"
)  # fmt: skip


def reader_of(scorer: str, memory: int, chunk: int, **more: Any) -> pf.Reader:
    """Fixed memory and fixed chunks: every chunk costs the same."""
    fixed: dict[str, Any] = {"schedule": "fixed", "chunks": "fixed"}
    return pf.Reader(*load(), memory=memory, chunk=chunk, scorer=scorer, **fixed, **more)


def without(ids: torch.Tensor, memory: int, chunk: int, chunks: int) -> Callable[[], Any]:
    """The same chunks over as many entries, which nothing is done to."""
    read = reader_of("streaming", memory, chunk, positions="original").read(ids[:, :memory])
    parts = ids[:, memory:].split(chunk, dim=1)[:chunks]

    def run() -> None:
        for part in parts:
            read.engine.fork(0).read(Chunk(part, memory, None))

    return run


def remembering(
    scorer: str, ids: torch.Tensor, memory: int, chunk: int, chunks: int
) -> Callable[[], Any]:
    """Reads on with full memory."""
    reader = reader_of(scorer, memory, chunk)
    questions = ["What is written about the configuration of the network in this book?"]
    read = reader.read(ids[:, : memory + chunk], questions if scorer == "query" else [])
    more = ids[:, memory + chunk :][:, : chunks * chunk]
    return lambda: read.extend(more)


class Uncounted:
    """In the place of a meter."""

    peak = 0

    def __enter__(self) -> Uncounted:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def uncounted(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same without a meter."""

    def quiet() -> None:
        before = context.meter_of
        context.meter_of = lambda *_: Uncounted()
        try:
            run()
        finally:
            context.meter_of = before

    return quiet


def main() -> None:
    """All scorers, sides in turn."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--memory", type=int, default=2048)
        parser.add_argument("--chunk", type=int, default=1024)
        parser.add_argument("--chunks", type=int, default=2, help="a turn")
        parser.add_argument("--threads", type=int, default=2)

    options = arguments(__doc__, rounds=9, add=add)
    torch.set_num_threads(options.threads)
    model, tokenizer = load()
    model.config.max_position_embeddings = 2**20  # `original` positions are those of the text
    ids = torch.tensor([tokenizer(manual(), verbose=False)["input_ids"]])
    sizes = (ids, options.memory, options.chunk, options.chunks)
    sides = {WITHOUT: without(*sizes)}
    sides[UNCOUNTED] = uncounted(remembering("streaming", *sizes))
    sides |= {scorer: remembering(scorer, *sizes) for scorer in SCORERS}
    timings = take_turns(sides, options.rounds)
    rows = [
        {
            "memory": options.memory,
            "chunk": options.chunk,
            "chunks": options.chunks,
            **timing.row(),
            "overhead": round(ratio(timing, timings[WITHOUT]) - 1, 4),
            "threads": options.threads,
        }
        for timing in timings.values()
    ]
    show(rows)
    if not options.dry:
        print(record(NAME, rows))


if __name__ == "__main__":
    main()
