"""A decoder layer's call, on all rows or on some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from apportion.finetune.rows import take

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """A function that compilers leave out: the rest of the model is compiled around it."""
    left_out: Any = torch.compiler.disable(function)
    return left_out


@dataclass(frozen=True)
class Rows:
    """The call as the model made it.

    Attributes:
        call: takes the hidden states, then `rest`; a `partial` that holds the keywords.
        rest: positional arguments after the hidden states.
        shape: (batch, length) of the hidden states.
    """

    call: Callable[..., Any]
    rest: tuple[Any, ...]
    shape: tuple[int, int]

    def gradient_elsewhere(self) -> str | None:
        """The name of an argument other than the hidden states that has a gradient."""
        keywords = self.call.keywords if isinstance(self.call, partial) else {}
        for name, value in [*keywords.items(), *(("a positional one", x) for x in self.rest)]:
            if isinstance(value, Tensor) and value.requires_grad:
                return name
        return None

    def whole(self, hidden: Tensor) -> Any:
        """The layer on all rows."""
        return self.call(hidden, *self.rest)

    def at(self, rows: Int[Tensor, "batch rows"] | None) -> Callable[[Tensor], Any]:
        """The layer on some rows, with what belongs to rows cut to them; None: on all."""
        if rows is None:
            return self.whole
        rest = tuple(self._cut(x, rows) for x in self.rest)
        if not isinstance(self.call, partial):
            return lambda hidden: self.call(hidden, *rest)
        keywords = {
            # Attention cuts the mask itself: it must stay whole for the keys of the other rows.
            name: value if name == "attention_mask" else self._cut(value, rows)
            for name, value in self.call.keywords.items()
        }
        function = partial(self.call.func, *self.call.args, **keywords)
        return lambda hidden: function(hidden, *rest)

    def _cut(self, value: Any, rows: Int[Tensor, "batch rows"]) -> Any:
        """Tensors of (batch or 1, length, ...) at the rows, inside tuples and dicts too."""
        if isinstance(value, tuple | list):
            return type(value)(self._cut(x, rows) for x in value)  # pyright: ignore[reportCallIssue]
        if isinstance(value, dict):
            return {name: self._cut(x, rows) for name, x in value.items()}
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        batch, length = self.shape
        if value.shape[1] == length and value.shape[0] in (1, batch):
            return take(value, rows)
        return value
