"""Exact bytes of the tensors that are alive, wherever they are held.

A dispatch mode sees every tensor that an operation makes and keeps a weak reference to its storage;
what has not been freed is alive. Saved-tensor hooks would miss what an autograd context holds as an
attribute, and the process's memory counts what allocators keep in hand. Storages that were there
before (weights, a batch) are not counted, nor is scratch space that a kernel frees before it
returns. The sum is kept up to date by the references themselves, which tell when a storage is
freed, so an operation costs the same however many tensors are alive.

On a GPU the caching allocator counts exactly, kernels' scratch space too: `AllocatedBytes`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The address of a storage, which tells it from all others that are alive.
_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")


@cache
def _makes_storage(func: Any) -> bool:
    """Whether an operation's results can be new: views and what is done in place say they are not.

    More than half of all operations are such.
    """
    return any(result.alias_info is None for result in func._schema.returns)


class LiveStorages(TorchDispatchMode):
    """Counts storages made inside the context, on all devices.

    Attributes:
        peak: the largest number of bytes that were alive after any operation.
    """

    def __init__(self, held: Iterable[torch.Tensor] = ()) -> None:
        """A meter.

        Args:
            held: tensors that are there already and count as long as they are.
        """
        super().__init__()
        self._now = self.peak = self._lap = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        for tensor in held:
            storage = tensor.untyped_storage()
            if _key(storage) not in self._alive:
                self._add(_key(storage), storage)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not _makes_storage(func):
            return out
        given: set[int] | None = None
        # Most operations give one tensor; looking for more in it takes longer than many of them.
        for tensor in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key = _key(storage)
            if key in self._alive:
                continue
            if given is None:
                # An operation may give back what it was given.
                inputs = tree_leaves((args, kwargs))
                given = {_key(x.untyped_storage()) for x in inputs if isinstance(x, torch.Tensor)}
            if key not in given:
                self._add(key, storage)
        return out

    def bytes(self) -> int:
        """Bytes alive now."""
        return self._now

    def lap(self) -> int:
        """The largest number of bytes alive since the last call, or since the beginning."""
        highest, self._lap = self._lap, self._now
        return highest

    def _add(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._alive[key] = weakref.ref(storage, partial(self._freed, key, size))
        self._now += size
        self.peak = max(self.peak, self._now)
        self._lap = max(self._lap, self._now)

    def _freed(self, key: int, size: int, reference: weakref.ref[Any]) -> None:
        # The address may belong to a new storage by now.
        if self._alive.get(key) is reference:
            del self._alive[key]
        self._now -= size


class AllocatedBytes:
    """The same figures from the allocator of one CUDA device, relative to the beginning."""

    def __init__(self, device: torch.device, held: Iterable[torch.Tensor] = ()) -> None:
        """A meter.

        Args:
            device: whose memory counts.
            held: tensors that are there already and count as long as they are.
        """
        self.device = device
        storages = [tensor.untyped_storage() for tensor in held if tensor.device == device]
        self._held = sum({_key(s): s.nbytes() for s in storages}.values())
        self.peak = self._held
        self._before = 0

    def __enter__(self) -> AllocatedBytes:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device) - self._held
        self.peak = self._held
        return self

    def __exit__(self, *error: object) -> None:
        self.lap()

    def bytes(self) -> int:
        """Bytes allocated now."""
        return torch.cuda.memory_allocated(self.device) - self._before

    def lap(self) -> int:
        """The largest number of bytes allocated since the last call, or since the beginning."""
        highest = torch.cuda.max_memory_allocated(self.device) - self._before
        torch.cuda.reset_peak_memory_stats(self.device)
        self.peak = max(self.peak, highest)
        return highest


Meter = LiveStorages | AllocatedBytes


def meter_of(device: torch.device, held: Iterable[torch.Tensor] = ()) -> Meter:
    """The meter that is exact on a device.

    Args:
        device: where tensors are made.
        held: tensors that are there already and count as long as they are.
    """
    return AllocatedBytes(device, held) if device.type == "cuda" else LiveStorages(held)
