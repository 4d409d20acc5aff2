"""One call attaches the sparse backward to a model, one detaches it.

Nothing is patched: layers get another checkpointing function, the model another registered
attention and three hooks, all on the instance, and `detach` puts back what was there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError
from apportion.finetune import attention
from apportion.finetune.calls import uncompiled
from apportion.finetune.checkpoint import Layer, run_layer
from apportion.finetune.fitted import rows_for
from apportion.finetune.ledger import Ledger
from apportion.finetune.outside import OutsideLoss
from apportion.finetune.products import Products
from apportion.finetune.published import run_published
from apportion.finetune.report import Report, report_of
from apportion.finetune.saliency import Saliency
from apportion.finetune.settings import Settings, TopP, check
from apportion.finetune.step import Step
from apportion.finetune.tokens import describe

log = logging.getLogger("apportion.finetune")
_MISSING = object()


def attach(
    model: nn.Module,
    keep: float | TopP | str = 0.25,
    *,
    saliency: str | Saliency = "attention",
    rest: str = "4bit",
    backward: str = "auto",
    choose: str | None = None,
    per: str | None = None,
    loss: str = "chunked",
    exact: float | None = None,
    seed: int = 0,
) -> Handle:
    """Fine-tune with fewer stored activations, and where it pays with a sparse backward.

    The forward is the model's own, and the loss does not depend on these settings. What differs is
    what each decoder layer stores (see `apportion.finetune.store`) and which rows its backward
    computes. Evaluation and generation are unchanged.

    After SAGE: Kim & Lee, "Forward Knows Efficient Backward Path: Saliency-Guided Memory-Efficient
    Fine-tuning of LLMs", ACL 2025.

    Args:
        model: a decoder of transformers, also inside PEFT or data parallelism.
        keep: share of rows that a sparse backward computes, in (0, 1]; or `TopP`; or the bytes that
            all layers together may store, such as "200MB". At 1 every row is exact, and gradients
            are those of gradient checkpointing, bit for bit.
        saliency: which rows: "attention", "last-query", "update", "value", "norm", "random", or an
            object of your own class; "published": the whole of SAGE as released, for comparison,
            with its own forward. The first four real tokens of every packed segment and the
            rows with loss come first, as many as fit.
        rest: what is stored of the other rows: "8bit", "4bit" or "drop" (their keys and values).
        backward: "full" computes all rows, "sparse" the kept ones, "auto" the kept ones where few
            rows carry loss (at most 0.8 of `keep`).
        choose: when the rows of a sparse backward are chosen: "start" (from each layer's, or the
            first layer's saliency), "forward" (at its end, from the sum over layers; the default),
            or "backward" (from the upstream gradient).
        per: "model", one set of rows for all layers (the default), or "layer".
        loss: "chunked" never holds all logits; "model" leaves the loss to the model.
        exact: share of rows stored in the model's dtype; by default `keep` for a sparse backward,
            and the sinks and a few rows more for a full one.
        seed: of the rules that draw.

    Returns:
        A handle: a context manager, or call its `detach`.

    Raises:
        InputError: a value outside its range, a model that can't be served (by name), or one that
            is attached already.
    """
    choose = choose or ("start" if rest == "drop" else "forward")
    per = per or ("layer" if choose == "backward" else "model")
    settings = check(keep, saliency, rest, backward, choose, per, loss, exact, seed)
    return Handle(model, settings)


class Handle:
    """A model with the sparse backward attached.

    Attributes:
        settings: as checked.
        ledger: what was stored and kept at the last step.
        steps: batches seen; seeds the rules that draw, so a resumed run sets it.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.settings = settings
        self.model = model
        self.inner = models.unwrap(model)
        self.ledger = Ledger()
        self._undo: list[Callable[[], None]] = []
        self._step: Step | None = None
        self.steps = 0
        self._labels: Tensor | None = None
        self._said: set[str] = set()
        modules = models.decoder_layers(self.inner)
        self._refuse(modules)
        self._layers = [
            Layer(
                module,
                k,
                models.routes_experts(module),
                self.ledger.held,
                self.ledger.computed,
                self._is_attached,
                Products(module, models.routes_experts(module)),
            )
            for k, module in enumerate(modules)
        ]
        self._outside = OutsideLoss(self.inner, settings) if settings.loss == "chunked" else None
        try:
            self._attach()
        except BaseException:
            self.detach()
            raise

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Give the model back as it was; a second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def report(self) -> Report:
        """What the last step stored and kept, layer by layer.

        Raises:
            InputError: there has been no step.
        """
        return report_of(self.ledger, self.settings)

    def _is_attached(self) -> bool:
        return bool(self._undo)

    @contextmanager
    def labels(self, labels: Tensor) -> Generator[None]:
        """Say which rows carry loss, for a loop that computes its own.

        Args:
            labels: (batch, length), -100 where there is none, as a Hugging Face model takes them.
        """
        self._labels = labels
        try:
            yield
        finally:
            self._labels = None

    def _refuse(self, modules: list[nn.Module]) -> None:
        models.check_sharding(modules)
        for module in modules:
            function = getattr(module, "_gradient_checkpointing_func", None)
            owner = getattr(getattr(function, "func", None), "__self__", None)
            if isinstance(owner, Handle):
                raise InputError(
                    f"expected a model that nothing is attached to, got {type(self.inner).__name__}"
                    ", which has a handle attached; call its detach() first"
                )
        if self.settings.backward != "full" and not self.settings.everything:
            for module in modules:
                attention.check_sparse(models.implementation(self.inner), module)

    def _attach(self) -> None:
        for layer in self._layers:
            self._set(layer.module, "_gradient_checkpointing_func", partial(self._run, layer))
            self._set(layer.module, "gradient_checkpointing", True)
        own = models.RoutedAttention(self.inner, attention.routed)
        self._undo.append(own.restore)
        before = self.model.register_forward_pre_hook(self._before, with_kwargs=True)
        after = self.model.register_forward_hook(self._after, with_kwargs=True, always_call=True)
        self._undo += [before.remove, after.remove]
        if self._outside is not None:
            self._undo.append(self._outside.watch())

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        old = module.__dict__.get(name, _MISSING)

        def undo() -> None:
            if old is _MISSING:
                delattr(module, name)
            else:
                setattr(module, name, old)

        setattr(module, name, value)
        self._undo.append(undo)

    @uncompiled
    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Read the batch; leave the loss to `OutsideLoss`."""
        self._step = None
        if not (self.inner.training and torch.is_grad_enabled()):
            return None
        self._check_hook()
        given = models.arguments_of(module, args, kwargs)
        ids = given.get("input_ids")
        ids = given.get("inputs_embeds") if ids is None else ids
        if ids is None:
            return None
        labels = self._labels if self._labels is not None else given.get("labels")
        if labels is None:
            self._say("no labels given: every real token counts as carrying loss")
        tokens = describe(
            (ids.shape[0], ids.shape[1]),
            ids.device,
            labels,
            given.get("attention_mask"),
            given.get("position_ids"),
            given.get("shift_labels"),
        )
        self._begin(tokens)
        given["use_cache"] = False
        if self._outside is not None:
            self._outside.take_over(given)
        return (), given

    def _begin(self, tokens: Any) -> Step:
        share = tokens.loss_share
        settings = self._fitted(*tokens.real.shape)
        backward = settings.backward_for(share)
        if settings.backward == "auto":
            self._say(f"{share:.0%} of the rows carry loss: {backward} backward")
        self._step = Step(settings, tokens, backward, self.steps, len(self._layers))
        self.steps += 1
        self.ledger.begin(self._step)
        return self._step

    def _fitted(self, batch: int, length: int) -> Settings:
        """The settings, with the rows that a byte budget allows for this batch."""
        settings = self.settings
        if settings.budget is None or settings.bits is None:
            return settings
        width, element = models.row_size(self.inner)
        rows = rows_for(
            settings.budget, length, batch, width, settings.bits, element, len(self._layers)
        )
        return settings.with_rows(rows, length)

    @uncompiled
    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Choose the rows; compute the loss."""
        step, self._step = self._step, None
        if step is not None:
            step.end_forward()
        if self._outside is not None and output is not None:
            return self._outside.finish(output)
        return output

    @uncompiled
    def _run(self, layer: Layer, call: Callable[..., Any], hidden: Tensor, *rest: Any) -> Any:
        """What a decoder layer calls instead of checkpointing."""
        if not torch.is_grad_enabled():
            return call(hidden, *rest)
        step = self._step
        if step is None or step.tokens.real.shape != hidden.shape[:2]:
            self._say(
                "the decoder is called without the model: every token counts as real, and "
                "as carrying loss unless labels were given"
            )
            step = self._begin(
                describe((hidden.shape[0], hidden.shape[1]), hidden.device, self._labels)
            )
        if self.settings.published:
            output, kept = run_published(layer.number, step, call, hidden, rest)
            self.ledger.computed(layer.number, kept)
            return output
        return run_layer(layer, step, call, hidden, rest)

    def _check_hook(self) -> None:
        for layer in self._layers:
            function = getattr(layer.module, "_gradient_checkpointing_func", None)
            if (
                getattr(function, "func", None) != self._run
                or not layer.module.gradient_checkpointing
            ):  # pyright: ignore[reportGeneralTypeIssues]
                raise InputError(
                    "expected the layers' checkpointing hook as attach left it, got another: "
                    "gradient checkpointing was switched on (or off) afterwards, and would take "
                    "the place of what was attached; pass gradient_checkpointing=False "
                    "(activation_checkpointing=False by its newer name) to the training arguments; "
                    "TRL's SFTConfig turns it on by default"
                )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info(text)
