"""Cross-entropy from the last hidden states, in chunks of rows: logits of all rows never exist.

At 4 × 512 tokens and a vocabulary of 49,152, the logits of SmolLM2 take 403 MB in float32, nearly
three times what gradient checkpointing stores of all its layers. Here a chunk of rows is normed,
multiplied by the head and compared; its gradient follows at once, so that only gradients of the
hidden states (and of the head, where it is trained) outlive the chunk. Rows without a label are
never computed. After Cut Cross Entropy (Wijmans et al., ICLR 2025) and Liger's fused linear
cross-entropy, which do it in one GPU kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apportion.errors import InputError
from apportion.finetune.fused import fused_loss
from apportion.finetune.leaves import gradients_of
from apportion.finetune.tokens import IGNORED

# Numbers of a chunk's logits: 64 MB in float32. Products of fewer rows are slower.
CHUNK_NUMBERS = 2**24


@dataclass(frozen=True)
class Head:
    """How hidden states become logits: norm, linear head, cap.

    Attributes:
        norm: the model's final norm, or None when the hidden states are already normed.
        linear: the head; any module.
        softcap: logits become cap * tanh(logits / cap); 0: they stay.
    """

    norm: torch.nn.Module | None
    linear: torch.nn.Module
    softcap: float = 0.0

    def __call__(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocabulary"]:
        """Logits in the model's dtype, before the cap."""
        return self.linear(hidden if self.norm is None else self.norm(hidden))

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained of it."""
        modules = [m for m in (self.norm, self.linear) if m is not None]
        return [p for m in modules for p in m.parameters() if p.requires_grad]


def chunked_loss(
    hidden: Float[Tensor, "batch length width"],
    labels: Int[Tensor, "batch length"],
    head: Head,
    *,
    num_items: int | float | Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORED,
    shifted: bool = False,
    autocast: Callable[[], Any] | None = None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the next token, in nats.

    Args:
        hidden: last hidden states.
        labels: the tokens themselves, `ignore_index` where there is nothing to predict.
        head: from hidden states to logits.
        num_items: what the sum is divided by, for example the labels of all accumulated batches;
            None: the labels of this batch.
        label_smoothing: share of the target spread evenly over the vocabulary.
        shifted: labels stand at the row that predicts them, not one later.
        autocast: gives the context that the model's own head would run in.

    Raises:
        InputError: no row has a label, or a label outside the vocabulary.
    """
    target = (
        labels if shifted else torch.nn.functional.pad(labels[:, 1:], (0, 1), value=ignore_index)
    )
    flat = target.reshape(-1).to(hidden.device)
    rows = (flat != ignore_index).nonzero().squeeze(1)
    if rows.numel() == 0:
        raise InputError(
            f"expected a row with a label at least, got a batch whose labels are all {ignore_index}"
            " (the first token of a sample is never predicted); drop such samples, or raise the "
            "length that they are cut to"
        )
    wanted = flat[rows]
    count = rows.numel() if num_items is None else num_items
    settings = _Settings(head, float(label_smoothing), autocast)
    total = _fused(settings, hidden, rows, wanted)
    if total is None:
        total = _ChunkedLoss.apply(settings, hidden, rows, wanted, *head.parameters())
    assert isinstance(total, Tensor)
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


@dataclass(frozen=True)
class _Settings:
    head: Head
    smoothing: float
    autocast: Callable[[], Any] | None


def _fused(settings: _Settings, hidden: Tensor, rows: Tensor, wanted: Tensor) -> Tensor | None:
    """The sum of the losses by another library's GPU kernel; None where there is none."""
    head = settings.head
    with settings.autocast() if settings.autocast else nullcontext():
        dtype, kind = _dtype(hidden), hidden.device.type
        loss = fused_loss(head.linear, head.softcap, settings.smoothing, dtype, kind)
        if loss is None:
            return None
        x = hidden.reshape(-1, hidden.shape[-1])[rows]
        return loss((x if head.norm is None else head.norm(x)).to(dtype), wanted)


