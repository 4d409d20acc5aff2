"""Rows of memory in 8 bits."""

from __future__ import annotations

import pytest
import torch

from apportion.prefill.rows import Eight, Lines, dense, eight, factors, of_samples, pick, tensors


def keys(dtype=torch.float32, entries=9, seed=0) -> torch.Tensor:
    """With a channel that is large in all entries, as keys have."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, entries, 8, generator=generator)
    x[..., 2] += 40
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_come_back_within_half_a_step(dtype):
    x = keys(dtype)
    for factor in (None, factors(x)):
        held = eight(x, factor)
        # Half a code, and what the type itself rounds.
        step = held.scale * (1 if factor is None else factor)
        bound = 0.5 * step + torch.finfo(dtype).eps * x.float().abs()
        assert held.dense().dtype == dtype
        assert bool(((held.dense().float() - x.float()).abs() <= bound * 1.01).all())


def test_a_large_channel_costs_the_others_nothing():
    x = keys()
    others = [k for k in range(8) if k != 2]
    errors = [
        float((eight(x, factor).dense() - x)[..., others].abs().mean())
        for factor in (None, factors(x))
    ]
    assert errors[1] < errors[0] / 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_again_and_again_is_rounded_once(dtype):
    first = keys(dtype)
    held = eight(first, factors(first))
    codes, scale = held.codes[:, :, :4], held.scale[:, :, :4]
    for seed in range(1, 6):
        index = torch.arange(9).expand(2, 3, 9).clone()
        index[..., 4:] += 3  # the first four stay, of the others some are new
        held = pick(held, keys(dtype, 6, seed), Lines(index, held.shape[2] + 6))
        assert isinstance(held, Eight)
        assert torch.equal(held.codes[:, :, :4], codes)
        assert torch.equal(held.scale[:, :, :4], scale)


def test_picking_is_that_of_the_joined_rows():
    generator = torch.Generator().manual_seed(1)
    old, new = keys(), keys(entries=5, seed=2)
    index = torch.stack(
        [torch.randperm(14, generator=generator)[:6].sort().values for _ in range(6)]
    ).view(2, 3, 6)
    wide = index[..., None].expand(-1, -1, -1, 8)
    found = pick(old, new, Lines(index, 14))
    assert torch.equal(dense(found), torch.cat([old, new], 2).gather(2, wide))
    found = pick(old[:, :, :0], new, Lines(index % 5, 5))
    assert torch.equal(dense(found), new.gather(2, wide % 5))
    packed = eight(old, factors(old))
    joined = torch.cat([packed.dense(), eight(new, packed.factor).dense()], 2)
    assert torch.equal(dense(pick(packed, new, Lines(index, 14))), joined.gather(2, wide))


def test_rows_of_zeros_and_parts():
    x = keys()
    x[0, 1, 3] = 0
    held = eight(x)
    assert bool((held.dense()[0, 1, 3] == 0).all())
    one = of_samples(held, slice(1, 2))
    assert torch.equal(dense(one), held.dense()[1:])
    assert sum(t.numel() * t.element_size() for t in tensors(held)) == 2 * 3 * 9 * (8 + 4)
