"""Products that no backward reads: which they are, and that gradients stay without them."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from apportion import finetune as ft
from apportion.finetune.products import Products
from finetune.tiny import ARCHITECTURES, MIXTURES, batch, gradients, make


class Block(nn.Module):
    """A branch beside a residual; `after` reads the value of its last product."""

    def __init__(self, after: nn.Module | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10, bias=False), nn.Linear(10, 6)
        self.after = after or nn.Identity()
        self.computed = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.down(torch.relu(self.up(x)))
        self.computed += bool(product.detach().abs().sum() > 0)
        return x + self.after(product)


class Scale(nn.Module):
    """One trainable number a channel: its gradient needs the value."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Doubled(torch.autograd.Function):
    """Written in Python: what it keeps of its input can't be seen."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x
        return x * x

    @staticmethod
    def backward(ctx, *upstream):
        return 2 * ctx.kept * upstream[0]


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x)


def computed(block: Block, products: Products, times: int = 3) -> list[int]:
    """Whether the last product was computed, time by time; gradients are those of the block alone.

    Each time on other numbers.
    """
    found = []
    for k in range(times):
        x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(k)).requires_grad_()
        wanted = [x, *(p for p in block.parameters() if p.requires_grad)]
        expected = torch.autograd.grad(block(x).sum(), wanted)
        block.computed = 0
        out = products.for_gradients(lambda x=x: block(x), wanted[1:])
        gradients = torch.autograd.grad(out.sum(), wanted)
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
        found.append(block.computed)
    return found


def test_a_product_that_only_a_sum_takes_is_computed_once_to_learn():
    block = Block()
    assert computed(block, Products(block, chosen_by_data=False)) == [1, 0, 0]


@pytest.mark.parametrize("after", [nn.LayerNorm(6), nn.GELU(), Scale(), Square()])
def test_a_product_that_is_read_later_is_computed(after):
    block = Block(after)
    assert computed(block, Products(block, chosen_by_data=False)) == [1, 1, 1]


def test_a_frozen_scale_reads_nothing_until_it_is_trained():
    block = Block(Scale())
    products = Products(block, chosen_by_data=False)
    block.after.by.requires_grad_(False)
    assert computed(block, products) == [1, 0, 0]
    block.after.by.requires_grad_(True)
    assert computed(block, products) == [1, 1, 1]
    block.after.by.requires_grad_(False)
    assert computed(block, products) == [0, 0, 0]


def test_a_hook_of_a_product_sees_its_value():
    block, seen = Block(), []
    block.down.register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
    assert computed(block, Products(block, chosen_by_data=False)) == [1, 1, 1]
    assert all(bool(x.abs().sum() > 0) for x in seen)


def test_a_hook_that_comes_later_sees_it_too():
    block, seen = Block(), []
    products = Products(block, chosen_by_data=False)
    assert computed(block, products) == [1, 0, 0]
    hook = block.down.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    assert computed(block, products) == [1, 1, 1]
    assert all(bool(x.abs().sum() > 0) for x in seen)
    hook.remove()
    assert computed(block, products) == [0, 0, 0]


CHANGES = {
    "hook of the mlp": lambda layer: layer.mlp.register_forward_hook(
        lambda module, args, out: torch.nn.functional.gelu(200 * out)
    ),
    "another forward of the mlp": lambda layer: setattr(
        layer.mlp, "forward", lambda x, f=layer.mlp.forward: torch.tanh(20 * f(x))
    ),
    "another forward of the product": lambda layer: setattr(
        layer.mlp.down_proj, "forward", lambda x, f=layer.mlp.down_proj.forward: f(x).sin()
    ),
    "a module around the mlp": lambda layer: setattr(
        layer, "mlp", nn.Sequential(layer.mlp, nn.LayerNorm(48))
    ),
    "a module around the product": lambda layer: setattr(
        layer.mlp, "down_proj", nn.Sequential(layer.mlp.down_proj, nn.GELU())
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("settings", [{"keep": 1.0}, {"keep": 0.4, "backward": "sparse"}])
def test_a_layer_that_changes_while_attached_is_watched_again(change, settings):
    found = []
    for before in (True, False):
        torch.manual_seed(0)
        model, inputs = make("llama"), batch(answers=5)
        if before:
            for layer in model.model.layers:
                CHANGES[change](layer)
        with ft.attach(model, loss="model", **settings):
            if not before:
                for _ in range(2):
                    gradients(model, model(**inputs).loss)
                for layer in model.model.layers:
                    CHANGES[change](layer)
            for _ in range(2):
                last = gradients(model, model(**inputs).loss)
        found.append(last)
    assert set(found[0]) == set(found[1])
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_where_data_choose_the_products_all_are_computed():
    block = Block()
    assert computed(block, Products(block, chosen_by_data=True)) == [1, 1, 1]


def test_other_products_than_the_first_time_are_all_computed():
    block = Block()
    products = Products(block, chosen_by_data=False)
    assert computed(block, products) == [1, 0, 0]
    block.after = nn.Linear(6, 6, bias=False)
    # Once with the last left out, then noticed and repeated whole.
    x = torch.randn(2, 5, 6).requires_grad_()
    wanted = [x, *block.parameters()][:-1]
    expected = torch.autograd.grad(block(x).sum(), wanted)
    found = torch.autograd.grad(
        products.for_gradients(lambda: block(x), wanted[1:]).sum(), wanted, allow_unused=True
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_values_that_are_not_looked_at_are_not_made():
    layer = nn.ModuleDict({"q": nn.Linear(6, 6), "k": nn.Linear(6, 6), "v": nn.Linear(6, 6)})
    products, x = Products(layer, chosen_by_data=False), torch.randn(3, 6)

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            return [layer[name](x) for name in "qkv"]

    whole = run()
    for left_out in (False, True):
        q, k, v = products.for_values(run, lambda out: out[1:])
        assert torch.equal(k, whole[1])
        assert torch.equal(v, whole[2])
        assert bool((q == 0).all()) is left_out


def left_out(kind: str, model: nn.Module, **settings) -> dict[str, int]:
    """How many products of the middle layer are left out, of which use."""
    with ft.attach(model, **{"loss": "model", **settings}) as sparse:
        for _ in range(2):
            gradients(model, model(**batch()).loss)
        known = sparse._layers[1].products._known
    return {
        "values" if key[0] == "values" else "gradients": len(found.unread)
        for key, found in known.items()
    }


@pytest.mark.parametrize("kind", [*ARCHITECTURES, *MIXTURES])
def test_every_architecture_leaves_out_what_it_can(kind):
    # Gemma norms what its MLP gives; Phi's two branches both end in a sum; Phi-3 makes queries,
    # keys and values in one product; which experts run is a matter of data.
    expected = {"gemma2": {"gradients": 0}, "gemma3_text": {"gradients": 0}}
    expected |= {"phi": {"gradients": 2}} | {mixture: {} for mixture in MIXTURES}
    assert left_out(kind, make(kind, attention="eager"), keep=1.0) == expected.get(
        kind, {"gradients": 1}
    )


def test_queries_of_rows_outside_the_kept_are_not_made():
    settings = {"keep": 0.3, "backward": "sparse"}
    assert left_out("llama", make("llama"), **settings) == {"values": 1, "gradients": 1}
    assert left_out("phi3", make("phi3"), **settings) == {"values": 0, "gradients": 1}


def test_an_adapter_leaves_out_its_base_and_its_last_factor():
    config = LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks for an attribute by its older name
        model = get_peft_model(make("llama"), config)
    assert left_out("llama", model, keep=1.0) == {"gradients": 2}
