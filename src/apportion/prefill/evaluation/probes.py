"""What memory looks like from inside: where it comes from, what stays in it, who looks at it.

Zeng et al. ("Memorize Step by Step", EMNLP 2024) call the first the forgetting curve and the second
the retention ratio.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion import models
from apportion.errors import InputError
from apportion.prefill.context import Context
from apportion.prefill.engine import Chunk
from apportion.prefill.scorers import Scorer, Scores, View
from apportion.prefill.scorers.base import attention_blocks


def forgetting(context: Context, parts: int = 10) -> Float[np.ndarray, "layers parts"]:
    """Share of a layer's memory that comes from each part of the text, the early ones first.

    Memory that favours no part has 1 / parts everywhere; that of random eviction falls off
    geometrically towards the beginning.

    Args:
        context: that was read; the samples of a batch are taken together.
        parts: of equal length; padding is part of the text's length, not of the shares.

    Returns:
        A row for each compressed layer; rows sum to 1.

    Raises:
        InputError: nothing was read, or less than one part.
    """
    if parts < 1 or not context.tokens:
        raise InputError(
            f"expected a text in memory and one part at least, got {context.tokens} tokens and "
            f"parts={parts}"
        )
    rows: list[np.ndarray] = []
    for layer in context.engine.compressed:
        held = context.engine.memory[layer]
        assert held is not None, "a context that was read"
        order = held.order
        if held.real is not None:
            order = order[held.real[:, None].expand_as(order)]
        part = (order.flatten().long() * parts).div(context.tokens, rounding_mode="floor")
        counts = torch.bincount(part, minlength=parts).double()
        rows.append((counts / counts.sum()).cpu().numpy())
    return np.stack(rows) if rows else np.empty((0, parts))


def retention(context: Context) -> Float[np.ndarray, "steps layers"]:
    """Of what a layer kept after each chunk, the share that was in memory before it.

    Returns:
        A row for each chunk, 0 in the first; a column for each compressed layer.
    """
    layers = context.engine.compressed
    steps = [[step.retained[layer] for layer in layers] for step in context.trace]
    return np.array(steps, dtype=np.float64).reshape(len(steps), len(layers))


def attention_shares(
    context: Context, ids: Int[Tensor, " rows"]
) -> Float[np.ndarray, "layers three"]:
    """Where rows after a context look: at the sinks, at the rest of memory, at themselves.

    Args:
        context: that was read; it stays as it was.
        ids: token ids of the rows, a question for example. A few are enough: the attention is
            calculated in float32.

    Returns:
        Mean shares over rows, heads and samples, a row for each compressed layer; rows sum to 1.

    Raises:
        InputError: no rows, or nothing was read.
    """
    if not len(ids) or context.ids is None:
        raise InputError("expected a text in memory and rows to look at it, got none")
    looking = _Looking(len(ids))
    # Entries are never changed in place, so a list of one's own leaves the context as it was.
    engine = copy.copy(context.engine)
    engine.memory, engine.scorer = list(context.engine.memory), looking
    rows = ids.to(models.tensor_device(context.reader.model)).expand(len(context.ids), -1)
    engine.read(Chunk(rows, context.tokens, engine.lengths()))
    return np.array(looking.shares, dtype=np.float64).reshape(-1, 3)


class _Looking(Scorer):
    """Notes where the chunk's rows look; a layer at a time, in order."""

    name = "looking"
    paper = "none"

    def __init__(self, rows: int) -> None:
        self.observes, self.window = "window", rows
        self.shares: list[tuple[float, float, float]] = []

    def score(self, view: View) -> Scores:
        assert view.queries is not None
        first = view.real & (view.real.cumsum(dim=1) <= view.sinks)
        first = first[:, : view.memory]
        sinks = memory = own = 0.0
        for attention in attention_blocks(view, view.queries, view.first_row):
            received = attention.sum(dim=(1, 2, 3)).double()
            old = received[:, : view.memory]
            sinks += float((old * first).sum())
            memory += float((old * ~first).sum())
            own += float(received[:, view.memory :].sum())
        total = sinks + memory + own
        self.shares.append((sinks / total, memory / total, own / total))
        return Scores(torch.zeros(view.order.shape, device=view.keys.device))
