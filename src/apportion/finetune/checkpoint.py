"""The autograd function around one decoder layer: exact forward, backward on what was kept.

    forward    y = layer(x), the model's own code, without a graph; rows of x go into the ladder
    full       all rows come back, exact or from few bits; the layer runs again on all of them
    sparse     the layer runs again on the kept rows; their queries see the keys of all rows

A decoder layer is y = x + f(x), so in a sparse backward the gradient of every row passes along the
residual, dx = dy, and only the branch f is limited to the kept rows. Where the other rows come back
from few bits, they also get the gradient of their keys and values, which the kept queries saw: that
is how they matter to the loss, and two small products a row are all it takes. With every row exact
the full backward does what gradient checkpointing does, bit for bit.

Trainable parameters are inputs of the function: gradients reach them as ordinary ones, which hooks
of data parallelism and accumulation rely on, and a layer behind a frozen embedding still has a
graph. Refused: `backward()` inside the backward, as re-entrant checkpointing does it, which fires
those hooks in the middle of another node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apportion.errors import InputError
from apportion.finetune import attention
from apportion.finetune.calls import Rows
from apportion.finetune.leaves import gradients_of
from apportion.finetune.products import Products
from apportion.finetune.replay import Surroundings
from apportion.finetune.rows import add, others, put, take
from apportion.finetune.step import Step, view_of
from apportion.finetune.store import Kept, keep_all, keep_packed, keep_some


@dataclass(frozen=True)
class Layer:
    """A decoder layer of the model.

    Attributes:
        module: the layer.
        number: from 0.
        routes_experts: whether it holds a mixture of experts.
        held: told what the layer keeps at every step.
        computed: told which rows its sparse backward computes.
        attached: whether the model still has our attention, which a sparse backward needs.
        products: of the layer; those that a backward never reads are left out of it.
    """

    module: torch.nn.Module
    number: int
    routes_experts: bool
    held: Callable[[int, Kept], None]
    computed: Callable[[int, Tensor], None]
    attached: Callable[[], bool]
    products: Products

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that get a gradient."""
        return [p for p in self.module.parameters() if p.requires_grad]


