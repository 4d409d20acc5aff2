"""Python's manual read in bounded memory by SmolLM2-135M, beside plain prefill, and a question.

    python examples/demo_prefill.py

Plain prefill holds keys and values of every token, so it reads no more than the model's 8k
positions. The bounded read goes on to twice as much, keeps a thousand entries a layer, and answers
a question about a passage near the beginning that it was told before it read. Bytes are those above
the weights, counted storage by storage.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from apportion import models
from apportion import prefill as pf
from apportion.budget import format_bytes
from apportion.meter import LiveStorages
from apportion.prefill.loading import quick_dtype

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import smollm2

TOKENS, PLAIN, MEMORY, CHUNK = 16_000, 8_000, 1_000, 1_000
QUESTION = "Which PEP added type hints to Python?"
ANSWER = "484"
WIDTH = 100


@torch.no_grad()
def plain(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    """One forward over everything, with the model's own cache."""
    with LiveStorages() as meter:
        start = time.perf_counter()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - start
    del out
    return {"tokens": ids.shape[1], "seconds": seconds, "peak": meter.peak}


def main() -> dict[str, dict[str, Any]]:
    """Read, print the table, ask, and give what was found."""
    console = Console(width=WIDTH)
    dtype = quick_dtype(torch.device("cpu"))
    with models.quietly():
        model, tokenizer = models.load(smollm2.folder(), dtype)
    text = "\n".join(topics[name] for name in sorted(topics))
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    console.print(f"{dtype}; a manual of {len(ids):,} tokens, the first {TOKENS:,} of them\n")
    part = tokenizer.decode(ids[:TOKENS])
    results = {"plain prefill": plain(model, torch.tensor([ids[:PLAIN]]))}
    reader = pf.Reader(model, tokenizer, memory=MEMORY, chunk=CHUNK)
    context = reader.read(part, questions=[QUESTION], progress=True)
    results["in bounded memory"] = {
        "tokens": context.tokens,
        "seconds": context.seconds,
        "peak": context.peak_bytes,
    }
    table = Table("", "tokens", "seconds", "tokens / s", "peak above the weights", box=None)
    for side, found in results.items():
        table.add_row(
            side,
            f"{found['tokens']:,}",
            f"{found['seconds']:.1f}",
            f"{found['tokens'] / found['seconds']:.0f}",
            format_bytes(found["peak"]),
        )
    console.print(table)
    answer = context.ask(QUESTION, max_new_tokens=24)
    console.print(f"\nQ: {QUESTION}\nA: {answer.text}", highlight=False)
    console.print(
        f"{answer.kept_share:.0%} of the text is in memory; first token after "
        f"{answer.first_s:.2f} s. The manual says: {ANSWER}."
    )
    results["answer"] = {"text": answer.text, "right": ANSWER in answer.text}
    return results


if __name__ == "__main__":
    main()
