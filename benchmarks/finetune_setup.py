"""What the fine-tuning benchmarks share: the real model, real text, the sides.

Every side computes the same loss, in chunks, so that what differs is what the layers store and
recompute: `plain` and `checkpointing` call the decoder and then `chunked_loss`; the attached sides
do the same by themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pydoc_data import topics
from typing import Any, TypeVar

import torch
from torch import Tensor

from apportion import finetune as ft
from harness import ROOT, Timing, take_turns

sys.path.insert(0, str(ROOT / "tools"))

import smollm2

Side = TypeVar("Side")
LADDER: dict[str, Any] = {"keep": 0.25, "rest": "4bit", "backward": "full"}
SPARSE: dict[str, Any] = {"keep": 0.25, "rest": "4bit", "backward": "sparse"}
# Sides that attach, by name.
ATTACHED: dict[str, dict[str, Any]] = {
    "keep 1": {"keep": 1.0},
    "ladder 4bit": LADDER,
    "ladder 8bit": {**LADDER, "rest": "8bit"},
    "sparse 0.25": SPARSE,
    "sparse 0.5": {**SPARSE, "keep": 0.5},
    "random 0.25": {**SPARSE, "saliency": "random"},
    "sparse 0.25 kv": {**SPARSE, "rest": "drop"},
}

MICRO = "checkpointing, one by one"


def load(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct in training mode, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2.folder()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
    return model, AutoTokenizer.from_pretrained(folder)


def text() -> str:
    """Real English prose: the language reference that every CPython ships."""
    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


def samples(
    tokenizer: Any, batch: int, length: int, labelled: int, seed: int = 0
) -> dict[str, Tensor]:
    """Pieces of the text; the last `labelled` tokens of each carry loss.

    Args:
        seed: which pieces.
    """
    ids = torch.tensor(tokenizer(text())["input_ids"])
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(ids) - length, (batch,), generator=generator)
    rows = torch.stack([ids[start : start + length] for start in starts])
    labels = torch.where(torch.arange(length) >= length - labelled, rows, -100)
    return {"input_ids": rows, "labels": labels}


def step(
    model: Any,
    inputs: dict[str, Tensor],
    side: str,
    between: Callable[[], bool] | None = None,
    **settings: Any,
) -> float:
    """Forward and backward of one side; gradients stay in the parameters.

    Args:
        between: called at the end of the forward; says whether a backward follows.
        settings: of `attach`, over those of the side.

    Returns:
        The loss.
    """
    with attached(model, side, settings):
        return once(model, inputs, side, between)


def once(
    model: Any, inputs: dict[str, Tensor], side: str, between: Callable[[], bool] | None = None
) -> float:
    """`step` of a model that the side is attached to already."""
    for parameter in model.parameters():
        parameter.grad = None
    if side == MICRO:
        return _one_by_one(model, inputs, between)
    if side in ("plain", "checkpointing"):
        hidden = model.model(input_ids=inputs["input_ids"], use_cache=False).last_hidden_state
        loss = ft.chunked_loss(hidden, inputs["labels"], ft.Head(None, model.lm_head))
        del hidden
    else:
        loss = model(**inputs).loss
    if between is None or between():
        loss.backward()
    return float(loss.detach())


def _one_by_one(model: Any, inputs: dict[str, Tensor], between: Callable[[], bool] | None) -> float:
    """A sample at a time, gradients added up; the samples have equally many labels."""
    batch = len(inputs["input_ids"])
    total = 0.0
    for k in range(batch):
        part = {name: x[k : k + 1] for name, x in inputs.items()}
        hidden = model.model(input_ids=part["input_ids"], use_cache=False).last_hidden_state
        loss = ft.chunked_loss(hidden, part["labels"], ft.Head(None, model.lm_head)) / batch
        del hidden
        if between is None or between():
            loss.backward()
        total += float(loss.detach())
    return total


@contextmanager
def attached(model: Any, side: str, settings: dict[str, Any] | None = None) -> Iterator[None]:
    """The model with a side attached."""
    if side == "plain":
        yield
    elif side in ("checkpointing", MICRO):
        model.activation_checkpointing_enable()
        yield
        model.activation_checkpointing_disable()
        # It also made the embedding's output ask for a gradient, which later sides would store.
        model.disable_input_require_grads()
    else:
        with ft.attach(model, **{**ATTACHED.get(side, {}), **(settings or {})}):
            yield


def time_steps(
    model: Any,
    inputs: dict[str, Tensor],
    sides: Mapping[str, Side],
    rounds: int,
    prepare: Callable[[Any, Side], AbstractContextManager[None]],
    run: Callable[[Any, dict[str, Tensor], Side], object],
) -> dict[str, Timing]:
    """Steps in turn; preparing a side and its first step, which learns, are outside the clock.

    Args:
        sides: by name.
        prepare: gives the model as a side trains it.
        run: one step of it.
    """
    small = {name: x[:1] for name, x in inputs.items()}

    @contextmanager
    def around(name: str) -> Iterator[None]:
        with prepare(model, sides[name]):
            run(model, small, sides[name])
            yield

    steps = {name: lambda side=side: run(model, inputs, side) for name, side in sides.items()}
    return take_turns(steps, rounds, around=around)


def layer_gradient(model: Any) -> Tensor:
    """All gradients of the decoder layers as one vector."""
    found = [p.grad.flatten() for p in model.model.layers.parameters() if p.grad is not None]
    return torch.cat(found)


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of two long vectors; sums in float64, a part at a time."""
    dot = aa = bb = 0.0
    for x, y in zip(a.split(2**22), b.split(2**22), strict=True):
        x, y = x.double(), y.double()
        dot, aa, bb = dot + float(x @ y), aa + float(x @ x), bb + float(y @ y)
    return dot / (aa * bb) ** 0.5


class Given(ft.Saliency):
    """Scores that are given: the oracle's."""

    name = "given"
    first_only = True
    paper = "none"

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def score(self, view: ft.View) -> Tensor:
        return self.scores


def oracle(model: Any, inputs: dict[str, Tensor]) -> Given:
    """Upstream gradient norms, summed over the layers: what a forward can't know."""
    norms: list[Tensor] = []

    def watch(module: Any, args: Any, output: Tensor) -> None:
        output.register_hook(lambda gradient: norms.append(gradient.norm(dim=-1)))

    hooks = [layer.register_forward_hook(watch) for layer in model.model.layers]
    step(model, inputs, "plain")
    for hook in hooks:
        hook.remove()
    return Given(torch.stack(norms).sum(dim=0))


def in_autocast(dtype: torch.dtype | None) -> Callable[[], Any]:
    """The context of mixed precision, or none."""
    if dtype is None:
        return nullcontext
    return lambda: torch.autocast("cpu", dtype=dtype)
