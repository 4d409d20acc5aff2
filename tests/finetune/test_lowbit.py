"""Rows in few bits: what comes back, what it costs."""

from __future__ import annotations

import pytest
import torch

from apportion.finetune import lowbit
from apportion.finetune.lowbit import pack, packed_bytes


def rows(width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Rows whose channels differ in size, one of them two thousand times larger."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 7, width, generator=generator)
    x *= torch.rand(width, generator=generator) + 0.5
    x[..., width // 3] = 2000 * (1 + 0.01 * torch.randn(2, 7, generator=generator))
    return x.to(dtype)


@pytest.mark.parametrize("width", [1, 2, 7, 48, 63, 64, 65, 100, 576, 640])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_error_is_half_a_step(width, bits, dtype):
    x = rows(width, dtype)
    packed = pack(x, bits)
    back = packed.unpack()
    assert back.shape == x.shape
    assert back.dtype == x.dtype
    # A turn keeps lengths: the bound on the turned numbers holds for a block's root mean square.
    steps = lowbit._ranges(packed.scale, packed.offset, packed.units)[0].squeeze(-1)
    block = lowbit._block(width)
    steps = steps.unflatten(-1, (-1, block // lowbit.group_size(width))).amax(dim=-1)
    error = torch.nn.functional.pad((back - x).to(torch.float32), (0, -width % block))
    error = error.unflatten(-1, (-1, block)).norm(dim=-1) / block**0.5
    # bfloat16 rows are rounded once more.
    slack = 2.0**-7 * x.to(torch.float32).abs().median() if dtype == torch.bfloat16 else 1e-6
    assert bool((error <= 0.5 * steps + slack).all())


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_reach_both_ends_of_every_group(bits):
    turned = torch.randn(2, 7, 18, 32) * torch.logspace(-6, 6, 18)[:, None]
    scale, offset, units = lowbit._describe(turned, 2**bits - 1)
    step, low = lowbit._ranges(scale, offset, units)
    high = low + step * (2**bits - 1)
    assert bool((low[..., 0] <= turned.amin(dim=-1)).all())
    assert bool((high[..., 0] >= turned.amax(dim=-1) * (1 - 1e-6)).all())


@pytest.mark.parametrize("bits", [4, 8])
def test_outlier_channels_stay_exact_and_hurt_nobody(bits):
    x = rows(576)
    back = pack(x, bits).unpack()
    assert torch.equal(back[..., 192], x[..., 192])
    plain = x.clone()
    plain[..., 192] = 0
    without = pack(plain, bits).unpack()
    others = torch.arange(576) != 192
    worst = (back - x)[..., others].abs().max()
    assert worst <= 1.5 * (without - plain)[..., others].abs().max()


def test_rows_do_not_see_each_other():
    x = rows(64)
    alone = pack(x, 4)
    part = pack(x[:, 2:3], 4)
    assert torch.equal(alone.codes[:, 2:3], part.codes)


def test_zero_rows_come_back_as_zeros():
    x = torch.zeros(1, 3, 128)
    assert torch.equal(pack(x, 4).unpack(), x)


@pytest.mark.parametrize("width", [7, 100, 576])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_are_as_stated(width, dtype, bits):
    packed = pack(rows(width, dtype), bits)
    tensors = [packed.codes, packed.scale, packed.offset, packed.units]
    tensors += [packed.channels, packed.exact]
    held = sum(x.untyped_storage().nbytes() for x in tensors)
    assert held == packed_bytes(2 * 7, width, bits, dtype.itemsize)


def test_4_bits_take_a_third_of_bfloat16():
    assert packed_bytes(1000, 576, 4, 2) / (1000 * 576 * 2) < 0.307
    assert packed_bytes(1000, 576, 4, 4) / (1000 * 576 * 4) < 0.165


def test_the_turn_is_its_own_inverse():
    x = torch.randn(2, 3, 256)
    assert torch.allclose(lowbit._turn(lowbit._turn(x)), x, atol=1e-5)
