"""Attention of a chunk over memory: ours, fused attention with a mask, and the rate of a product.

A chunk of 1,024 rows over memories of several lengths, heads as in SmolLM2-135M (9 on 3 key heads
of 64), in bfloat16 and float32. The rate counts 4 x rows x entries x size x heads operations,
entries being the memory and the half of the chunk that a row sees on average. Beside it the rate of
a plain square product in the same type.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from apportion.prefill.attention import Entries, Rules, attend, visible
from harness import arguments, record, show, take_turns

HEADS, KEYHEADS, SIZE, CHUNK = 9, 3, 64, 1024
MEMORIES = (0, 1024, 2048, 4096, 8192)
PRODUCT = 2048


def sides(memory: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """What is timed at one length of memory."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(1, *shape, SIZE, generator=generator).to(dtype)

    queries = draw(HEADS, CHUNK)
    chunk = Entries(draw(KEYHEADS, CHUNK), draw(KEYHEADS, CHUNK))
    held = Entries(draw(KEYHEADS, memory), draw(KEYHEADS, memory))
    seen = [held] if memory else []
    rules = Rules(SIZE**-0.5)
    mask = visible(seen, chunk)[:, None]
    a, b = draw(PRODUCT, PRODUCT // SIZE).view(PRODUCT, -1), draw(PRODUCT, PRODUCT // SIZE)
    b = b.view(PRODUCT, -1)

    def masked() -> torch.Tensor:
        # As transformers does it: keys of all heads, joined, and one mask.
        keys = torch.cat([held.keys, chunk.keys], 2).repeat_interleave(HEADS // KEYHEADS, 1)
        values = torch.cat([held.values, chunk.values], 2).repeat_interleave(HEADS // KEYHEADS, 1)
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    return {
        "ours": lambda: attend(queries, seen, chunk, rules),
        "fused, with a mask": masked,
        "product": lambda: a @ b,
    }


def main() -> None:
    """All lengths, sides in turn."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--threads", type=int, default=2)

    options = arguments(__doc__, rounds=15, add=add)
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for dtype in (torch.bfloat16, torch.float32):
        for memory in MEMORIES:
            timings = take_turns(sides(memory, dtype), options.rounds, warmup=3)
            seen = memory + (CHUNK + 1) / 2
            work = {
                "ours": 4 * CHUNK * seen * SIZE * HEADS,
                "fused, with a mask": 4 * CHUNK * seen * SIZE * HEADS,
                "product": 2 * PRODUCT**3,
            }
            error = (timings["ours"].value - timings["fused, with a mask"].value).abs().max()
            for side, timing in timings.items():
                rows.append(
                    {
                        "dtype": str(dtype).removeprefix("torch."),
                        "chunk": CHUNK,
                        "memory": memory,
                        **timing.row(),
                        "gflops": round(work[side] / timing.median / 1e9, 1),
                        "of_product": round(
                            work[side] / timing.median
                            / (work["product"] / timings["product"].median),
                            3,
                        ),
                        "largest_difference": f"{float(error):.1e}",
                        "threads": options.threads,
                    }
                )  # fmt: skip
    show(rows)
    if not options.dry:
        print(record("prefill_attention", rows))


if __name__ == "__main__":
    main()
