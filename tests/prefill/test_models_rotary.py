"""Keys moved from positions to others, by the model's own rotary embedding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError
from apportion.models import Rotary, RoutedAttention, rotate
from finetune import tiny
from prefill.decoders import OTHERS, REFUSED, SCALED, build
from prefill.engines import engine_of, ids_of, read

NAMES = [*tiny.ARCHITECTURES, *SCALED, *OTHERS]
LONGEST = 48  # positions; scalings that grow have grown to it


def tables(count: int, pairs: int, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    angles = 6 * torch.rand(count, pairs, generator=torch.Generator().manual_seed(seed))
    return scale * torch.cos(angles), scale * torch.sin(angles)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("scale", [1.0, 1.37])
@pytest.mark.parametrize("size", [2, 8, 12, 13])
def test_there_and_back(scale, size):
    keys, table = drawn(2, 3, 5, size), tables(5, min(4, size // 2), scale)
    moved = rotate(keys, table)
    assert not torch.allclose(moved, keys, atol=0.1)
    assert torch.allclose(rotate(moved, table, back=True), keys, atol=1e-6)
    assert torch.allclose(rotate(rotate(keys, table, back=True), table), keys, atol=1e-6)


def test_it_is_a_rotation_of_pairs_from_the_two_halves():
    keys, (cos, sin) = drawn(1, 2, 3, 11), tables(3, 4)
    moved = rotate(keys, (cos, sin))
    for e in range(3):
        for p in range(4):
            a, b = keys[0, :, e, p], keys[0, :, e, p + 4]
            assert torch.allclose(moved[0, :, e, p], a * cos[e, p] - b * sin[e, p])
            assert torch.allclose(moved[0, :, e, p + 4], b * cos[e, p] + a * sin[e, p])
    # What is not rotated stays.
    assert torch.equal(moved[..., 8:], keys[..., 8:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_float32_and_given_back_in_the_keys_dtype(dtype):
    keys, table = drawn(2, 3, 5, 8, dtype=dtype), tables(5, 4)
    moved = rotate(keys, table)
    assert moved.dtype == dtype
    assert torch.equal(moved, rotate(keys.float(), table).to(dtype))


def keys_at(model: nn.Module, ids: Tensor, places: Tensor) -> list[Tensor]:
    """The keys of every layer, as the model's own forward makes and rotates them."""
    found: list[Tensor] = []

    def listen(module, query, key, value, mask, **more):
        found.append(key.clone())
        return own(module)(module, query, key, value, mask, **more)

    def make(original):
        nonlocal own
        own = original
        return listen

    own = None
    routed = RoutedAttention(model, make)
    try:
        with torch.no_grad():
            model(input_ids=ids, position_ids=places[None], use_cache=False)
    finally:
        routed.restore()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_moved_keys_are_those_that_the_model_makes_there(name):
    model = build(name)
    rotary = Rotary(model)
    ids = tiny.batch((14,))["input_ids"]
    # All of a text moved by as much: what its tokens mean to one another is the same, so every
    # layer's keys are, but for their rotation.
    here, there = torch.arange(18, 32), torch.arange(34, LONGEST)
    far = {kind: rotary.table(LONGEST, kind) for kind in set(rotary.kinds)}
    first, second = keys_at(model, ids, here), keys_at(model, ids, there)
    assert len(first) == len(rotary.kinds) == 3
    for layer, (a, b) in enumerate(zip(first, second, strict=True)):
        size = float(b.abs().max())
        if not rotary.moves[layer]:
            assert torch.allclose(a, b, atol=1e-5 * size)
            continue
        cos, sin = far[rotary.kinds[layer]]
        plain = rotate(a, (cos[here], sin[here]), back=True)
        moved = rotate(plain, (cos[there], sin[there]))
        assert float((moved - b).abs().max()) < 1e-5 * size
        assert float((a - b).abs().max()) > 0.01 * size


@pytest.mark.parametrize("name", NAMES)
def test_unrotated_keys_are_the_projections(name):
    # Of the first layer, whose input is known: at position 0 nothing is rotated, only scaled.
    model = build(name)
    rotary = Rotary(model)
    ids = tiny.batch((9,))["input_ids"]
    still = torch.cat(
        [keys_at(model, ids[:, k : k + 1], torch.tensor([0]))[0] for k in range(9)], 2
    )
    cos, sin = rotary.table(1, rotary.kinds[0])
    still = rotate(still, (cos, sin), back=True)
    moving = keys_at(model, ids, torch.arange(9))[0]
    cos, sin = rotary.table(9, rotary.kinds[0])
    assert torch.allclose(
        rotate(moving, (cos, sin), back=True), still, atol=1e-5 * float(still.abs().max())
    )


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_frequencies_go_by_the_largest_position(name):
    rotary = Rotary(build(name))
    near, far = rotary.table(12, None), rotary.table(40, None)
    assert not torch.allclose(near[0], far[0][:12], atol=1e-3)
    # And they come back.
    assert torch.equal(rotary.table(12, None)[0], near[0])


def test_layers_without_positions_are_told():
    assert Rotary(build("smollm3")).moves == [True, False, True]
    assert Rotary(build("exaone4")).moves == [True, False, True]
    assert all(Rotary(build("phi")).moves)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", [None] * 3),
        ("mistral", [6] * 3),
        ("gemma3_text", [6, 6, None]),
        ("gemma2", [6, 6, None]),
        ("smollm3", [None] * 3),
        ("smollm3 sliding", [None, 6, None]),
        ("exaone4", [6, None, 6]),
    ],
)
def test_windows(name, expected):
    assert models.windows(build(name)) == expected


def test_kinds_of_layers_have_their_own_frequencies():
    rotary = Rotary(build("kinds of layers"))
    assert rotary.kinds == ["sliding_attention", "sliding_attention", "full_attention"]
    sliding, full = (rotary.table(9, kind)[1] for kind in ("sliding_attention", "full_attention"))
    assert torch.allclose(full[8, 0], torch.sin(torch.tensor(1.0)))
    assert torch.allclose(sliding[8, 0], torch.sin(torch.tensor(8.0)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi", "yarn"])
def test_narrow_dtypes_are_recognised(name, dtype):
    assert Rotary(build(name).to(dtype)).moves == [True] * 3


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    model = build(name)
    before = model.config._attn_implementation
    kind = "DiffLlamaAttention" if name == "diffllama" else type(model).__name__
    with pytest.raises(InputError, match=rf"expected .* as .*Llama.*{kind}|{kind}.*Llama.* work"):
        read(engine_of(model), ids_of(9)[0])
    assert model.config._attn_implementation == before
