"""What each part of the sparse backward brings: bytes, time and gradient, parts added in turn.

On SmolLM2-135M with loss on the last tokens of every sample. Parts are taken out by replacing them
here; nothing in the package has a switch for it. Saved bytes and peak are those of the layers and
the loss (embedding and head frozen); times are of forward and backward; the gradient is that of all
layer weights, beside the exact one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from apportion import finetune as ft
from apportion.finetune import lowbit, settings
from apportion.finetune.checkpoint import Run
from apportion.finetune.products import Products
from apportion.meter import LiveStorages
from finetune_setup import cosine, layer_gradient, load, samples, time_steps
from harness import arguments, ratio, record, show

_KEYS_VALUES = Run._keys_values  # pyright: ignore[reportPrivateUsage]


def _constant(run: Run, hidden: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Keys and values without a gradient."""
    return tuple(x.detach() for x in _KEYS_VALUES(run, hidden, rows))


# What is taken out of the package, by part.
WITHOUT: dict[str, tuple[Any, str, Any]] = {
    "products": (Products, "_run", lambda self, key, run, needed: run()),
    "fine": (settings, "FINE_UP_TO", 0.0),
    "turn": (lowbit, "_turn", lambda y: y),
    "outliers": (lowbit, "outlier_count", lambda width: 0),
    "keys": (Run, "_keys_values", _constant),
}
FULL: dict[str, Any] = {"rest": "4bit", "backward": "full"}
SPARSE: dict[str, Any] = {"rest": "4bit", "backward": "sparse"}
HALF: dict[str, Any] = {**SPARSE, "keep": 0.5}


@dataclass(frozen=True)
class Rung:
    """One line of the table.

    Attributes:
        part: what is new.
        settings: of `attach`; None: not attached.
        without: parts that are still missing.
        own_loss: the model's, with all logits.
    """

    part: str
    settings: dict[str, Any] | None = None
    without: tuple[str, ...] = field(default=())
    own_loss: bool = False


RUNGS = (
    Rung("plain training", own_loss=True),
    Rung("loss in chunks"),
    Rung("layers run again from exact rows", {"keep": 1.0}, ("products",)),
    Rung("rows in 4 bits", FULL, ("products", "fine", "turn", "outliers")),
    Rung("largest channels exact", FULL, ("products", "fine", "turn")),
    Rung("the others rotated", FULL, ("products", "fine")),
    Rung("8 bits for rows with loss", FULL, ("products",)),
    Rung("unread products left out", FULL),
    Rung("backward of half the rows, random", {**HALF, "saliency": "random"}, ("keys",)),
    Rung("the half that attention chooses", HALF, ("keys",)),
    Rung("gradients through all keys and values", HALF),
    Rung("a quarter of the rows", {**SPARSE, "keep": 0.25}),
)


@contextmanager
def built(model: Any, rung: Rung) -> Iterator[None]:
    """The model with the parts of a rung."""
    with ExitStack() as stack:
        for name in rung.without:
            owner, attribute, value = WITHOUT[name]
            stack.enter_context(mock.patch.object(owner, attribute, value))
        if rung.settings is not None:
            stack.enter_context(ft.attach(model, **rung.settings))
        yield


def once(model: Any, inputs: dict[str, torch.Tensor], rung: Rung, saved: Any = None) -> None:
    """Forward and backward; `saved` is called between them."""
    model.zero_grad(set_to_none=True)
    if rung.own_loss or rung.settings is not None:
        loss = model(**inputs, use_cache=False).loss
    else:
        hidden = model.model(input_ids=inputs["input_ids"], use_cache=False).last_hidden_state
        loss = ft.chunked_loss(hidden, inputs["labels"], ft.Head(None, model.lm_head))
        del hidden
    if saved is not None:
        saved()
    loss.backward()


def measure(model: Any, inputs: dict[str, torch.Tensor], rung: Rung) -> dict[str, Any]:
    """Saved bytes and peak."""
    saved: list[int] = []
    model.lm_head.requires_grad_(False)
    with built(model, rung), LiveStorages() as meter:
        once(model, inputs, rung, lambda: saved.append(meter.bytes()))
    model.lm_head.requires_grad_(True)
    # Without that part there would be no graph of keys and values; here there is one.
    peak = "" if "keys" in rung.without else meter.peak
    return {"saved_bytes": saved[0], "peak_bytes": peak}


def main() -> None:
    """Measure, show and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--batch", type=int, default=4)
        parser.add_argument("--length", type=int, default=512)
        parser.add_argument("--labelled", type=int, default=96, help="tokens with loss, of each")

    options = arguments(__doc__, rounds=3, add=add)
    model, tokenizer = load()
    inputs = samples(tokenizer, options.batch, options.length, options.labelled)
    named = {rung.part: rung for rung in RUNGS}
    timings = time_steps(model, inputs, named, options.rounds, built, once)
    once(model, inputs, RUNGS[0])
    exact = layer_gradient(model)
    rows = []
    for rung in RUNGS:
        with built(model, rung):
            once(model, inputs, rung)
        found = cosine(layer_gradient(model), exact)
        timing = timings[rung.part]
        row: dict[str, Any] = {"part": rung.part, **timing.row()}
        del row["side"]
        row["time_of_plain"] = round(1 / ratio(timings[RUNGS[0].part], timing), 3)
        rows.append({**row, **measure(model, inputs, rung), "cosine": round(found, 4)})
    show(rows)
    if not options.dry:
        print(record("finetune_ablation", rows))


if __name__ == "__main__":
    main()
