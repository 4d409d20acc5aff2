"""The chunked loss beside the plain one: time, peak bytes and agreement, on SmolLM2's head.

Both start from the same last hidden states and end with their gradient and that of the head. The
plain loss makes all logits, as a model of transformers does with `labels`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from apportion import finetune as ft
from apportion.meter import LiveStorages
from finetune_setup import load, samples
from harness import arguments, ratio, record, show, take_turns


def plain(hidden: Tensor, labels: Tensor, model: Any) -> Tensor:
    """The model's own loss from the hidden states."""
    logits = model.lm_head(model.model.norm(hidden))
    return model.loss_function(logits, labels, model.config.vocab_size)


def chunked(hidden: Tensor, labels: Tensor, model: Any) -> Tensor:
    """Ours."""
    return ft.chunked_loss(hidden, labels, ft.Head(model.model.norm, model.lm_head))


def last_hidden(model: Any, ids: Tensor) -> Tensor:
    """What the final norm gets."""
    seen: list[Tensor] = []
    tap = model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model.model(input_ids=ids, use_cache=False)
    tap.remove()
    return seen[0]


def run(
    loss: Callable[..., Tensor], hidden: Tensor, labels: Tensor, model: Any
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the hidden states; the head's stays in the parameters."""
    model.zero_grad(set_to_none=True)
    x = hidden.detach().requires_grad_()
    found = loss(x, labels, model)
    found.backward()
    assert x.grad is not None
    return found.detach(), x.grad


def compare(name: str, options: argparse.Namespace, labelled: int, head: bool) -> list[dict]:
    """Two rows: the plain loss and ours."""
    model, tokenizer = load()
    inputs = samples(tokenizer, options.batch, options.length, labelled)
    hidden = last_hidden(model, inputs["input_ids"])
    model.lm_head.requires_grad_(head)
    given = (hidden, inputs["labels"], model)
    sides = {"plain": plain, "chunked": chunked}
    timings = take_turns({side: lambda f=f: run(f, *given) for side, f in sides.items()},
                         options.rounds)  # fmt: skip
    exact = timings["plain"].value
    rows = []
    for side, function in sides.items():
        with LiveStorages() as meter:
            run(function, *given)
        loss, gradient = timings[side].value
        rows.append(
            {
                "data": name,
                "labelled": labelled,
                "head": "trained" if head else "frozen",
                **timings[side].row(),
                "time_of_plain": round(1 / ratio(timings["plain"], timings[side]), 3),
                "peak_bytes": meter.peak,
                "loss_error": f"{float(abs(loss - exact[0]) / exact[0]):.1e}",
                "gradient_error": f"{float((gradient - exact[1]).norm() / exact[1].norm()):.1e}",
            }
        )
    return rows


def main() -> None:
    """Measure, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--batch", type=int, default=4)
        parser.add_argument("--length", type=int, default=512)

    options = arguments(__doc__, rounds=5, add=add)
    rows = []
    for head in (True, False):
        rows += compare("every token", options, options.length, head)
        rows += compare("completions", options, 96, head)
    show(rows)
    if not options.dry:
        print(record("finetune_loss", rows))


if __name__ == "__main__":
    main()
