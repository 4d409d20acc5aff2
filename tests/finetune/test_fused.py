"""The GPU kernels of other libraries are called as they document it; they can't run here.

The stand-ins below take the documented arguments and compute the loss plainly, so that what is
tested is our side of the call.
"""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch.nn import functional

from apportion import finetune as ft
from apportion.finetune import loss as module
from apportion.finetune.fused import fused_loss


class Liger:
    """liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss."""

    def __init__(self, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
                 reduction="mean", softcap=None):  # fmt: skip
        self.smoothing, self.reduction, self.softcap = label_smoothing, reduction, softcap

    def __call__(self, lin_weight, _input, target, bias=None):
        logits = functional.linear(_input, lin_weight, bias)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return functional.cross_entropy(
            logits, target, reduction=self.reduction, label_smoothing=self.smoothing
        )


def cut(e, c, targets, bias=None, ignore_index=-100, softcap=None, reduction="mean", shift=0):
    """cut_cross_entropy.linear_cross_entropy."""
    assert e.dtype == c.dtype
    return Liger(reduction=reduction, softcap=softcap)(c, e, targets, bias)


@pytest.fixture
def libraries(monkeypatch):
    """Put stand-ins where the libraries would be."""

    def install(*names: str) -> None:
        for name, made in (
            ("liger_kernel.transformers", {"LigerFusedLinearCrossEntropyLoss": Liger}),
            ("cut_cross_entropy", {"linear_cross_entropy": cut}),
        ):
            stand_in = types.ModuleType(name)
            vars(stand_in).update(made)
            if name.split("_", maxsplit=1)[0] in names:
                monkeypatch.setitem(sys.modules, name.split(".")[0], stand_in)
                monkeypatch.setitem(sys.modules, name, stand_in)

    return install


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_ligers_loss_is_ours(libraries, monkeypatch, softcap, smoothing, bias):
    libraries("liger")
    torch.manual_seed(0)
    hidden = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 31, (2, 9))
    labels[0, :4] = -100
    head = ft.Head(torch.nn.LayerNorm(8).double(), torch.nn.Linear(8, 31, bias).double(), softcap)
    wanted = [hidden, *head.parameters()]
    ours = ft.chunked_loss(hidden, labels, head, label_smoothing=smoothing)
    expected = torch.autograd.grad(ours, wanted)
    # As if the rows were on a GPU.
    monkeypatch.setattr(module, "fused_loss", lambda *a: fused_loss(*a[:-1], "cuda"))
    theirs = ft.chunked_loss(hidden, labels, head, label_smoothing=smoothing)
    assert torch.allclose(ours, theirs, rtol=1e-12)
    for a, b in zip(torch.autograd.grad(theirs, wanted), expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_cut_cross_entropy_where_it_can(libraries):
    libraries("cut")
    linear = torch.nn.Linear(8, 31).to(torch.bfloat16)
    rows, wanted = torch.randn(5, 8, dtype=torch.bfloat16), torch.randint(0, 31, (5,))
    found = fused_loss(linear, 0.0, 0.0, torch.bfloat16, "cuda")
    expected = functional.cross_entropy(linear(rows), wanted, reduction="sum")
    assert torch.equal(found(rows, wanted), expected)
    assert fused_loss(linear, 0.0, 0.1, torch.bfloat16, "cuda") is None
    assert fused_loss(linear, 0.0, 0.0, torch.float32, "cuda") is None


def test_liger_goes_first_and_only_on_a_gpu_with_an_ordinary_head(libraries):
    assert fused_loss(torch.nn.Linear(8, 31), 0.0, 0.0, torch.bfloat16, "cuda") is None
    libraries("liger", "cut")
    linear = torch.nn.Linear(8, 31)
    assert fused_loss(linear, 0.0, 0.1, torch.float32, "cuda") is not None
    assert fused_loss(linear, 0.0, 0.0, torch.float32, "cpu") is None
    assert fused_loss(torch.nn.Sequential(linear), 0.0, 0.0, torch.float32, "cuda") is None
