"""Loss of real text, in nats a token: of what follows a context, and of all of a long text.

A mean over tokens, and every token counts that has something before it: the first of a chunk is
predicted by the last row of the chunk before, numbers that are not finite are an error of the read
and never replaced. Perplexity is its exponential. It hardly tells memories apart, since most of
what a next token needs stands just before it: look at answers too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from apportion.errors import InputError
from apportion.prefill.context import Context
from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.evaluation.held import Held
from apportion.prefill.reader import Reader

_ROWS = 128  # Whose logits are widened to float32 at once.


@dataclass(frozen=True)
class Loss:
    """Of a text.

    Attributes:
        mean: nats a token.
        tokens: that it is the mean of.
        context: as the read left it.
    """

    mean: float
    tokens: int
    context: Context


def loss_after(held: Context | Held, ids: Int[Tensor, " tokens"]) -> float:
    """Mean loss of the tokens that follow a context of one text, which stays as it was.

    Args:
        held: the context.
        ids: the tokens after it.

    Raises:
        InputError: no tokens, or nothing was read.
    """
    if not len(ids) or held.logits is None:
        raise InputError("expected a context and tokens after it, got none")
    ids = ids.to(held.logits.device)
    rows = held.logits[:1]
    if len(ids) > 1:
        more, _ = held.engine.fork(0).read(Chunk(ids[None, :-1], held.tokens, None), logits=0)
        rows = torch.cat([rows, more[0]])
    return float(_losses(rows, ids).mean())


def loss_of(
    reader: Reader, ids: Int[Tensor, "batch tokens"], attention_mask: Tensor | None = None
) -> Loss:
    """Mean loss of all tokens of a text as it is read, the first of all excepted.

    Each is predicted from the memory of its time and its chunk up to it, so this is what a stream
    of text costs in bounded memory.

    Args:
        reader: with its settings.
        ids: token ids.
        attention_mask: 0 for padding, which does not count.

    Raises:
        InputError: as `Reader.read`; fewer than two tokens.
    """
    engine = _Scoring(reader.engine(()))
    context = Context(reader, engine, [])
    context.take(ids, attention_mask, progress=False)
    if not engine.count:
        raise InputError("expected two tokens or more, since the first is not predicted")
    return Loss(engine.total / engine.count, engine.count, context)


class _Scoring(Engine):
    """An engine that adds up the loss of what it reads."""

    def __init__(self, plain: Engine) -> None:
        vars(self).update(vars(plain))
        self.total, self.count = 0.0, 0
        self._last: Tensor | None = None
        self._real: Tensor | None = None

    def read(self, chunk: Chunk, logits: int = 1) -> tuple[Tensor, dict[int, float]]:
        out, retained = super().read(chunk, 0)
        real = chunk.real
        if real is None:
            real = torch.ones(chunk.ids.shape, dtype=torch.bool, device=out.device)
        self._add(out[:, :-1], chunk.ids[:, 1:], real[:, 1:] & real[:, :-1])
        if self._last is not None and self._real is not None:
            self._add(self._last, chunk.ids[:, :1], real[:, :1] & self._real)
        self._last, self._real = out[:, -1:].clone(), real[:, -1:]
        return out[:, -max(1, logits) :].clone(), retained

    def _add(
        self,
        rows: Float[Tensor, "batch rows vocabulary"],
        ids: Int[Tensor, "batch rows"],
        counted: Bool[Tensor, "batch rows"],
    ) -> None:
        for number in range(len(ids)):
            kept = counted[number]
            self.total += float(_losses(rows[number][kept], ids[number][kept]).sum())
            self.count += int(kept.sum())


def _losses(
    rows: Float[Tensor, "rows vocabulary"], ids: Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """Of each row, in float32 and summed as float64."""
    parts = [
        functional.cross_entropy(row.float(), wanted, reduction="none")
        for row, wanted in zip(rows.split(_ROWS), ids.long().split(_ROWS), strict=True)
    ]
    return torch.cat(parts).double()
