"""What a step of fine-tuning will take, before anything runs: bytes and seconds of every way.

No formula per architecture and no table of machines: the model's own code runs on this machine, at
the asked batch and length, with two decoder layers in place of all (see `probe`), and a timeline
puts the step of the whole decoder together from the laps of that one (see `timeline`). Refused:
an analytic model of activations, which has to know every kernel and is wrong for the next one.

Bytes are those of live tensors: weights and buffers, two states of every trainable parameter
(AdamW), and what a step makes at its highest point. What the process takes besides (the
interpreter, libraries, blocks that an allocator keeps) is not in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from apportion import models
from apportion.budget import counted, format_bytes, parse_bytes
from apportion.errors import InputError, option
from apportion.finetune import probe
from apportion.finetune.probe import Kind
from apportion.finetune.survey import Progress, Survey
from apportion.finetune.timeline import Timeline
from apportion.finetune.ways import Way, ways_for


@dataclass(frozen=True)
class Option:
    """One way to train, and what it will cost.

    Attributes:
        name: of the way.
        settings: keyword arguments of `attach`; None: without it.
        checkpointing: transformers' gradient checkpointing is on (`gradient_checkpointing=True`).
        cosine: expected, of its gradient to the exact one; see `source`.
        source: where that number is from; measure your own with `fidelity`.
        peak_bytes: weights, optimizer states and the highest point of a step.
        peak_at: that point.
        bytes: what is alive there, by item; sums to `peak_bytes`.
        stored_bytes: activations that all layers hold at the end of the forward.
        seconds: of one step, the optimizer's update in it.
        fits: within the memory asked for; True where none was.
    """

    name: str
    settings: dict[str, Any] | None
    checkpointing: bool
    cosine: float
    source: str
    peak_bytes: int
    peak_at: str
    bytes: dict[str, int]
    stored_bytes: int
    seconds: float
    fits: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self)}


@dataclass(frozen=True)
class Asked:
    """The step that a plan is made for.

    Attributes:
        batch, length: samples of a step, and tokens of each, padding included.
        loss_share: tokens that carry loss, of all, in (0, 1].
        rounds: timed steps of each probe; their median counts.
        memory: bytes that must be enough, if any.
    """

    batch: int
    length: int
    loss_share: float
    rounds: int
    memory: int | None

    @classmethod
    def checked(
        cls, batch: int, length: int, memory: str | int | None, loss_share: float, rounds: int
    ) -> Asked:
        """From the user's words.

        Raises:
            InputError: a value out of range.
        """
        for name, value, least in (
            ("batch", batch, 1),
            ("length", length, 2),
            ("rounds", rounds, 1),
        ):
            if value < least:
                raise InputError(f"expected {option(name)} of {least} at least, got {value}")
        if not 0 < loss_share <= 1:
            raise InputError(
                f"expected {option('loss_share')} in (0, 1] such as {option('loss_share', 0.2)}, "
                f"got {loss_share}"
            )
        budget = None if memory is None else parse_bytes(memory)
        return cls(batch, length, float(loss_share), rounds, budget)


@dataclass(frozen=True)
class Plan:
    """The ways to train, those that fit first, then by gradient, then by speed.

    Attributes:
        options: ranked.
        batch, length, loss_share: of the step that was probed.
        memory: bytes asked for, if any.
        refused: ways that the model can't be trained in, with the reason.
        smaller_batch: the largest batch for which the leanest way fits, where none does with the
            one asked for and it was looked for; 0: not even one sample.
    """

    options: tuple[Option, ...]
    batch: int
    length: int
    loss_share: float
    memory: int | None
    refused: dict[str, str]
    smaller_batch: int | None = None

    @property
    def best(self) -> Option:
        """The best gradient that fits; of equals, the fastest.

        Raises:
            InputError: nothing fits; says the least memory that works.
        """
        return self._first(self.options)

    @property
    def attached(self) -> Option:
        """As `best`, of the ways that use `attach`.

        Raises:
            InputError: none of them fits.
        """
        return self._first([o for o in self.options if o.settings is not None])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "options": [each.to_dict() for each in self.options]}

    def _first(self, options: Sequence[Option]) -> Option:
        if options and options[0].fits:
            return options[0]
        if not options:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            raise InputError(
                f"expected a model that can be trained in one of these ways: {reasons}"
            )
        least = min(options, key=lambda o: o.peak_bytes)
        # Rounded up, so that the amount can be given as it is said.
        needed = format_bytes(_round_up(least.peak_bytes))
        text = (
            f"expected {option('memory')} of {needed} at least for "
            f"{counted(self.batch, 'sample')} of {self.length} tokens ({least.name}), got "
            f"{format_bytes(self.memory or 0)}; "
        )
        if self.smaller_batch:
            text += f"with {option('batch', self.smaller_batch)} it is enough"
        else:
            text += f"raise it, or give a smaller {option('batch')} or {option('length')}"
        raise InputError(text)


def plan(
    model: nn.Module,
    *,
    batch: int,
    length: int,
    memory: str | int | None = None,
    loss_share: float = 1.0,
    rounds: int = 3,
    progress: Progress | None = None,
) -> Plan:
    """Probe the model, and say what each way to train it will cost.

    Takes a few steps of two layers for each way. The model is left as it was. Call it under the
    autocast that training will use.

    Args:
        model: a decoder of transformers, also inside PEFT; parameters that will be trained require
            a gradient already.
        batch: samples of a step.
        length: tokens of every sample, padding included.
        memory: what must be enough, such as "2GB" or a number of bytes.
        loss_share: tokens that carry loss, of all, in (0, 1].
        rounds: timed steps of each probe; their median counts.
        progress: takes the share that is done.

    Raises:
        InputError: a value out of range; a model without a trainable parameter, with something
            attached already, or whose layers can't be found.
    """
    asked = Asked.checked(batch, length, memory, loss_share, rounds)
    inner = models.unwrap(model)
    return plan_kinds(inner, probe.kinds_of(inner), asked, progress)


def plan_kinds(
    model: nn.Module, kinds: Sequence[Kind], asked: Asked, progress: Progress | None = None
) -> Plan:
    """As `plan`, for a decoder of which `model` holds two layers of each kind at least.

    Args:
        model: unwrapped.
        kinds: of the whole decoder's layers; `examples` of each are places in `model`.
        asked: the step.
        progress: takes the share that is done.
    """
    check_positions(model, type(model).__name__, asked.length)
    _check(model)
    survey = Survey(
        model, kinds, asked.length, asked.loss_share, asked.rounds, progress or (lambda share: None)
    )
    ways = ways_for(asked.loss_share)
    found, refused = survey.timelines(ways, asked.batch)
    update = survey.update_seconds()
    options = [
        _option(way, survey, found[way.name], update, asked.memory)
        for way in ways
        if way.name in found
    ]
    options.sort(key=lambda o: (not o.fits, -o.cosine, o.seconds))
    smaller = None
    if asked.memory is not None and not options[0].fits:
        least = min(options, key=lambda o: o.peak_bytes)
        way = next(way for way in ways if way.name == least.name)
        smaller = survey.largest_batch(way, asked.batch, asked.memory)
    return Plan(
        tuple(options), asked.batch, asked.length, asked.loss_share, asked.memory, refused, smaller
    )


def _option(way: Way, survey: Survey, found: Timeline, update: float, budget: int | None) -> Option:
    peak = found.peak
    items = {
        "weights": survey.weights,
        "optimizer": 2 * survey.trained,
        "gradients": peak.gradients,
        "activations": peak.activations,
        "loss": peak.loss,
        "workspace": peak.workspace,
    }
    total = survey.bytes_at(peak)
    return Option(
        name=way.name,
        settings=way.settings,
        checkpointing=way.checkpoints,
        cosine=way.cosine,
        source=way.source,
        peak_bytes=total,
        peak_at=peak.name,
        bytes=items,
        stored_bytes=found.stored,
        seconds=found.seconds + update,
        fits=budget is None or total <= budget,
    )


def check_positions(model: nn.Module, name: str, length: int) -> None:
    """Refuse samples that are longer than the model's positions.

    Raises:
        InputError: they are; calls the model by `name`.
    """
    positions = models.positions(model)
    if positions is not None and length > positions:
        raise InputError(
            f"expected {option('length')} of at most {positions}, the positions that {name} has, "
            f"got {length}"
        )


def _check(model: nn.Module) -> None:
    if probe.is_attached(model):
        raise InputError(
            f"expected a model that nothing is attached to, got {type(model).__name__} with a "
            "handle attached; call its handle's detach() first"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            f"expected a model with parameters to train, got {type(model).__name__}, all of whose "
            "parameters have requires_grad=False"
        )


def _round_up(value: int) -> int:
    """To three significant digits."""
    unit = 10 ** max(0, len(str(value)) - 3)
    return -(-value // unit) * unit