class _ChunkedLoss(torch.autograd.Function):
    """The sum of the cross-entropies; gradients are made in the forward, row chunk by row chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: _Settings,
        hidden: Tensor,
        rows: Tensor,
        wanted: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        flat = hidden.detach().reshape(-1, hidden.shape[-1])
        needs = ctx.needs_input_grad[1] or bool(parameters)
        sums = _Gradients(settings.head, flat, rows.numel()) if needs else None
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        start = 0
        while start < rows.numel():
            part = slice(start, start + _chunk_rows(settings.head))
            total += _one_chunk(settings, flat[rows[part]], wanted[part], sums, part)
            start = part.stop
        ctx.shape = hidden.shape
        if sums is not None:
            ctx.save_for_backward(rows, sums.hidden, *sums.parameters)
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        rows, by_rows, *by_parameters = ctx.saved_tensors
        by_hidden = None
        if ctx.needs_input_grad[1]:
            by_hidden = by_rows.new_zeros(ctx.shape)
            by_hidden.view(-1, ctx.shape[-1]).index_copy_(0, rows, by_rows)
            by_hidden.mul_(upstream[0])
        scaled = [g * upstream[0].to(g.dtype) for g in by_parameters]
        return None, by_hidden, None, None, *scaled


class _Gradients:
    """Sums of gradients over the chunks."""

    def __init__(self, head: Head, flat: Tensor, rows: int) -> None:
        self.trained = head.parameters()
        self.hidden = flat.new_empty(rows, flat.shape[-1])
        self.parameters = [torch.zeros_like(p) for p in self.trained]

    def of(self, parameter: Tensor | None) -> Tensor | None:
        """The sum of one parameter; None where there is none, or it is frozen."""
        pairs = zip(self.trained, self.parameters, strict=True)
        return next((total for p, total in pairs if p is parameter), None)

    def add(self, part: slice, found: Sequence[Tensor | None]) -> None:
        """Add the gradients of a chunk: its rows, then the parameters in order."""
        by_hidden, *by_parameters = found
        assert by_hidden is not None
        self.hidden[part] = by_hidden
        for total, gradient in zip(self.parameters, by_parameters, strict=True):
            if gradient is not None:
                total += gradient


def _chunk_rows(head: Head) -> int:
    weight = getattr(head.linear, "weight", None)
    vocabulary = weight.shape[0] if isinstance(weight, Tensor) else 2**16
    return max(16, CHUNK_NUMBERS // vocabulary)


def _one_chunk(
    settings: _Settings, x: Tensor, wanted: Tensor, sums: _Gradients | None, part: slice
) -> Tensor:
    """The chunk's summed loss; its gradients go into `sums`."""
    head, linear = settings.head, settings.head.linear
    with settings.autocast() if settings.autocast else nullcontext():
        if sums is None:
            with torch.no_grad():
                return _cross_entropy(head(x), wanted, settings)[0]
        x = x.requires_grad_()
        with torch.enable_grad():
            h = x if head.norm is None else head.norm(x)
        if type(linear) is torch.nn.Linear and h.dtype == linear.weight.dtype == _dtype(h):
            loss, by_h = _through_linear(linear, h.detach(), wanted, settings, sums)
            outputs, by_outputs = h, by_h
        else:
            with torch.enable_grad():
                outputs = linear(h)
            loss, by_outputs = _cross_entropy(outputs.detach(), wanted, settings)
    found = gradients_of(outputs, [x, *sums.trained], by_outputs)
    sums.add(part, found)
    return loss


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype that a product of `x` would have here."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _through_linear(
    linear: torch.nn.Linear, h: Tensor, wanted: Tensor, settings: _Settings, sums: _Gradients
) -> tuple[Tensor, Tensor]:
    """The loss behind an ordinary linear layer, and its derivative by `h`.

    Adds to the sums of weight and bias in place: a gradient of the head's own size for every chunk,
    as autograd would make it, costs more time than its product.
    """
    raw = torch.nn.functional.linear(h, linear.weight.detach(), linear.bias)
    loss, by_logits = _cross_entropy(raw.detach(), wanted, settings, reuse=True)
    by_weight = sums.of(linear.weight)
    if by_weight is not None:
        by_weight.addmm_(by_logits.T, h)
    by_bias = sums.of(linear.bias)
    if by_bias is not None:
        by_bias += by_logits.sum(dim=0)
    return loss, by_logits @ linear.weight.detach()


def _cross_entropy(
    raw: Float[Tensor, "rows vocabulary"],
    wanted: Int[Tensor, " rows"],
    settings: _Settings,
    reuse: bool = False,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows vocabulary"]]:
    """Sum of the losses and its derivative by the logits, in the dtype of the logits.

    Args:
        raw: logits before the cap.
        wanted: the tokens to predict.
        settings: of the loss.
        reuse: nobody needs `raw` any more, so its memory may hold the derivative.
    """
    cap, smoothing = settings.head.softcap, settings.smoothing
    dtype = raw.dtype
    wide = torch.promote_types(dtype, torch.float32)
    logits = raw.to(wide)
    if cap > 0:
        logits = torch.tanh(logits / cap) * cap
    vocabulary = logits.shape[-1]
    if int(wanted.max()) >= vocabulary or int(wanted.min()) < 0:
        raise InputError(
            f"expected labels in [0, {vocabulary}) or {IGNORED}, got {int(wanted.min())} to "
            f"{int(wanted.max())}; was the text tokenized with this model's tokenizer?"
        )
    at = logits.gather(1, wanted[:, None])
    top = logits.amax(dim=-1, keepdim=True)
    middle = logits.mean(dim=-1, keepdim=True) if smoothing > 0 else top
    in_place = cap == 0 and (reuse or logits is not raw)
    gradient = torch.softmax(logits, dim=-1, out=logits if in_place else None)
    # The largest probability is exp(top - log of the sum): no second pass over the exponentials,
    # and differences from the top are exact where a log of the sum, itself large, is rounded.
    losses = (1 - smoothing) * (top - at) - gradient.amax(dim=-1, keepdim=True).log()
    if smoothing > 0:
        losses += smoothing * (top - middle)
        gradient -= smoothing / vocabulary
    gradient.scatter_add_(1, wanted[:, None], torch.full_like(at, smoothing - 1))
    if cap > 0:
        gradient *= 1 - (logits / cap) ** 2
    return losses.sum(), gradient.to(dtype)
