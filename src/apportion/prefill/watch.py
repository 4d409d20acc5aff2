"""What is alive after every operation of a forward, and how long its layers take."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from apportion.meter import LiveStorages

# A part of a forward, with the number of its layer: "before" the layers, "layer", "head", "evict"
# (after the forward, if that is when layers let go), "tail", and "after" all.
Phase = tuple[str, int]
BEFORE, HEAD, TAIL, AFTER = ("before", 0), ("head", 0), ("tail", 0), ("after", 0)

# An operation that makes a storage: whether it belongs to scoring and evicting, its name, its
# place in the program.
Site = tuple[bool, str, tuple[int, ...]]

_MISSING = object()


@dataclass
class Record:
    """What one forward held.

    Attributes:
        levels: bytes alive as each phase began.
        scoring: bytes alive as each layer began to score.
        sites: the most bytes alive after each operation of each phase.
        kept: entries of each layer that ran, afterwards.
    """

    levels: dict[Phase, int] = field(default_factory=dict)
    scoring: dict[int, int] = field(default_factory=dict)
    sites: dict[Phase, dict[Site, int]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)


class Trace(LiveStorages):
    """Notes what is alive after every operation that makes a storage.

    Attributes:
        record: since the beginning, or since `clear`.
    """

    def __init__(self, held: Collection[Tensor], root: CodeType) -> None:
        """A trace.

        Args:
            held: tensors that are there already.
            root: the function whose calls are looked into.
        """
        super().__init__(held)
        self._root = root
        self.clear()

    def clear(self) -> None:
        """Begin a record."""
        self.record = Record(levels={BEFORE: self.bytes()})
        self._phase, self._scores = BEFORE, False

    def enter(self, phase: Phase, freed: int = 0) -> None:
        """A phase begins.

        Args:
            phase: which; where it had begun before, its level is the later one.
            freed: bytes that are alive yet, and will not be in it.
        """
        self._phase = phase
        self.record.levels[phase] = self.bytes() - freed

    def score(self, layer: int, begins: bool) -> None:
        """As `Engine.watch`, where layers score within the forward."""
        self._scores = begins
        if begins:
            self.record.scoring[layer] = self.bytes()

    def score_late(self, layer: int, begins: bool) -> None:
        """As `Engine.watch`, where they do after it."""
        self.enter(("evict", layer) if begins else TAIL)
        self.record.levels.pop(TAIL, None)
        self.score(layer, begins)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        before = self._now
        if self._phase == TAIL:
            # As it begins, the layer that was last still holds what it let go.
            self.record.levels.setdefault(TAIL, before)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        now = self._now
        if now > before:
            place = _place(sys._getframe(1), self._root)  # pyright: ignore[reportPrivateUsage]
            sites = self.record.sites.setdefault(self._phase, {})
            site = (self._scores, str(func), place)
            sites[site] = max(now, sites.get(site, 0))
        return out


def _place(frame: FrameType | None, root: CodeType) -> tuple[int, ...]:
    """The instruction of every call that has not returned, up to a function."""
    found: list[int] = []
    while frame is not None and frame.f_code is not root:
        found += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


class Clock:
    """Seconds of every phase.

    Attributes:
        spent: so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent: dict[Phase, float] = {}
        self._phase, self._since = BEFORE, self.now()

    def enter(self, phase: Phase, freed: int = 0) -> None:
        """As `Trace.enter`."""
        now = self.now()
        self.spent[self._phase] = self.spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def now(self) -> float:
        """Seconds, with all that was launched done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@contextmanager
def watched(layers: list[nn.Module], watch: Trace | Clock) -> Generator[None]:
    """Tell of every decoder layer's begin, and of the last one's end."""

    def begins(number: int) -> Any:
        return lambda module, args: watch.enter(("layer", number))

    def ends(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        before: Tensor = args[0] if args else kwargs["hidden_states"]
        after = out[0] if isinstance(out, tuple) else out
        # The last layer's input is let go as it returns, unless it is the embeddings, which the
        # decoder holds all the while.
        gone = len(layers) > 1 and before is not after
        watch.enter(HEAD, before.untyped_storage().nbytes() if gone else 0)

    with ExitStack() as stack:
        for number, layer in enumerate(layers):
            stack.callback(layer.register_forward_pre_hook(begins(number)).remove)
        stack.callback(layers[-1].register_forward_hook(ends, with_kwargs=True).remove)
        yield


@contextmanager
def only(layers: list[nn.Module], running: Collection[int]) -> Generator[None]:
    """Decoder layers that don't run hand on what they get; the lowest runs."""
    tupled = False

    def learn(module: nn.Module, args: Any, out: Any) -> None:
        nonlocal tupled
        tupled = isinstance(out, tuple)

    def passed(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states,) if tupled else hidden_states

    idle = [layer for number, layer in enumerate(layers) if number not in running]
    before = [vars(layer).get("forward", _MISSING) for layer in idle]
    hook = layers[0].register_forward_hook(learn)
    try:
        for layer in idle:
            vars(layer)["forward"] = passed
        yield
    finally:
        hook.remove()
        for layer, own in zip(idle, before, strict=True):
            vars(layer).pop("forward", None)
            if own is not _MISSING:
                vars(layer)["forward"] = own
