"""Run a layer again as it ran the first time: random numbers, autocast, expert routing.

A layer is computed twice, so everything that is not a function of its inputs must repeat. On all
rows the random numbers do once their state is put back. On some rows they don't: a smaller dropout
draws other numbers. So dropout is drawn at the size of all rows, and the kept rows are taken from
it. Routing of a mixture of experts is repeated from the indices of the first time: rows that come
back from few bits could otherwise choose other experts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.overrides import TorchFunctionMode

from apportion.finetune.rows import take


@dataclass
class Surroundings:
    """What a layer's first run stood in, so that a later one can stand in the same.

    Attributes:
        device: where the layer runs.
        random: states of the generators before the run, CPU first; empty when it drew nothing.
        autocast: device type, enabled, dtype and use of the cache.
        experts: what every `topk` chose, in order; empty without a mixture of experts.
    """

    device: torch.device
    random: list[Tensor] = field(default_factory=list)
    autocast: list[tuple[str, bool, torch.dtype]] = field(default_factory=list)
    experts: list[Tensor] = field(default_factory=list)

    @contextmanager
    def first(self, routes_experts: bool) -> Generator[None]:
        """Stand here for the first time."""
        states = _random_states(self.device)
        for kind in dict.fromkeys(["cpu", self.device.type]):
            self.autocast.append(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            )
        with ExitStack() as stack:
            self._enter_autocast(stack)
            if routes_experts:
                stack.enter_context(_Note(self.experts))
            yield
        drew = any(
            not torch.equal(a, b) for a, b in zip(states, _random_states(self.device), strict=True)
        )
        self.random = states if drew else []

    @contextmanager
    def again(
        self, rows: Int[Tensor, "batch rows"] | None = None, length: int | None = None
    ) -> Generator[None]:
        """Stand here again, on all rows or on some of `length`."""
        with ExitStack() as stack:
            self._enter_autocast(stack)
            if self.random:
                devices = [self.device] if self.device.type == "cuda" else []
                stack.enter_context(torch.random.fork_rng(devices=devices))
                torch.set_rng_state(self.random[0])
                if devices:
                    torch.cuda.set_rng_state(self.random[1], self.device)
            if self.experts or (self.random and rows is not None):
                stack.enter_context(_Repeat(self.experts, rows, length))
            yield

    def _enter_autocast(self, stack: ExitStack) -> None:
        for kind, enabled, dtype in self.autocast:
            # Its cache would hold a second copy of every weight, cast without a gradient.
            stack.enter_context(
                torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
            )


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


class _Note(TorchFunctionMode):
    """Notes what every `topk` chooses."""

    def __init__(self, chosen: list[Tensor]) -> None:
        super().__init__()
        self.chosen = chosen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.topk, Tensor.topk):
            # Expert numbers need no more than two bytes.
            self.chosen.append(out.indices.detach().to(torch.int16))
        return out


class _Repeat(TorchFunctionMode):
    """Repeats the noted choices, and draws dropout at the size of all rows."""

    def __init__(
        self, chosen: list[Tensor], rows: Int[Tensor, "batch rows"] | None, length: int | None
    ) -> None:
        super().__init__()
        self.chosen = iter(chosen)
        self.repeats = bool(chosen)
        self.rows = rows
        self.length = length

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.repeats and func in (torch.topk, Tensor.topk):
            return self._topk(args[0], out_type=torch.return_types.topk)
        if self.rows is not None and func is torch.nn.functional.dropout:
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def _topk(self, x: Tensor, out_type: Any) -> Any:
        index = next(self.chosen).to(torch.int64)
        if self.rows is not None and self.length is not None:
            batch = self.rows.shape[0]
            # Routers see the rows of all samples in one line, or apart.
            apart = index.view(batch, self.length, index.shape[-1])
            index = take(apart, self.rows).reshape(*x.shape[:-1], index.shape[-1])
        return out_type((x.gather(-1, index), index))

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        assert self.rows is not None
        assert self.length is not None
        shape = (input.shape[0], self.length, *input.shape[2:])
        with torch.no_grad():
            ones = torch.ones(shape, dtype=input.dtype, device=input.device)
            mask = take(torch.dropout(ones, p, True), self.rows)
        return input * mask
