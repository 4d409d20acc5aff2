"""A whole decoder's step from the traces of its kinds of layers: bytes at the peak, seconds.

    forward     level rises by what each layer stores, plus the transient of the layer that runs
    backward    from the top: level falls by what a layer stored, rises by its parameters' gradients

So the peak is at the top or at the bottom of the backward, or in the loss between; the timeline
goes through all of them and takes the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apportion.finetune.trace import Lap, Trace

ITEMS = ("weights", "optimizer", "gradients", "activations", "loss", "workspace")


@dataclass(frozen=True)
class Place:
    """What a decoder's layer is, among the traces.

    Attributes:
        trace: of its kind.
        steady: the layer of the trace that stands for it.
        gradient_bytes: of its trainable parameters.
    """

    trace: Trace
    steady: int
    gradient_bytes: int

    @property
    def forward(self) -> Lap:
        return self.trace.forward[self.steady]

    @property
    def backward(self) -> Lap:
        return self.trace.backward[self.steady]


@dataclass(frozen=True)
class Moment:
    """Bytes above weights and optimizer states at one point of the step, by what they are for.

    Attributes:
        name: of the point.
        gradients: of parameters of layers that are done, and of what is not a layer at the end.
        activations: what layers hold for their backward.
        loss: logits, their gradients, and what is left of them.
        workspace: what the layer that runs makes and frees.
    """

    name: str
    gradients: int = 0
    activations: int = 0
    loss: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        return self.gradients + self.activations + self.loss + self.workspace


@dataclass(frozen=True)
class Timeline:
    """A step.

    Attributes:
        moments: in order; the highest one is the peak.
        stored: bytes that all layers hold at the end of the forward.
        seconds: without the optimizer.
    """

    moments: tuple[Moment, ...]
    stored: int
    seconds: float

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda m: m.total)


def timeline(places: Sequence[Place], gradient_bytes: int, optimizer_workspace: int) -> Timeline:
    """Go through a step of a decoder.

    Args:
        places: one a layer, the lowest first; its `steady` is the trace's first layer there.
        gradient_bytes: of all trainable parameters.
        optimizer_workspace: bytes that the optimizer's update makes and frees.
    """
    bottom, top = places[0].trace, places[-1].trace
    moments = [Moment("before the layers", workspace=bottom.before.highest)]
    level = bottom.before.end
    for number, place in enumerate(places):
        lap = place.forward
        moments.append(Moment(f"forward of layer {number}", 0, level, 0, max(0, lap.rise)))
        level += lap.change
    stored = level
    moments.append(Moment("the loss", 0, level, max(0, top.loss.rise)))
    level += top.loss.change
    over = max(0, level - stored) + max(0, top.loss_backward.rise)
    moments.append(Moment("the backward of the loss", 0, min(stored, level), over))
    level += top.loss_backward.change
    done, held = 0, stored
    for number in reversed(range(len(places))):
        place = places[number]
        lap = place.backward
        moments.append(_backward(f"backward of layer {number}", level, done, held, lap.rise))
        level += lap.change
        done += place.gradient_bytes
        held -= place.forward.change
    moments.append(_backward("the backward of the embeddings", level, done, 0, bottom.after.rise))
    moments.append(Moment("the optimizer", gradient_bytes, workspace=optimizer_workspace))
    return Timeline(tuple(moments), stored, _seconds(places))


def _backward(name: str, level: int, gradients: int, held: int, rise: int) -> Moment:
    gradients = max(0, min(gradients, level))
    activations = max(0, min(held, level - gradients))
    return Moment(name, gradients, activations, level - gradients - activations, max(0, rise))


def _seconds(places: Sequence[Place]) -> float:
    bottom, top = places[0].trace, places[-1].trace
    ends = (bottom.before, top.loss, top.loss_backward, bottom.after)
    layers = (lap.seconds for place in places for lap in (place.forward, place.backward))
    return sum(lap.seconds for lap in ends) + sum(layers)
