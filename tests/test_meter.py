"""Bytes of live storages against bytes counted by hand."""

from __future__ import annotations

import time

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from apportion.meter import AllocatedBytes, LiveStorages, meter_of

KB = 1024


def kb(count: int) -> torch.Tensor:
    """A tensor of so many kilobytes."""
    return torch.zeros(count * KB // 4)


def test_bytes_follow_every_tensor():
    before = kb(3)
    with LiveStorages() as meter:
        a = kb(8)
        assert meter.bytes() == 8 * KB
        b = kb(2)
        assert meter.bytes() == 10 * KB
        view = a.view(2, -1)
        a += 1
        before.add_(1)
        part = before[:4]
        assert meter.bytes() == 10 * KB  # views and in place: nothing new
        del a
        assert meter.bytes() == 10 * KB  # the view holds it
        del view
        assert meter.bytes() == 2 * KB
        del b, part
        assert meter.bytes() == 0
        assert meter.peak == 10 * KB


def test_peak_counts_what_is_freed_before_the_end():
    with LiveStorages() as meter:
        x = kb(4)
        for _ in range(3):
            x = x * 2  # the old and the new one at once
        assert meter.bytes() == 4 * KB
    assert meter.peak == 8 * KB


def test_laps_are_the_peaks_between_them():
    with LiveStorages() as meter:
        a = kb(1)
        b = kb(6)
        del b
        assert meter.lap() == 7 * KB
        assert meter.lap() == 1 * KB  # nothing has happened since
        c = kb(2)
        del a, c
        assert meter.lap() == 3 * KB
        assert meter.peak == 7 * KB


class Square(torch.autograd.Function):
    """Holds one tensor as saved, another as an attribute."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 1)
        ctx.held = x * 2
        return x * x

    @staticmethod
    def backward(ctx, upstream):
        (saved,) = ctx.saved_tensors
        return upstream * (saved + ctx.held / 2)


def test_what_a_graph_holds_is_alive_until_it_is_freed():
    x = kb(5).requires_grad_()
    with LiveStorages() as meter:
        y = Square.apply(x)
        assert meter.bytes() == 3 * 5 * KB  # saved, attribute, output
        total = y.sum()
        del y
        assert meter.bytes() == 2 * 5 * KB + 4
        total.backward()
        # Saved tensors go with the backward, the attribute with the graph; the gradient stays.
        assert meter.bytes() == 2 * 5 * KB + 4
        del total
        assert meter.bytes() == 5 * KB
        assert x.grad is not None


def test_a_second_context_starts_at_zero():
    with LiveStorages() as first:
        a = kb(4)
    with LiveStorages() as second:
        b = kb(1)
        assert second.bytes() == KB
        del a
        assert second.bytes() == KB
    assert first.bytes() == 0
    del b
    assert second.bytes() == 0


class Scanning(TorchDispatchMode):
    """The same count in the plain way: every live storage is looked at after every operation."""

    def __init__(self):
        super().__init__()
        self.peak, self.alive = 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        given = {x.untyped_storage()._cdata for x in tensors}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given:
                    self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.bytes())
        return out

    def bytes(self):
        self.alive = {key: x for key, x in self.alive.items() if not x[0].expired()}
        return sum(size for _, size in self.alive.values())


def train(depth: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(m for _ in range(depth) for m in (torch.nn.Linear(16, 16), torch.nn.GELU()))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = torch.utils.checkpoint.checkpoint(
            model, torch.randn(8, 16), use_reentrant=False
        ).square()
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_running_sum_is_the_sum_of_a_scan():
    with LiveStorages() as ours:
        train(3)
    with Scanning() as plain:
        train(3)
    assert (ours.peak, ours.bytes()) == (plain.peak, plain.bytes())


def test_an_operation_costs_the_same_beside_many_live_tensors():
    def seconds(alive: int) -> float:
        with LiveStorages():
            held = [torch.zeros(1) for _ in range(alive)]
            x, best = torch.zeros(1), float("inf")
            for _ in range(5):
                start = time.process_time()
                for _ in range(300):
                    x = x + 1
                best = min(best, time.process_time() - start)
        assert len(held) == alive
        return best

    # A scan of 6,000 references takes many times longer than the operation.
    assert seconds(6_000) < 3 * seconds(20)


def test_the_cpu_has_no_allocator_to_ask():
    assert isinstance(meter_of(torch.device("cpu")), LiveStorages)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_allocator_agrees_on_a_gpu():
    device = torch.device("cuda")
    with meter_of(device) as meter:
        assert isinstance(meter, AllocatedBytes)
        a = torch.zeros(8 * KB // 4, device=device)
        b = torch.zeros(4 * KB // 4, device=device)
        assert meter.bytes() == 12 * KB
        del b
        assert meter.lap() == 12 * KB
        assert meter.bytes() == 8 * KB
        del a
    assert meter.peak == 12 * KB
