"""What a saliency rule sees of a layer, and what it gives.

A rule scores every row of a layer after the layer's forward, without gradients; larger means more
worth keeping. Scores of different layers are added, so a rule that means shares should give shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apportion.finetune.rows import take


@dataclass(frozen=True)
class View:
    """One layer's forward.

    Attributes:
        hidden, output: rows before and after the layer.
        query, key, value: after position embeddings; None unless the rule asks for attention.
        mask: as the model made it, boolean or added; None: causal.
        scaling, softcap: of the attention scores; `softcap` 0: none.
        real, loss: rows that are not padding; rows whose output is compared with a label.
        generator: for rules that draw; one a step, so that every layer draws anew.
        layer, layers: number of this layer, and how many there are.
    """

    hidden: Float[Tensor, "batch length width"]
    output: Float[Tensor, "batch length width"]
    query: Float[Tensor, "batch heads length size"] | None
    key: Float[Tensor, "batch keyheads length size"] | None
    value: Float[Tensor, "batch keyheads length size"] | None
    mask: Tensor | None
    scaling: float
    softcap: float
    real: Bool[Tensor, "batch length"]
    loss: Bool[Tensor, "batch length"]
    generator: torch.Generator
    layer: int
    layers: int


class Saliency(ABC):
    """A rule that scores rows.

    Attributes:
        name: as the user writes it.
        attention: whether the rule needs queries, keys and values.
        first_only: whether the first layer's score is that of all layers.
        paper: where the rule comes from.
    """

    name: ClassVar[str]
    attention: ClassVar[bool] = False
    first_only: ClassVar[bool] = False
    paper: ClassVar[str]

    @abstractmethod
    def score(self, view: View) -> Float[Tensor, "batch length"]:
        """Score the rows of one layer, float32."""


def attention_of(
    view: View, queries: Tensor
) -> tuple[Float[Tensor, "batch heads queries length"], Bool[Tensor, "batch 1 queries length"]]:
    """Attention of some queries over all keys, and which keys each of them sees.

    Never holds more than queries × length numbers a head.

    Args:
        view: a layer with its queries and keys.
        queries: (batch, queries), the rows whose attention is wanted.
    """
    assert view.query is not None
    assert view.key is not None
    q = take(view.query, queries, 2).to(torch.float32)
    k = view.key.to(torch.float32)
    batch, heads, count, size = q.shape
    # Heads that share a key head stand together.
    q = q.reshape(batch, k.shape[1], -1, size)
    scores = (q @ k.transpose(2, 3)).view(batch, heads, count, -1) * view.scaling
    if view.softcap > 0:
        scores = torch.tanh(scores / view.softcap) * view.softcap
    seen = _seen(view, queries)
    scores = scores.masked_fill(~seen, float("-inf"))
    # A padded query may see nothing; its shares are zero, not NaN.
    return torch.softmax(scores, dim=-1).nan_to_num(0.0), seen


def _seen(view: View, queries: Tensor) -> Bool[Tensor, "batch 1 queries length"]:
    if view.mask is None:
        at = torch.arange(view.real.shape[1], device=queries.device)
        causal = queries[:, None, :, None] >= at
        return causal & view.real[:, None, None, :]
    rows = take(view.mask, queries, 2)
    if rows.dtype != torch.bool:
        rows = rows > torch.finfo(rows.dtype).min / 2
    return rows.any(dim=1, keepdim=True)
