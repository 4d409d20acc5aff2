"""Which rows (tokens) of a batch are kept: ranking, and moving rows in and out.

A selection is `kept`, int64 of shape (batch, kept), ascending in every sample. Its width follows
from the keep ratio alone, never from the data, so that shapes are the same at every step.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.finetune.tokens import Tokens


def kept_count(keep: float, length: int) -> int:
    """Rows that a keep ratio leaves of `length`: rounded up, one at least."""
    # The small slack keeps 0.1 * 30 = 3.0000000000000004 at 3 rows.
    return min(length, max(1, math.ceil(keep * length - 1e-9)))


def select(
    score: Float[Tensor, "batch length"], tokens: Tokens, count: int
) -> Int[Tensor, "batch kept"]:
    """The `count` rows to keep in every sample.

    Sinks come first, then the rows that carry loss, then the rest by score; padding only fills up.
    Inside one tier rows compete by their rank within their own packed segment, so that each segment
    gets its share however large its scores are.

    Args:
        score: larger is more worth keeping.
        tokens: what each row is.
        count: rows to keep, of all rows.
    """
    tier = torch.where(tokens.real, 0, -1)
    tier = torch.where(tokens.loss, 1, tier)
    tier = torch.where(tokens.sink, 2, tier)
    place = _place_in_segment(score, tier, tokens.segment)
    order = torch.argsort(tier - place, dim=1, descending=True, stable=True)
    return order[:, :count].sort(dim=1).values


def _place_in_segment(
    score: Float[Tensor, "batch length"],
    tier: Int[Tensor, "batch length"],
    segment: Int[Tensor, "batch length"],
) -> Float[Tensor, "batch length"]:
    """Rank of every row in its segment, best 0, over the segment's length: in [0, 1)."""
    length = score.shape[1]
    # Three stable sorts, the weightiest key last.
    order = torch.argsort(score, dim=1, descending=True, stable=True)
    order = order.gather(
        1, torch.argsort(tier.gather(1, order), dim=1, descending=True, stable=True)
    )
    order = order.gather(1, torch.argsort(segment.gather(1, order), dim=1, stable=True))
    by_segment = segment.gather(1, order)
    at = torch.arange(length, device=score.device).expand_as(by_segment)
    first = torch.ones_like(by_segment, dtype=torch.bool)
    first[:, 1:] = by_segment[:, 1:] != by_segment[:, :-1]
    start = torch.where(first, at, 0).cummax(dim=1).values
    sizes = torch.zeros_like(segment).scatter_add(1, segment, torch.ones_like(segment))
    place = (at - start).to(torch.float64) / sizes.gather(1, by_segment)
    return torch.empty_like(place).scatter(1, order, place)


def others(kept: Int[Tensor, "batch kept"], length: int) -> Int[Tensor, "batch others"]:
    """The rows that are not kept, ascending."""
    free = torch.ones(kept.shape[0], length, dtype=torch.bool, device=kept.device)
    free.scatter_(1, kept, False)
    # Every sample has the same number of them: a stable sort brings them to the front.
    order = torch.argsort(free.to(torch.uint8), dim=1, descending=True, stable=True)
    return order[:, : length - kept.shape[1]]


def take(x: Tensor, index: Int[Tensor, "batch rows"], dim: int = 1) -> Tensor:
    """Rows of `x` (batch first, or one sample that stands for all) along `dim`.

    Args:
        x: (batch or 1, ..., length at `dim`, ...).
        index: the rows of every sample.
        dim: the axis of the rows.

    Returns:
        (batch, ..., rows at `dim`, ...)
    """
    if dim == 1 and x.ndim > 2:
        # Whole rows are copied, which is faster than number by number.
        lines = x.flatten(0, 1).index_select(0, _lines(index, *x.shape[:2]))
        return lines.unflatten(0, tuple(index.shape))
    x = x.expand(index.shape[0], *x.shape[1:])
    shape = [1] * x.ndim
    shape[0], shape[dim] = index.shape
    size = list(x.shape)
    size[dim] = index.shape[1]
    return x.gather(dim, index.view(shape).expand(size))


def put(out: Tensor, index: Int[Tensor, "batch rows"], values: Tensor) -> Tensor:
    """Write `values` (batch, rows, ...) over the rows of `out` (batch, length, ...), in place.

    `out` is contiguous.
    """
    lines = out.view(-1, *out.shape[2:])
    lines.index_copy_(0, _lines(index, *out.shape[:2]), values.flatten(0, 1))
    return out


def add(out: Tensor, index: Int[Tensor, "batch rows"], values: Tensor) -> Tensor:
    """Add `values` (batch, rows, ...) to the rows of `out` (batch, length, ...), in place.

    `out` is contiguous, and no row is named twice.
    """
    lines = out.view(-1, *out.shape[2:])
    lines.index_add_(0, _lines(index, *out.shape[:2]), values.flatten(0, 1))
    return out


def _lines(index: Int[Tensor, "batch rows"], batch: int, length: int) -> Int[Tensor, " lines"]:
    """Rows of every sample as rows of one long table; a single sample stands for all."""
    if batch == 1:
        return index.flatten()
    first = torch.arange(batch, device=index.device)[:, None] * length
    return (index + first).flatten()
