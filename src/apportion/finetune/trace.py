"""Where one training step's bytes and seconds go: laps between the layers, forward and backward.

Hooks set marks as the step runs: before each decoder layer and before the final norm in the
forward; in the backward where the gradient of each layer's output is known. Between two marks lies
a lap: the bytes alive at its start and its end, the most in between, and its seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError
from apportion.meter import Meter


@dataclass(frozen=True)
class Lap:
    """A stretch of the step.

    Attributes:
        start, highest, end: bytes alive.
        seconds: wall time.
    """

    start: int = 0
    highest: int = 0
    end: int = 0
    seconds: float = 0.0

    @property
    def rise(self) -> int:
        """Bytes of the peak above the start."""
        return self.highest - self.start

    @property
    def change(self) -> int:
        """Bytes that are there afterwards and were not before."""
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """One step of a decoder.

    Attributes:
        before: embeddings, position embeddings and masks.
        forward: one lap a layer.
        loss: norm, head and loss.
        loss_backward: back to the gradient of the last layer's output.
        backward: one lap a layer, in the order of the layers; empty where none was needed. With
            frozen embeddings the lowest one reaches to the end of the step.
        after: the embedding's.
    """

    before: Lap
    forward: tuple[Lap, ...]
    loss: Lap
    loss_backward: Lap
    backward: tuple[Lap, ...]
    after: Lap

    def with_seconds(self, others: Sequence[Trace]) -> Trace:
        """These bytes, with the medians of the seconds of other traces of the same step."""

        def each(take: Callable[[Trace], Lap]) -> Lap:
            lap = take(self)
            seconds = median(take(other).seconds for other in others)
            return Lap(lap.start, lap.highest, lap.end, seconds)

        layers = range(len(self.forward))
        return Trace(
            each(lambda t: t.before),
            tuple(each(lambda t, k=k: t.forward[k]) for k in layers),
            each(lambda t: t.loss),
            each(lambda t: t.loss_backward),
            tuple(each(lambda t, k=k: t.backward[k]) for k in layers),
            each(lambda t: t.after),
        )


@dataclass
class _Recorder:
    meter: Meter | None
    device: torch.device
    laps: dict[tuple[str, int], Lap] = field(default_factory=dict)
    _open: tuple[tuple[str, int], int, float] | None = None

    def mark(self, name: str, number: int = 0) -> bool:
        """Close the open lap and open the next, unless that has been already; whether it did."""
        key = (name, number)
        if key in self.laps or (self._open is not None and self._open[0] == key):
            return False
        self.close()
        level = 0 if self.meter is None else self.meter.bytes()
        self._open = (key, level, time.perf_counter())
        return True

    def close(self) -> None:
        """Close the open lap."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._open is not None:
            key, start, since = self._open
            highest = end = 0
            if self.meter is not None:
                highest, end = self.meter.lap(), self.meter.bytes()
            self.laps[key] = Lap(start, highest, end, now - since)
        elif self.meter is not None:
            self.meter.lap()
        self._open = None

    def trace(self, layers: int) -> Trace:
        def lap(name: str, number: int = 0) -> Lap:
            return self.laps.get((name, number), Lap())

        return Trace(
            lap("before"),
            tuple(lap("forward", k) for k in range(layers)),
            lap("loss"),
            lap("loss backward"),
            tuple(lap("backward", k) for k in range(layers)),
            lap("after"),
        )


def record(model: nn.Module, inputs: dict[str, Tensor], meter: Meter | None) -> Trace:
    """Run one forward and backward of `model` and note its laps.

    Parameters' gradients are those of this step afterwards.

    Args:
        model: unwrapped, with a final norm or a decoder that returns its hidden states first.
        inputs: of the call, labels among them.
        meter: entered already; None: seconds only.

    Raises:
        InputError: the model gives no loss, or none with a gradient.
    """
    layers = models.decoder_layers(model)
    recorder = _Recorder(meter, models.tensor_device(model))
    with _marks(model, layers, recorder):
        recorder.mark("before")
        loss = model(**inputs, use_cache=False).loss
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            raise InputError(
                f"expected a model with a trainable parameter that computes a loss from labels, "
                f"got {type(model).__name__}, whose loss "
                + ("is missing" if loss is None else "has no gradient")
            )
        recorder.mark("loss backward")
        loss.backward()
        recorder.close()
    return recorder.trace(len(layers))


@contextmanager
def _marks(model: nn.Module, layers: list[nn.Module], recorder: _Recorder) -> Generator[None]:
    def backward_of(layer: int, hidden: Tensor) -> None:
        """Mark where the gradient of a layer's output is known; -1: the embeddings'."""
        if hidden.requires_grad:
            name = ("backward", layer) if layer >= 0 else ("after", 0)
            hidden.register_hook(partial(_mark_only, recorder, name))

    def at_layer(
        number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # Later calls compute the layer again in the backward.
        if recorder.mark("forward", number):
            backward_of(number - 1, args[0] if args else kwargs["hidden_states"])

    def at_norm(module: nn.Module, args: tuple[Any, ...]) -> None:
        # Later calls are those of a loss in chunks.
        if recorder.mark("loss"):
            backward_of(len(layers) - 1, args[0])

    def after_decoder(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        at_norm(module, (output[0],))

    hooks = [
        layer.register_forward_pre_hook(partial(at_layer, k), prepend=True, with_kwargs=True)
        for k, layer in enumerate(layers)
    ]
    norm = models.final_norm(model)
    if norm is not None:
        hooks.append(norm.register_forward_pre_hook(at_norm, prepend=True))
    else:
        hooks.append(models.decoder_of(model).register_forward_hook(after_decoder))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mark_only(recorder: _Recorder, name: tuple[str, int], gradient: Tensor) -> None:
    recorder.mark(*name)
