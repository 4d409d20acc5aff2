"""A few steps of SmolLM2-135M on real text: plain, gradient checkpointing, and `attach`.

    python examples/demo_finetune.py

The text is Python's own manual; the model continues passages of it, and only the continuation
carries loss. Every side starts from the same weights and sees the same batches, so losses compare
step by step; bytes are those above the weights, counted storage by storage.
"""

from __future__ import annotations

import copy
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion import finetune as ft
from apportion.budget import format_bytes
from apportion.meter import LiveStorages

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import smollm2

STEPS, BATCH, LENGTH, ANSWER = 4, 2, 256, 48
RATE = 2e-5
WIDTH = 100
SIDES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "gradient checkpointing": None,
    "attach(model, backward='full')": {"backward": "full"},
    "attach(model, keep=0.25)": {"keep": 0.25},
}


def batches(tokenizer: Any) -> list[dict[str, torch.Tensor]]:
    """Passages of the manual; the last tokens of each are to be continued."""
    text = "\n".join(topics[name] for name in sorted(topics))
    ids = torch.tensor(tokenizer(text[:80_000])["input_ids"])
    rows = ids[: STEPS * BATCH * LENGTH].view(STEPS, BATCH, LENGTH)
    labels = torch.where(torch.arange(LENGTH) >= LENGTH - ANSWER, rows, -100)
    return [{"input_ids": x, "labels": y} for x, y in zip(rows, labels, strict=True)]


def prepared(model: Any, side: str) -> AbstractContextManager[Any]:
    """The model as a side trains it."""
    settings = SIDES[side]
    if settings is not None:
        return ft.attach(model, **settings)
    if side == "gradient checkpointing":
        model.activation_checkpointing_enable()
    return nullcontext()


def train(model: Any, side: str, data: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """The losses of the steps, the median time of one, what one stored, and its peak."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    losses, seconds = [], []
    with prepared(model, side):
        for number, batch in enumerate(data):
            start = time.perf_counter()
            # Counting takes time, so the first step counts and the others are timed.
            with LiveStorages() if number == 0 else nullcontext() as meter:
                loss = model(**batch, use_cache=False).loss
                if isinstance(meter, LiveStorages):
                    stored = meter.bytes()
                loss.backward()
            if isinstance(meter, LiveStorages):
                peak = meter.peak
            else:
                seconds.append(time.perf_counter() - start)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    middle = sorted(seconds)[len(seconds) // 2]
    return {"losses": losses, "seconds": middle, "stored": stored, "peak": peak}


def main() -> dict[str, dict[str, Any]]:
    """Run every side, print the table, and give what was found."""
    folder = smollm2.folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    # With all layers trained; the embeddings' gradient would be a quarter of every peak.
    original.get_input_embeddings().requires_grad_(False)
    data = batches(tokenizer)
    table = Table("", "first loss", "last", "stored", "peak", "s / step", box=None)
    table.columns[0].no_wrap = True
    results = {side: train(copy.deepcopy(original), side, data) for side in SIDES}
    for side, found in results.items():
        table.add_row(
            side,
            *(f"{found['losses'][k]:.4f}" for k in (0, -1)),
            format_bytes(found["stored"]),
            format_bytes(found["peak"]),
            f"{found['seconds']:.2f}",
        )
    Console(width=WIDTH).print(table)
    Console(width=WIDTH).print(
        f"{BATCH} samples of {LENGTH} tokens, {ANSWER} of them with loss. Stored is what the "
        "forward leaves for the backward; the peak is what a step holds above the weights, the "
        "gradients of all layers (the same on every side) included."
    )
    return results


if __name__ == "__main__":
    main()