class Run:
    """One call of a layer within a step."""

    def __init__(self, layer: Layer, step: Step, rows: Rows) -> None:
        """Remember the call.

        Raises:
            InputError: an argument beside the hidden states has a gradient, which would be lost.
        """
        name = rows.gradient_elsewhere()
        if name is not None:
            raise InputError(
                f"expected layers that take a gradient for their hidden states alone; "
                f"{type(layer.module).__name__} also gets {name} with a gradient, which would be "
                "lost; this model is not supported"
            )
        self.layer = layer
        self.step = step
        self.rows = rows
        self.surroundings: Surroundings | None = None
        self.score: Tensor | None = None

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> tuple[Tensor, Kept]:
        """Run the layer as the model would; what it keeps."""
        step, settings = self.step, self.step.settings
        self.surroundings = Surroundings(hidden.device)
        scores = step.needs_saliency()
        drops = settings.rest == "drop" and step.backward == "sparse"
        watch = attention.Watch()
        with ExitStack() as stack:
            stack.enter_context(self.surroundings.first(self.layer.routes_experts))
            if drops or (scores and settings.saliency.attention):
                stack.enter_context(attention.on(watch))
            output = self.rows.whole(hidden)
        if not isinstance(output, Tensor):
            raise InputError(
                f"expected a decoder layer that returns its hidden states, got "
                f"{type(output).__name__} from {type(self.layer.module).__name__}; "
                "this model is not supported"
            )
        if scores:
            view = view_of(step, hidden, output, watch.seen, self.layer.number)
            self._note(settings.saliency.score(view))
        kept = self._keep(hidden, watch.seen)
        self.layer.held(self.layer.number, kept)
        return output, kept

    def _note(self, score: Float[Tensor, "batch length"]) -> None:
        if self.step.settings.per == "layer" or self.step.settings.choose == "start":
            self.score = score
        else:
            self.step.add(score)

    def _keep(self, hidden: Tensor, seen: attention.Seen | None) -> Kept:
        step = self.step
        if step.everything_exact:
            return keep_all(hidden.detach())
        index = step.exact_for(self.score)
        bits = step.settings.bits
        if bits is not None:
            return keep_packed(hidden, index, bits, step.fine_for(index))
        if seen is None:
            raise InputError(
                f"expected attention of {type(self.layer.module).__name__} to go through the "
                "registry of attention functions, whose keys and values rest='drop' stores; it "
                "did not; use rest='4bit' with backward='full'"
            )
        return keep_some(hidden, index, seen.key, seen.value)

    def backward(
        self, kept: Kept, upstream: Float[Tensor, "batch length width"]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Gradients of the hidden states and of the trainable parameters."""
        if self.step.backward == "sparse":
            rows = self.step.kept_for(self.score, upstream)
            self.layer.computed(self.layer.number, rows)
            if rows.shape[1] < kept.length:
                if not self.layer.attached():
                    raise InputError(
                        "expected the sparse backward to be attached until loss.backward() has "
                        "run, got a detached model; move loss.backward() before detach(), or "
                        "inside the with block"
                    )
                return self._sparse(kept, rows, upstream)
        return self._gradients(kept.rows(), upstream)

    def _gradients(self, hidden: Tensor, upstream: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The full backward, from all rows."""
        hidden = hidden.detach().requires_grad_()
        trainable = self.layer.trainable()
        output = self._output(hidden)
        by_hidden, *by_parameters = gradients_of(output, [hidden, *trainable], upstream)
        assert by_hidden is not None
        return by_hidden, by_parameters

    def _sparse(
        self, kept: Kept, rows: Int[Tensor, "batch kept"], upstream: Tensor
    ) -> tuple[Tensor, list[Tensor | None]]:
        rest = others(rows, kept.length)
        beside: list[Tensor] = []
        if kept.key is not None and kept.value is not None:
            hidden, key, value = kept.exact.detach(), kept.key, kept.value
        else:
            everything = kept.rows()
            hidden = take(everything, rows)
            beside = [take(everything, rest).requires_grad_()]
            del everything
            key, value = self._keys_values(beside[0], rest)
        route = attention.Join(rows, rest, key, value)
        trainable = self.layer.trainable()
        output = self._output(hidden.requires_grad_(), rows, route)
        found = gradients_of(output, [hidden, *trainable, *beside], take(upstream, rows))
        by_hidden = upstream.clone(memory_format=torch.contiguous_format)
        assert found[0] is not None
        put(by_hidden, rows, found[0].to(upstream.dtype))
        for gradient in found[1 + len(trainable) :]:
            if gradient is not None:
                add(by_hidden, rest, gradient.to(upstream.dtype))
        return by_hidden, found[1 : 1 + len(trainable)]

    def _output(
        self,
        hidden: Tensor,
        rows: Int[Tensor, "batch rows"] | None = None,
        route: attention.Route | None = None,
    ) -> Tensor:
        """The layer's output with its graph, of which only gradients are right."""
        return self.layer.products.for_gradients(
            lambda: self._again(hidden, rows, route), self.layer.trainable()
        )

    def _keys_values(
        self, hidden: Tensor, rows: Int[Tensor, "batch rows"]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of some rows, with their graph: the layer up to its attention."""
        stop = attention.Stop()

        def run() -> None:
            with suppress(attention.Stopped):
                self._again(hidden, rows, stop)

        def read(_: None) -> list[Tensor]:
            return [] if stop.seen is None else [stop.seen.key, stop.seen.value]

        self.layer.products.for_values(run, read)
        if stop.seen is None:
            raise InputError(
                f"expected attention of {type(self.layer.module).__name__} to go through the "
                "registry of attention functions; it did not; use backward='full'"
            )
        return stop.seen.key, stop.seen.value

    def _again(
        self,
        hidden: Tensor,
        rows: Int[Tensor, "batch rows"] | None,
        route: attention.Route | None,
    ) -> Tensor:
        """The layer once more, as it ran the first time, with a graph."""
        assert self.surroundings is not None
        with (
            torch.enable_grad(),
            self.surroundings.again(rows, self.step.length),
            attention.on(route),
        ):
            return self.rows.at(rows)(hidden)


class Checkpoint(torch.autograd.Function):
    """`Run` as a node of the graph."""

    @staticmethod
    def forward(ctx: Any, run: Run, hidden: Tensor, *parameters: Tensor) -> Tensor:
        """The layer's output; parameters are inputs so that they are reached, not used."""
        output, kept = run.forward(hidden)
        ctx.run = run
        ctx.layout, tensors = kept.split()
        ctx.save_for_backward(*tensors)
        ctx.parameters = [(p.shape, p.dtype, p.device) for p in parameters]
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients; a parameter that the kept rows don't reach gets zeros."""
        kept = ctx.layout.join(ctx.saved_tensors)
        by_hidden, found = ctx.run.backward(kept, upstream[0])
        by_parameters = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(found, ctx.parameters, strict=True)
        ]
        return None, by_hidden if ctx.needs_input_grad[1] else None, *by_parameters


def run_layer(
    layer: Layer, step: Step, call: Callable[..., Any], hidden: Tensor, rest: Sequence[Any]
) -> Tensor:
    """A decoder layer's output, with `Checkpoint` as its node."""
    run = Run(layer, step, Rows(call, tuple(rest), (hidden.shape[0], hidden.shape[1])))
    output = Checkpoint.apply(run, hidden, *layer.trainable())
    assert isinstance(output, Tensor)
    return output
