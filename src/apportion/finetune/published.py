"""SAGE as its authors released it, for comparison: `attach(model, saliency="published")`.

Before a layer runs, the attention of the last query scores the rows, and the smallest set whose
share reaches 0.8 is selected, 8 rows at least, sinks and the last row among them, as many in every
sample as the largest set of the batch has. In the first tenth of the layers all rows go forward and
gradients flow through the selected ones. In deeper layers only the selected rows enter the layer;
the others pass it by on the residual, so the training forward is another than that of evaluation,
and the loss depends on the selection.

An implementation from the description, without the faults of the released code: queries and keys
get gradients, and the scores come from one row of the attention, not from all of them.

Kim & Lee, "Forward Knows Efficient Backward Path: Saliency-Guided Memory-Efficient Fine-tuning of
LLMs", ACL 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.errors import InputError
from apportion.finetune import attention
from apportion.finetune.calls import Rows
from apportion.finetune.rows import others, take
from apportion.finetune.saliency.last_query import LastQuery
from apportion.finetune.step import Step, view_of

SHARE = 0.8
LEAST = 8
# One layer in this many, from the first on, sends all rows forward.
FULL_LAYERS = 10


def run_published(
    layer: int, step: Step, call: Callable[..., Any], hidden: Tensor, rest: Sequence[Any]
) -> tuple[Float[Tensor, "batch length width"], Int[Tensor, "batch kept"]]:
    """A decoder layer's output, and the rows that were selected."""
    rows = Rows(call, tuple(rest), (hidden.shape[0], hidden.shape[1]))
    seen = _keys(rows, hidden)
    kept = _selected(step, hidden, seen, layer)
    rest_rows = others(kept, step.length)
    if layer < max(1, step.layers // FULL_LAYERS):
        with torch.no_grad():
            everything = rows.whole(hidden)
        route = attention.Join(
            kept, rest_rows, take(seen.key, rest_rows, 2), take(seen.value, rest_rows, 2)
        )
        with attention.on(route):
            selected = rows.at(kept)(take(hidden, kept))
        # What is not selected keeps its gradient along the residual alone.
        passed = everything + (hidden - hidden.detach())
        return _over(passed, kept, selected), kept
    nobody = rest_rows[:, :0]
    route = attention.Join(kept, nobody, seen.key[:, :, :0], seen.value[:, :, :0])
    with attention.on(route):
        selected = rows.at(kept)(take(hidden, kept))
    return _over(hidden, kept, selected), kept


def _keys(rows: Rows, hidden: Tensor) -> attention.Seen:
    stop = attention.Stop()
    with suppress(attention.Stopped), torch.no_grad(), attention.on(stop):
        rows.whole(hidden)
    if stop.seen is None:
        raise InputError(
            "expected attention to go through the registry of attention functions; it did not; "
            "saliency='published' can't be used with this model"
        )
    return stop.seen


def _selected(
    step: Step, hidden: Tensor, seen: attention.Seen, layer: int
) -> Int[Tensor, "batch kept"]:
    real = step.tokens.real
    with torch.no_grad():
        share = LastQuery().score(view_of(step, hidden, hidden, seen, layer))
        ordered = share.sort(dim=1, descending=True).values
        reached = ordered.cumsum(dim=1) - ordered
        count = max(LEAST, int((reached < SHARE).sum(dim=1).max()))
        at = torch.arange(step.length, device=real.device)
        last = torch.where(real, at, -1).max(dim=1, keepdim=True).values
        first_four = (real.cumsum(dim=1) <= 4) & real
        forced = first_four | (at == last)
        score = torch.where(real, share, -1.0) + forced
        return score.topk(min(count, step.length), dim=1).indices.sort(dim=1).values


def _over(base: Tensor, kept: Int[Tensor, "batch kept"], selected: Tensor) -> Tensor:
    index = kept[..., None].expand_as(selected)
    return base.scatter(1, index, selected)
