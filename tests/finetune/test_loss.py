"""The chunked loss against PyTorch's cross-entropy on all logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from apportion import finetune as ft
from apportion.errors import InputError
from apportion.finetune import loss as module
from apportion.meter import LiveStorages
from finetune.tiny import batch, gradients, make


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        return x / x.pow(2).mean(-1, keepdim=True).sqrt() * self.weight


def plain(hidden, labels, head, num_items=None, smoothing=0.0):
    logits = head(hidden.flatten(0, 1))
    if head.softcap:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    shifted = functional.pad(labels[:, 1:], (0, 1), value=-100).reshape(-1)
    total = functional.cross_entropy(logits, shifted, reduction="sum", label_smoothing=smoothing)
    return total / ((shifted != -100).sum() if num_items is None else num_items)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_items", [None, 7, torch.tensor(13)])
def test_equals_plain_loss_and_gradients(monkeypatch, norm, softcap, smoothing, bias, num_items):
    torch.manual_seed(0)
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 5 * 31)  # 16 rows a chunk at least
    hidden = torch.randn(3, 11, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 31, (3, 11))
    labels[torch.rand(3, 11) < 0.3] = -100
    head = ft.Head(
        Norm(8).double() if norm else None, torch.nn.Linear(8, 31, bias=bias).double(), softcap
    )
    wanted = [hidden, *head.parameters()]
    expected = plain(hidden, labels, head, num_items, smoothing)
    found = ft.chunked_loss(hidden, labels, head, num_items=num_items, label_smoothing=smoothing)
    assert torch.allclose(found, expected, rtol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(3 * found, wanted),
        torch.autograd.grad(3 * expected, wanted),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-14)


def test_shifted_labels_stand_at_their_row():
    hidden, labels = torch.randn(2, 5, 8), torch.randint(0, 9, (2, 5))
    head = ft.Head(None, torch.nn.Linear(8, 9))
    moved = functional.pad(labels[:, 1:], (0, 1), value=-100)
    first = ft.chunked_loss(hidden, labels, head)
    assert torch.equal(first, ft.chunked_loss(hidden, moved, head, shifted=True))


def test_frozen_head_gets_no_gradient_and_holds_none(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 2**21)
    hidden = torch.randn(1, 4096, 8, requires_grad=True)
    head = ft.Head(None, torch.nn.Linear(8, 4096).requires_grad_(False))
    with LiveStorages() as meter:
        loss = ft.chunked_loss(hidden, torch.randint(0, 4096, (1, 4096)), head)
        held = meter.bytes()
    assert held < 2.5 * hidden.numel() * 4 + 4096 * 16
    loss.backward()
    assert head.linear.weight.grad is None
    # All logits would be 67 MB; a chunk is an eighth of that, and its derivative takes its place.
    assert meter.peak < 4096 * 4096 * 4 * 0.2


def test_rows_without_label_cost_nothing():
    labels = torch.full((1, 4096), -100)
    labels[0, -10:] = 3
    head = ft.Head(None, torch.nn.Linear(8, 4096))
    with LiveStorages() as meter:
        ft.chunked_loss(torch.randn(1, 4096, 8), labels, head)
    assert meter.peak < 4096 * 4096 * 4 / 50


def test_no_labels_is_refused():
    head = ft.Head(None, torch.nn.Linear(8, 9))
    with pytest.raises(InputError, match="expected a row with a label"):
        ft.chunked_loss(torch.randn(1, 3, 8), torch.full((1, 3), -100), head)


def test_labels_outside_the_vocabulary_are_refused():
    head = ft.Head(None, torch.nn.Linear(8, 9))
    with pytest.raises(InputError, match=r"expected labels in \[0, 9\).*got 2 to 9"):
        ft.chunked_loss(torch.randn(1, 3, 8), torch.tensor([[0, 9, 2]]), head)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3_text", "qwen3", "phi"])
@pytest.mark.parametrize("tied", [False, True])
def test_attached_loss_is_the_models_own(kind, tied):
    attention = "eager" if kind == "gemma2" else "sdpa"
    model = make(kind, attention=attention, tie_word_embeddings=tied)
    inputs = batch(answers=5)
    expected = model(**inputs, use_cache=False).loss
    theirs = gradients(model, expected)
    with ft.attach(model, keep=1.0):
        output = model(**inputs)
        ours = gradients(model, output.loss)
    assert output.logits.shape[1] == 1
    assert torch.allclose(output.loss, expected, rtol=1e-6)
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, atol=5e-6 * float(gradient.abs().max())), name


def test_num_items_in_batch_is_the_denominator():
    model, inputs = make("llama"), batch()
    expected = model(**inputs, num_items_in_batch=100, use_cache=False).loss
    with ft.attach(model, keep=1.0):
        found = model(**inputs, num_items_in_batch=100).loss
    assert torch.allclose(found, expected, rtol=1e-6)


def test_a_model_that_scales_its_logits_is_refused_by_name():
    model = make("llama")
    model.lm_head.register_forward_hook(lambda m, args, out: out / 8)
    with ft.attach(model, keep=1.0):  # a hook of the head itself is part of it
        pass
    own = model.forward

    def scaled(*args, **kwargs):
        output = own(*args, **kwargs)
        output.logits = output.logits / 8
        return output

    model.forward = scaled
    with pytest.raises(InputError, match=r"LlamaForCausalLM scales.*loss='model'"):
        ft.attach(model, keep=1.0)
    with ft.attach(model, keep=1.0, loss="model"):
        pass


def test_a_head_that_needs_its_own_output_keeps_it():
    # The backward of tanh reads its result, so the derivative must not take that memory.
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Linear(8, 31), torch.nn.Tanh()).double()
    hidden = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    labels, head = torch.randint(0, 31, (2, 9)), ft.Head(None, linear)
    wanted = [hidden, *head.parameters()]
    expected = torch.autograd.grad(plain(hidden, labels, head), wanted)
    found = torch.autograd.grad(ft.chunked_loss(hidden, labels, head), wanted)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-14)


def test_large_logits_lose_nothing_in_float32():
    torch.manual_seed(0)
    hidden = 4 * torch.randn(1, 200, 32)
    labels = torch.randint(0, 3000, (1, 200))
    linear = torch.nn.Linear(32, 3000, bias=False).requires_grad_(False)
    linear.weight.mul_(10)  # logits of about 100, losses of about 10

    def run(function, dtype):
        x = hidden.to(dtype).requires_grad_()
        loss = function(x, labels, ft.Head(None, linear.to(dtype)))
        return loss.detach(), torch.autograd.grad(loss, x)[0]

    exact, by_exact = run(plain, torch.float64)
    loss, by_hidden = run(ft.chunked_loss, torch.float32)
    assert float(abs(loss / exact - 1)) < 1e-6
    assert float((by_hidden - by_exact).norm() / by_exact.norm()) < 5e-6
