"""What a scorer is shown of one layer after one chunk."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.prefill.attention import Entries, Rules
from apportion.prefill.memory import LayerMemory, joined_real
from apportion.prefill.scorers import Scorer, View


def view_of(
    scorer: Scorer,
    seen: Entries,
    new: Entries,
    old: LayerMemory,
    fresh: LayerMemory,
    query: Float[Tensor, "batch heads rows size"],
    rules: Rules,
    budget: int,
    sinks: int,
    generator: torch.Generator,
) -> View:
    """A layer as its scorer wants it; nothing is joined that it doesn't look at.

    Args:
        scorer: says what it needs.
        seen: memory as the chunk saw it.
        new: the chunk's rows and the questions' after them, rotated.
        old: memory as it was held.
        fresh: the chunk as memory will hold it.
        query: of the chunk's rows and the questions'.
        rules: of the layer.
        budget: how many will be kept beside the sinks.
        sinks: how many of the first real entries are kept anyway.
        generator: for scorers that draw.
    """
    text = len(fresh)
    batch, heads = new.keys.shape[:2]
    grouped = query.view(batch, heads, -1, *query.shape[2:])
    rows = {"none": 0, "window": min(scorer.window, text), "chunk": text}[scorer.observes]
    asks = scorer.asks and len(new) > text
    if rows or asks:
        keys = torch.cat([seen.keys, new.keys[:, :, :text]], dim=2)
        values = torch.cat([seen.values, new.values[:, :, :text]], dim=2)
    else:
        # Such a scorer sees places only.
        keys = values = new.keys[:, :, :1].expand(-1, -1, len(old) + text, -1)
    real = joined_real(old, fresh)
    if real is None:
        real = torch.ones(batch, len(old) + text, dtype=torch.bool, device=keys.device)
    carried = {}
    for name, sums in fresh.carried.items():
        before = old.carried.get(name, sums[:, :, :0])
        carried[name] = torch.cat([before, sums], dim=2)
    return View(
        queries=grouped[:, :, :, text - rows : text] if rows else None,
        keys=keys,
        values=values,
        memory=len(old),
        budget=budget,
        scaling=rules.scaling,
        softcap=rules.softcap,
        real=real,
        first_row=text - rows,
        order=torch.cat([old.order, fresh.order], dim=2),
        carried=carried,
        generator=generator,
        questions=grouped[:, :, :, text:] if asks else None,
        sinks=sinks,
    )
