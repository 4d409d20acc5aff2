"""Exact bytes of the tensors that are alive, wherever they are held.

A dispatch mode sees every tensor that an operation makes and keeps a weak reference to its storage;
what has not been freed is alive. Saved-tensor hooks would miss what an autograd context holds as an
attribute, and the process's memory counts what allocators keep in hand. Storages that were there
before (weights, a batch) are not counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """Counts storages made inside the context, on all devices.

    Attributes:
        peak: the largest number of bytes that were alive after any operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_key(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for tensor in tree_leaves(out):
            # A view, or an operation in place, makes no storage.
            if isinstance(tensor, torch.Tensor) and _key(tensor) not in given:
                storage = tensor.untyped_storage()
                self._alive[_key(tensor)] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.bytes())
        return out

    def bytes(self) -> int:
        """Bytes alive now."""
        gone = [key for key, (reference, _) in self._alive.items() if reference.expired()]
        for key in gone:
            del self._alive[key]
        return sum(size for _, size in self._alive.values())



def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
