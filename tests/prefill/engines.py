"""Engines on tiny decoders, driven chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.scorers import get_scorer
from finetune import tiny

EVERYTHING = 10**6  # a budget that never evicts
QUESTIONS = [torch.tensor([5, 60, 7]), torch.tensor([80]), torch.tensor([9, 9, 10, 11, 12])]


def ids_of(*sizes: int, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """Token ids padded on the left, and which are real; None if all are."""
    made = tiny.batch(sizes, side="left", seed=seed)
    real = made["attention_mask"] == 1
    return made["input_ids"], None if bool(real.all()) else real


def engine_of(model: nn.Module, scorer: object = "streaming", **options) -> Engine:
    return Engine(model, get_scorer(scorer), **options)


def chunks(
    ids: Tensor,
    real: Tensor | None,
    sizes: Sequence[int] | int,
    budget: int | Sequence[int],
    layers: int,
    questions: Sequence[Tensor] = (),
) -> list[Chunk]:
    """A text in chunks; of one size, or of given ones; a budget for all, or one a chunk."""
    if isinstance(sizes, int):
        sizes = [min(sizes, ids.shape[1] - k) for k in range(0, ids.shape[1], sizes)]
    budgets = [budget] * len(sizes) if isinstance(budget, int) else budget
    found, start = [], 0
    for size, own in zip(sizes, budgets, strict=True):
        cut = slice(start, start + size)
        flags = None if real is None else real[:, cut]
        if flags is not None and bool(flags.all()):
            flags = None
        found.append(Chunk(ids[:, cut], start, [own] * layers, flags, questions))
        start += size
    return found


def read(engine: Engine, ids: Tensor, real: Tensor | None = None, sizes=7, budget=EVERYTHING,
         questions: Sequence[Tensor] = ()) -> Tensor:  # fmt: skip
    """Logits (batch, tokens, vocabulary) of a whole text, read in chunks."""
    parts = chunks(ids, real, sizes, budget, engine.layers, questions)
    return torch.cat([engine.read(part, logits=0)[0] for part in parts], dim=1)


@torch.no_grad()
def plain(model: nn.Module, ids: Tensor, real: Tensor | None = None) -> Tensor:
    """Logits of one forward, as the model itself does it."""
    training = model.training
    model.eval()
    given = {} if real is None else {"attention_mask": real.long()}
    if real is not None:
        given["position_ids"] = (real.long().cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, use_cache=False, **given).logits
    model.train(training)
    return out


def snapshot(engine: Engine) -> list[dict[str, Tensor]]:
    """Copies of all that is remembered."""
    found = []
    for held in engine.memory:
        parts = {"keys": held.keys, "values": held.values, "order": held.order, **held.carried}
        if held.real is not None:
            parts["real"] = held.real
        found.append({name: x.clone() for name, x in parts.items()})
    return found


def same(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]]) -> bool:
    """Bit-equal."""
    return all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
        for x, y in zip(a, b, strict=True)
    )


def places(engine: Engine, layer: int, sample: int, head: int) -> list[int]:
    """Where in the text the real entries of a head stand."""
    held = engine.memory[layer]
    order = held.order[sample, head]
    return order.tolist() if held.real is None else order[held.real[sample]].tolist()


def near(found: Tensor, expected: Tensor, close: float = 1e-4) -> bool:
    """Within a share of the largest number, or of 1."""
    return float((found - expected).abs().max()) < close * max(1.0, float(expected.abs().max()))
