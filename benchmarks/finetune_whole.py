"""Peak bytes of whole LoRA steps at long context: 4 samples of 2,048 tokens on SmolLM2-135M.

`plain` and `checkpointing` are what a user gets from transformers, the model's own loss included;
the attached sides add `attach` and nothing else. Bytes are those above the weights, with the
gradients of the adapters, at the end of the forward and at the peak of the whole step.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch

from apportion import models
from apportion.meter import LiveStorages
from finetune_setup import attached, load, samples
from harness import arguments, record, show

SIDES = ("plain", "checkpointing", "ladder 4bit", "sparse 0.25", "sparse 0.5")


def measure(model: Any, inputs: dict[str, torch.Tensor], side: str) -> dict[str, Any]:
    """One side's row."""
    inner = models.unwrap(model)
    with attached(inner, side):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        with LiveStorages() as meter:
            loss = model(**inputs, use_cache=False).loss
            saved = meter.bytes()
            loss.backward()
        took = time.perf_counter() - start
    return {"side": side, "saved": saved, "peak": meter.peak, "loss": round(loss.item(), 6),
            "seconds": round(took, 1)}  # fmt: skip


def main() -> None:
    """Measure, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--batch", type=int, default=4)
        parser.add_argument("--length", type=int, default=2048)
        parser.add_argument("--labelled", type=int, default=400, help="tokens with loss, of each")
        parser.add_argument("--lora", type=int, default=16, help="rank of the adapters")

    options = arguments(__doc__, rounds=1, add=add)
    base, tokenizer = load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = models.adapted(base, options.lora, 2 * options.lora)
    rows = []
    for labelled in (options.labelled, options.length):
        inputs = samples(tokenizer, options.batch, options.length, labelled)
        sides = SIDES if labelled < options.length else SIDES[:3]
        found = [measure(model, inputs, side) for side in sides]
        for row in found:
            row["peak_of_plain"] = round(row["peak"] / found[0]["peak"], 4)
            row["peak_of_checkpointing"] = round(row["peak"] / found[1]["peak"], 4)
            rows.append({"labelled": labelled, **row})
    show(rows)
    if not options.dry:
        print(record("finetune_whole", rows))


if __name__ == "__main__":
    main()
