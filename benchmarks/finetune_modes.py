"""Bytes, time and gradient of each mode on SmolLM2-135M, sides alternating.

Saved bytes are live storages at the end of the forward, wherever they are held, with embedding and
head frozen; the peak is that of forward and backward, gradients of the layers included. Times are
of forward and backward together. The gradient is compared with the exact one of the same batch,
over all layer weights.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from apportion.meter import LiveStorages
from finetune_setup import (
    MICRO,
    attached,
    cosine,
    layer_gradient,
    load,
    once,
    oracle,
    samples,
    step,
    time_steps,
)
from harness import arguments, ratio, record, show

SIDES = (
    "plain", "checkpointing", MICRO, "ladder 4bit", "ladder 8bit", "sparse 0.25", "sparse 0.5"
)  # fmt: skip


def measure_bytes(model: Any, inputs: Any, side: str, backward: bool = True) -> tuple[int, int]:
    """Saved bytes at the end of the forward, and the peak of the whole step."""
    saved: list[int] = []

    def note() -> bool:
        saved.append(meter.bytes())
        return backward

    # The head's gradient is made together with the loss; it is no activation, and equal everywhere.
    model.lm_head.requires_grad_(False)
    with LiveStorages() as meter:
        step(model, inputs, side, between=note)
    model.lm_head.requires_grad_(True)
    return saved[0], meter.peak


def measure_gradients(model: Any, inputs: Any, sides: tuple[str, ...]) -> dict[str, float]:
    """Cosine of each side's gradient to the exact one; oracles for the sparse sides."""
    step(model, inputs, "checkpointing")
    exact = layer_gradient(model)
    found = {}
    for side in sides:
        step(model, inputs, side)
        found[side] = cosine(layer_gradient(model), exact)
    known = oracle(model, inputs)
    for keep in (0.25, 0.5):
        step(model, inputs, f"sparse {keep}", saliency=known)
        found[f"oracle {keep}"] = cosine(layer_gradient(model), exact)
    return found


def rows_of(name: str, options: argparse.Namespace, labelled: int) -> list[dict[str, Any]]:
    """All figures for one kind of data."""
    model, tokenizer = load()
    inputs = samples(tokenizer, options.batch, options.length, labelled)
    sides = SIDES if labelled < options.length else SIDES[:5]
    timings = time_steps(
        model, inputs, {side: side for side in sides}, options.rounds, attached, once
    )
    saved = {side: measure_bytes(model, inputs, side) for side in sides}
    gradients = measure_gradients(model, inputs, sides)
    half, _ = load(torch.bfloat16)
    few = samples(tokenizer, 1, options.length, labelled)
    # bfloat16 is slow where the processor has no unit for it, and saved bytes need no backward.
    saved_half = {side: measure_bytes(half, few, side, backward=False) for side in sides}
    # Of one sample that is checkpointing itself.
    saved_half[MICRO] = (saved_half[MICRO][0] // options.batch, 0)
    rows = []
    for side in [*sides, *(name for name in gradients if name.startswith("oracle"))]:
        row: dict[str, Any] = {"data": name, "labelled": labelled, "side": side}
        timing = timings.get(side)
        row |= timing.row() if timing else dict.fromkeys(timings["plain"].row(), "")
        row["side"] = side
        for other in ("plain", "checkpointing"):
            row[f"time_of_{other}"] = round(1 / ratio(timings[other], timing), 3) if timing else ""
        for label, table in (("fp32", saved), ("bf16", saved_half)):
            base = table["checkpointing"][0]
            row[f"saved_{label}"] = table[side][0] if timing else ""
            row[f"saved_{label}_of_checkpointing"] = (
                round(table[side][0] / base, 3) if timing else ""
            )
        row["peak_fp32"] = saved[side][1] if timing else ""
        row["cosine"] = round(gradients[side], 4) if side in gradients else ""
        rows.append(row)
    return rows


def main() -> None:
    """Measure, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--batch", type=int, default=4)
        parser.add_argument("--length", type=int, default=512)
        parser.add_argument("--labelled", type=int, default=96, help="tokens with loss, of each")

    options = arguments(__doc__, rounds=3, add=add)
    rows = rows_of("completions", options, options.labelled)
    rows += rows_of("every token", options, options.length)
    show(rows)
    if not options.dry:
        print(record("finetune_modes", rows))


if __name__ == "__main__":
    main()
