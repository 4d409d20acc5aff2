"""Computes the model's loss outside of it, from its last hidden states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError
from apportion.finetune.calls import uncompiled
from apportion.finetune.loss import Head, chunked_loss
from apportion.finetune.settings import Settings

# Rows of the check that our logits are the model's.
CHECKED_ROWS = 4
# Arguments by which trainers ask their own patch of the forward for a fused loss; ours steps aside.
FUSED = ("fused_lm_head", "skip_logits")


@dataclass
class _Pending:
    labels: Tensor
    shifted: bool
    num_items: Any
    hidden: Tensor | None = None
    autocast: Callable[[], Any] | None = None


class OutsideLoss:
    """Takes labels away from the model's call, and puts the loss into its output.

    Where a final norm is found, its input is taken and the norm becomes part of each chunk, so that
    neither the normed rows nor what its backward needs of them is ever held.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model = model
        self.decoder = models.decoder_of(model)
        self.norm = models.final_norm(model)
        linear = models.output_head(model)
        self.head = None
        if linear is not None:
            self.head = Head(self.norm, linear, models.final_softcap(model))
        self._pending: _Pending | None = None

    def watch(self) -> Callable[[], None]:
        """Hook in; returns what takes the hooks out again."""
        if self.head is None:
            return lambda: None
        self._check_head()
        if self.norm is not None:
            hook = self.norm.register_forward_pre_hook(self._before_norm)
        else:
            hook = self.decoder.register_forward_hook(self._after_decoder)
        return hook.remove

    def take_over(self, given: dict[str, Any]) -> None:
        """Remove the labels from the arguments of a call, when the loss is one we compute."""
        self._pending = None
        labels, shifted = given.get("labels"), given.get("shift_labels")
        ids = given.get("input_ids")
        target = labels if shifted is None else shifted
        if self.head is None or target is None:
            return
        if ids is not None and target.shape != ids.shape:
            return  # a classifier's labels
        if any(given.get(name) for name in FUSED):
            return
        if given.get("output_router_logits"):
            raise InputError(
                "expected output_router_logits=False, got True: the router's auxiliary loss is "
                "part of the model's own; pass loss='model' to attach"
            )
        self._pending = _Pending(target, shifted is not None, given.pop("num_items_in_batch", None))
        given.pop("shift_labels", None)
        given["labels"] = None
        given["logits_to_keep"] = 1

    def finish(self, output: Any) -> Any:
        """Put the loss into the model's output."""
        pending, self._pending = self._pending, None
        if pending is None:
            return output
        if pending.hidden is None or self.head is None:
            raise InputError(
                f"expected {type(self.model).__name__} to run its final norm, it did not; "
                "pass loss='model' to attach"
            )
        loss = chunked_loss(
            pending.hidden,
            pending.labels,
            self.head,
            num_items=pending.num_items,
            shifted=pending.shifted,
            autocast=pending.autocast,
        )
        if isinstance(output, tuple):
            return (loss, *output)
        # Logits of the last row alone; their graph would hold the norm's activations.
        output["logits"] = output["logits"].detach()
        output["loss"] = loss
        return output

    @uncompiled
    def _before_norm(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._pending is None or self._pending.hidden is not None:
            return None
        self._note(args[0])
        # The model's own norm and head then see one row.
        return (args[0][:, -1:].detach(), *args[1:])

    @uncompiled
    def _after_decoder(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._pending is not None:
            self._note(output[0])

    def _note(self, hidden: Tensor) -> None:
        assert self._pending is not None
        self._pending.hidden = hidden
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            self._pending.autocast = lambda: torch.autocast(kind, dtype=dtype)
        else:
            self._pending.autocast = nullcontext

    def _check_head(self) -> None:
        """Compare the logits of a few rows with the model's own."""
        assert self.head is not None
        head, seen = self.head, []
        tap = (self.norm or self.head.linear).register_forward_pre_hook(
            lambda module, args: seen.append(args[0].detach())
        )
        training = self.model.training
        ids = torch.arange(CHECKED_ROWS, device=models.tensor_device(self.model))[None]
        try:
            self.model.eval()
            with torch.no_grad():
                own = self.model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self.model.train(training)
            tap.remove()
        with torch.no_grad():
            ours = head(seen[0][0]).to(own.dtype)
            if head.softcap > 0:
                ours = torch.tanh(ours / head.softcap) * head.softcap
        if not torch.allclose(ours, own, rtol=1e-2, atol=1e-2 * float(own.abs().max())):
            raise InputError(
                f"expected logits that are the head of the normed hidden states, with at most a "
                f"cap; {type(self.model).__name__} scales or changes them otherwise; pass "
                "loss='model' to attach"
            )
