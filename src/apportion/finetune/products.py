"""Matrix products of a layer that its backward never reads are not computed again.

A backward needs some values of the forward, not all. The last projection of a decoder layer goes
into a sum, and no gradient depends on the value of a sum: in Llama that product is a quarter of a
layer's arithmetic. Likewise, where only keys and values of a row are wanted, its query is not.

Which products can be left out is found once per layer by watching: every call of `linear` has a
number; every tensor carries the numbers of the products that it was made from; a product is needed
when autograd saves a tensor that carries its number (or when keys and values do). From then on the
others are left out below autograd, so that the graph, its kernels and their order stay as they
were: gradients are the same bit for bit. Gradient checkpointing in torch gains about as much by
leaving the layer early, which needs the graph of the first forward; we have none.

Nothing is left out where this can't be known: experts chosen by data, autograd functions written in
Python, hooks that look at a product, another number of products than the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Out = TypeVar("Out")
Needed = Callable[["_Watch", Out], set[int]]
_LINEAR = torch.nn.functional.linear
_MM, _ADDMM = torch.ops.aten.mm.default, torch.ops.aten.addmm.default
_WHOLE = torch.ops.aten.linear.default
NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Known:
    """What was found by watching: shapes of all weights in the order of the calls, and who is left
    out."""

    weights: tuple[torch.Size, ...]
    unread: frozenset[int]


class Products:
    """The products of one decoder layer.

    Args:
        layer: the decoder layer.
        chosen_by_data: whether which products there are depends on the data.
    """

    def __init__(self, layer: nn.Module, chosen_by_data: bool) -> None:
        self._layer = layer
        self._off = chosen_by_data
        self._known: dict[Hashable, _Known] = {}

    def for_gradients(self, run: Callable[[], Tensor], trainable: Sequence[nn.Parameter]) -> Tensor:
        """The output of `run` with its graph; its value may be wrong, its gradients are not.

        Args:
            run: the layer's forward; may be called twice.
            trainable: the parameters whose gradients will be asked for.
        """
        # A parameter that becomes trainable needs values that a frozen one does not.
        key = ("gradients", *map(id, trainable))
        return self._run(key, run, lambda watch, _: watch.saved)

    def for_values(self, run: Callable[[], Out], read: Callable[[Out], list[Tensor]]) -> Out:
        """What `run` returns, of which only the tensors of `read` and their graphs are right.

        What autograd saves on the way to a tensor has gone into it, so no more needs watching.

        Args:
            run: part of the layer's forward; may be called twice.
            read: the tensors that will be looked at.
        """
        return self._run(("values",), run, lambda watch, out: watch.of(read(out)))

    def _run(self, what: tuple[Hashable, ...], run: Callable[[], Out], needed: Needed[Out]) -> Out:
        if self._off or self._looked_at():
            return run()
        key = (*what, self._as_it_is())
        known = self._known.get(key)
        if known is None:
            return self._watch(key, run, needed)
        with _Numbered(known.unread) as calls:
            out = run()
        if tuple(calls.weights) == known.weights:
            return out
        self._off = True
        return run()

    def _watch(self, key: Hashable, run: Callable[[], Out], needed: Needed[Out]) -> Out:
        watch = _Watch()
        hooks = torch.autograd.graph.saved_tensors_hooks(watch.save, lambda x: x)
        with watch, hooks, _Numbered(NONE, watch) as calls:
            out = run()
        if isinstance(out, Tensor) and _has_python_node(out):
            self._off = True
        else:
            unread = frozenset(range(len(calls.weights))) - needed(watch, out)
            self._known[key] = _Known(tuple(calls.weights), unread)
        return out

    def _looked_at(self) -> bool:
        """Whether a hook sees values of the layer; those of data parallelism only move weights."""
        return any(
            not str(getattr(hook, "__module__", "")).startswith("torch.distributed")
            for module in self._layer.modules()
            for hook in module._forward_hooks.values()  # pyright: ignore[reportPrivateUsage]
        )

    def _as_it_is(self) -> Hashable:
        """The layer's modules and the functions they run: another one may read other values."""
        return tuple(
            (id(module), module.training, type(module).forward, module.__dict__.get("forward"))
            for module in self._layer.modules()
        )


def _has_python_node(out: Tensor) -> bool:
    """Whether an autograd function in Python took part: what it keeps can't be seen."""
    seen: set[Any] = set()
    todo: list[Any] = [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
    return False


class _Numbered(TorchFunctionMode):
    """Counts the calls of `linear`, and leaves some of them out.

    Attributes:
        weights: shape of each call's weight.
    """

    def __init__(self, unread: frozenset[int], watch: _Watch | None = None) -> None:
        super().__init__()
        self.weights: list[torch.Size] = []
        self._unread = unread
        self._watch = watch

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not _LINEAR:
            return func(*args, **kwargs)
        number = len(self.weights)
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        self.weights.append(weight.shape)
        if self._watch is not None:
            self._watch.number = number
        with _LeftOut() if number in self._unread else nullcontext():
            out = func(*args, **kwargs)
        if self._watch is not None:
            self._watch.number = None
        return out


class _LeftOut(TorchDispatchMode):
    """Matrix products give zeros without being computed."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _MM:
            return args[0].new_zeros(1, 1).expand(args[0].shape[0], args[1].shape[1])
        if func is _ADDMM:
            return args[1].new_zeros(1, 1).expand(args[1].shape[0], args[2].shape[1])
        if func is _WHOLE:
            return args[0].new_zeros(1).expand(*args[0].shape[:-1], args[1].shape[0])
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):
    """Notes which products every tensor was made from.

    Attributes:
        number: of the product that is being computed, if any.
        saved: the numbers that saved tensors carry.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None
        self.saved: set[int] = set()
        self._made_from: dict[int, set[int]] = {}

    def save(self, x: Tensor) -> Tensor:
        """Autograd saves a tensor."""
        self.saved |= self.of([x])
        return x

    def of(self, tensors: list[Tensor]) -> set[int]:
        """The numbers that some tensors carry."""
        return set().union(*(self._made_from.get(_key(x), set()) for x in tensors))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        carried, keys = self.of(given), {_key(x) for x in given}
        own = set() if self.number is None else {self.number}
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                # A view of a weight is no product. A storage that is new at an old address starts
                # afresh: it is no input.
                new = bool(own) and _key(x) not in keys
                self._made_from[_key(x)] = carried | own if new else carried
        return out


def _key(x: Tensor) -> int:
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
