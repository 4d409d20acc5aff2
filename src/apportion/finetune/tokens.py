"""What every row of a batch is: real or padding, with loss or without, of which segment, a sink.

Row t carries loss when the token that follows it is labelled: its output predicts that token. With
several sequences packed into one sample, the first four real tokens of each are its sinks: nearly
all attention that has nowhere else to go ends there (Xiao et al., "Efficient Streaming Language
Models with Attention Sinks", ICLR 2024), so their errors reach every other row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from apportion.errors import InputError

SINKS = 4
IGNORED = -100


@dataclass(frozen=True)
class Tokens:
    """One batch's rows.

    Attributes:
        real: not padding.
        loss: the row's output is compared with a label.
        segment: number of the packed sequence within the sample, from 0.
        sink: among the first four real tokens of its segment.
    """

    real: Bool[Tensor, "batch length"]
    loss: Bool[Tensor, "batch length"]
    segment: Int[Tensor, "batch length"]
    sink: Bool[Tensor, "batch length"]

    @property
    def loss_share(self) -> float:
        """Rows that carry loss, of the real ones."""
        return float(self.loss.sum()) / max(1, int(self.real.sum()))


def describe(
    shape: tuple[int, int],
    device: torch.device,
    labels: Tensor | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    shift_labels: Tensor | None = None,
) -> Tokens:
    """Read one batch's rows from what the model is called with.

    Args:
        shape: (batch, length).
        device: where the rows live.
        labels: (batch, length) with -100 where there is none, as Hugging Face models take them; or
            (batch,) of a classifier that reads each sample's last real row; None: every real row
            carries loss.
        attention_mask: (batch, length), 1 for real tokens; anything else is taken as all real.
        position_ids: (batch or 1, length); a step other than +1 starts a new segment.
        shift_labels: (batch, length), labels at the rows that predict them; go before `labels`.

    Raises:
        InputError: labels of another shape.
    """
    batch, length = shape
    real = torch.ones(shape, dtype=torch.bool, device=device)
    if attention_mask is not None and attention_mask.shape == real.shape:
        real = attention_mask.to(device=device, dtype=torch.bool)
    segment = torch.zeros(shape, dtype=torch.int64, device=device)
    if position_ids is not None and position_ids.ndim == 2:
        at = position_ids.to(device).expand(batch, length)
        segment[:, 1:] = (at[:, 1:] - at[:, :-1] != 1).cumsum(dim=1)
    if shift_labels is not None:
        loss = shift_labels.to(device) != IGNORED
    else:
        loss = _carries_loss(labels, real)
    return Tokens(real, loss, segment, _sinks(real, segment))


def _sinks(
    real: Bool[Tensor, "batch length"], segment: Int[Tensor, "batch length"]
) -> Bool[Tensor, "batch length"]:
    seen = real.cumsum(dim=1)
    # Real tokens before the segment: what has been seen up to its first row, that row excluded.
    first = torch.ones_like(real)
    first[:, 1:] = segment[:, 1:] != segment[:, :-1]
    before = torch.where(first, seen - real.to(seen.dtype), 0).cummax(dim=1).values
    return real & (seen - before <= SINKS)


def _carries_loss(
    labels: Tensor | None, real: Bool[Tensor, "batch length"]
) -> Bool[Tensor, "batch length"]:
    if labels is None:
        return real
    labels = labels.to(real.device)
    if labels.shape == real.shape:
        loss = torch.zeros_like(real)
        loss[:, :-1] = labels[:, 1:] != IGNORED
        return loss
    if labels.shape == real.shape[:1]:
        at = torch.arange(real.shape[1], device=real.device)
        last = torch.where(real, at, -1).max(dim=1, keepdim=True).values
        return real & (at == last)
    raise InputError(
        f"expected labels of shape {tuple(real.shape)} (batch, length), with {IGNORED} where there "
        f"is none, or of shape ({real.shape[0]},) for a classifier; got {tuple(labels.shape)}"
    )
