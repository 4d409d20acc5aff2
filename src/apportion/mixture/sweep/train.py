"""One training run: blocks in, held-out losses of every family out.

AdamW at a rate that warms up, stays, and may fall linearly over the last ``decay``
of the run; the reported weights are the mean over the last ``average`` of the
steps. Batches are small (about a thousand tokens), because what counts at these
budgets is the number of steps. The hidden matrices' rate falls as 1/width, so one
``rate`` serves every size (see ``model``).

A run is a function of (corpus, shape, blocks, ratios, seed, recipe): on one machine
with one build of torch the losses repeat to the last bit. The compiled step is made
once per process and shape.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt16
from torch import Tensor

from apportion.errors import InputError
from apportion.mixture.sweep.model import RATE_WIDTH, Decoder, ModelShape

REPORT_SECONDS = 0.5


class DivergedError(RuntimeError):
    """The loss of a run is not finite."""


@dataclass(frozen=True)
class Recipe:
    """How every run of a sweep trains.

    ``rate`` Adam's step size at width 64; ``embedding_rate`` that of embedding and norms;
    ``warmup``, ``decay``, ``average`` shares of the steps; ``batch`` blocks a step;
    ``clip`` the largest gradient norm (0: none); ``compile`` through torch's inductor, which
    takes its time once per process and shape.
    """

    rate: float = 8e-3
    embedding_rate: float = 4e-3
    warmup: float = 0.05
    decay: float = 0.5
    average: float = 0.5
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    batch: int = 8
    compile: bool = True

    def __post_init__(self) -> None:
        shares = (self.warmup, self.decay, self.average)
        if min(self.rate, self.embedding_rate) <= 0 or self.batch < 1:
            raise InputError(f"recipe: expected positive rates and batch; got {self}")
        if any(not 0 <= share <= 1 for share in shares):
            raise InputError(f"recipe: warmup, decay and average are shares of a run; got {self}")

    def factor(self, step: int, steps: int) -> float:
        """Factor on the rates at ``step`` (from 0) of ``steps``."""
        rise = (step + 1) / max(1.0, self.warmup * steps)
        fall = (steps - step) / max(1.0, self.decay * steps)
        return min(1.0, rise, fall)


@dataclass(frozen=True)
class RunResult:
    """Held-out ``losses`` in nats per token by family; speed and seconds of the training alone."""

    losses: dict[str, float]
    tokens: int
    tokens_per_second: float
    seconds: float


@lru_cache(maxsize=8)
def _model(shape: ModelShape, vocab: int, length: int, compiled: bool) -> tuple[Decoder, Any]:
    model = Decoder(shape, vocab, length, torch.Generator())
    call = torch.compile(model, fullgraph=True, dynamic=False) if compiled else model
    return model, call


def train_run(
    shape: ModelShape,
    rows: UInt16[np.ndarray, "blocks time"],
    valid: Mapping[str, UInt16[np.ndarray, "held time"]],
    recipe: Recipe,
    *,
    seed: int,
    vocab: int,
    report: Callable[[int], None] | None = None,
) -> RunResult:
    """Train on ``rows`` in order and measure the loss on every family's ``valid`` blocks.

    ``report`` hears the tokens done so far about twice a second.

    Raises:
        DivergedError: a held-out loss is not finite.
    """
    length = rows.shape[1] - 1
    model, call = _model(shape, vocab, length, recipe.compile)
    model.reset(torch.Generator().manual_seed(seed))
    model.requires_grad_(True)
    blocks = torch.from_numpy(rows.astype(np.int64)).view(-1, recipe.batch, length + 1)
    _loss(call, blocks[0])  # compiles; not part of the time
    start = time.perf_counter()
    weights = _optimise(model, call, blocks, recipe, report)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    losses = {name: _held_out_loss(call, part, recipe.batch) for name, part in valid.items()}
    if not all(math.isfinite(loss) for loss in losses.values()):
        raise DivergedError(f"diverged: held-out losses {losses}; lower the recipe's rate")
    tokens = rows.shape[0] * length
    return RunResult(losses, tokens, tokens / seconds, seconds)


def _loss(call: Any, batch: Tensor) -> Tensor:
    return call(batch[:, :-1], batch[:, 1:])


def _optimise(
    model: Decoder,
    call: Any,
    blocks: Tensor,
    recipe: Recipe,
    report: Callable[[int], None] | None,
) -> list[Tensor]:
    """Train; the mean weights over the last ``average`` of the steps."""
    parameters = list(model.parameters())
    optimizer, rates = _optimizer(model, recipe)
    steps = len(blocks)
    first = steps - max(1, round(recipe.average * steps))
    mean = [torch.zeros_like(p) for p in parameters]
    tokens = blocks.shape[1] * (blocks.shape[2] - 1)
    heard = time.perf_counter()
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * recipe.factor(step, steps)
        _loss(call, blocks[step]).mean().backward()
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(parameters, recipe.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= first:
            with torch.no_grad():
                for average, parameter in zip(mean, parameters, strict=True):
                    average.lerp_(parameter, 1 / (step - first + 1))
        if report is not None and time.perf_counter() - heard > REPORT_SECONDS:
            heard = time.perf_counter()
            report((step + 1) * tokens)
    return mean


def _optimizer(model: Decoder, recipe: Recipe) -> tuple[torch.optim.Optimizer, list[float]]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "embedding"]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or n == "embedding"]
    rates = [recipe.rate * RATE_WIDTH / model.shape.width, recipe.embedding_rate]
    decays = [recipe.weight_decay, 0.0]
    groups = [
        {"params": part, "lr": rate, "weight_decay": decay}
        for part, rate, decay in zip((matrices, others), rates, decays, strict=True)
    ]
    betas = (recipe.beta1, recipe.beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=1e-8, fused=True), rates


def _held_out_loss(call: Any, part: UInt16[np.ndarray, "held time"], batch: int) -> float:
    rows = torch.from_numpy(np.asarray(part).astype(np.int64))
    short = -len(rows) % batch
    # whole batches only, so that the one compiled shape serves; the filling is cut off again
    filled = torch.cat((rows, rows[:1].expand(short, -1)))
    losses = [_loss(call, piece).detach() for piece in filled.split(batch)]
    return float(torch.cat(losses)[: len(rows)].double().mean())
