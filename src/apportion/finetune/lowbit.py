"""Rows in few bits: groups of channels with a scale and an offset each, outliers handled.

A few channels of a decoder's residual stream are tens to thousands of times larger than the rest;
one of them in a group leaves the others no levels. So (1) the channels that are largest over the
batch are kept as they are, and (2) the others are turned by a Hadamard matrix in blocks of 64,
which spreads what is left of the outliers evenly; its inverse is itself. Then every group of 32
numbers gets its own range: code = round((y - offset) / scale), asymmetric, 4 or 8 bits. Scale and
offset of a group are themselves one byte each, times a unit of the row.

Cost per number in 4 bits: 4 + 16 / 32 bits, 32 more a row, and the exact channels. Refused: groups
of 64 with their range in two bytes a number (the same bytes, a third more error), a dense random
rotation (as good as this, at a tenth of a layer's arithmetic), and one set of outlier channels
measured beforehand (they move with the data and with training).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor

BLOCK = 64
GROUP = 32
# One channel in this many is kept exactly: 12 of 576.
CHANNELS_PER_OUTLIER = 48
# Units of a row are rounded to bfloat16, by up to one part in 256; this much larger, they reach.
_ROUNDING = 1 + 2**-7


@dataclass(frozen=True)
class Packed:
    """Rows in few bits; `unpack` gives them back.

    Attributes:
        codes: two codes a byte in 4 bits (low halves are the first half of a group), one in 8.
        scale: step of each group, in units of its row.
        offset: lowest value of each group, in units of its row.
        units: of scale and offset, bfloat16: its exponent reaches as far as float32's.
        channels: the exact channels.
        exact: their values, in the dtype of the rows.
        width: channels of the rows.
        bits: 4 or 8.
    """

    codes: UInt8[Tensor, "batch rows groups bytes"]
    scale: UInt8[Tensor, "batch rows groups"]
    offset: Int8[Tensor, "batch rows groups"]
    units: Float[Tensor, "batch rows 2"]
    channels: Int[Tensor, " outliers"]
    exact: Float[Tensor, "batch rows outliers"]
    width: int
    bits: int

    def unpack(self) -> Float[Tensor, "batch rows width"]:
        """The rows, in the dtype that they had."""
        codes = self.codes
        if self.bits == 4:
            codes = torch.cat([codes & 15, codes >> 4], dim=-1)
        step, low = _ranges(self.scale, self.offset, self.units)
        y = codes.to(torch.float32).mul_(step).add_(low).flatten(2)
        x = _turn(y)[..., : self.width].to(self.exact.dtype)
        return x.index_copy_(-1, self.channels, self.exact)


def pack(x: Float[Tensor, "batch rows width"], bits: int) -> Packed:
    """Put rows into 4 or 8 bits a number."""
    width = x.shape[-1]
    channels = outliers(x)
    exact = x.index_select(-1, channels)
    y = x.new_zeros(*x.shape[:-1], _padded(width), dtype=torch.float32)
    y[..., :width] = x
    y.index_fill_(-1, channels, 0.0)
    y = _turn(y).unflatten(-1, (-1, group_size(width)))
    levels = 2**bits - 1
    scale, offset, units = _describe(y, levels)
    step, low = _ranges(scale, offset, units)
    y = y.sub_(low).div_(step).round_().clamp_(0, levels)
    if bits == 4:
        # As numbers, before they become bytes: half of them have to.
        low_half, high_half = y.chunk(2, dim=-1)
        y = torch.add(low_half, high_half, alpha=16)
    return Packed(y.to(torch.uint8), scale, offset, units, channels, exact, width, bits)


def _describe(
    y: Float[Tensor, "batch rows groups group"], levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale and offset of every group and the units of every row, so that all numbers are reached.

    The offset is rounded down and the scale up.
    """
    # Two passes: `aminmax` takes ten times as long.
    low, high = y.amin(dim=-1), y.amax(dim=-1)
    unit_of_low = _unit(low.abs().amax(dim=-1, keepdim=True), 127)
    offset = (low / unit_of_low).floor_().clamp_(-127, 127)
    step = (high - offset * unit_of_low) / levels
    unit_of_step = _unit(step.amax(dim=-1, keepdim=True), 255)
    scale = (step / unit_of_step).ceil_().clamp_(1, 255)
    units = torch.cat([unit_of_step, unit_of_low], dim=-1).to(torch.bfloat16)
    return scale.to(torch.uint8), offset.to(torch.int8), units


def _unit(largest: Float[Tensor, "batch rows 1"], steps: int) -> Float[Tensor, "batch rows 1"]:
    """So large that `steps` of it reach the largest value; rows of zeros get any."""
    unit = (largest * (_ROUNDING / steps)).to(torch.bfloat16).to(torch.float32)
    return torch.where(unit > 0, unit, 1.0)


def _ranges(scale: Tensor, offset: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """Step and lowest value of every group, (batch, rows, groups, 1) in float32."""
    unit = units.to(torch.float32)
    return (scale * unit[..., :1])[..., None], (offset * unit[..., 1:])[..., None]


def outliers(x: Float[Tensor, "batch rows width"]) -> Int[Tensor, " outliers"]:
    """The channels with the largest absolute values over the batch, ascending."""
    count = outlier_count(x.shape[-1])
    rows = x.flatten(0, 1)
    largest = torch.maximum(rows.amax(dim=0), -rows.amin(dim=0))
    return largest.topk(count).indices.sort().values


def outlier_count(width: int) -> int:
    """Channels that stay exact."""
    return max(1, round(width / CHANNELS_PER_OUTLIER))


def group_size(width: int) -> int:
    """Numbers that share a range: 32, or the next power of two for narrower rows."""
    return min(GROUP, _block(width))


def _block(width: int) -> int:
    return min(BLOCK, max(2, 1 << (width - 1).bit_length()))


def _padded(width: int) -> int:
    """The width in whole blocks."""
    return -(-width // _block(width)) * _block(width)


def packed_bytes(rows: int, width: int, bits: int, element: int) -> int:
    """Bytes that `pack` needs for so many rows, the dtype's `element` bytes a number."""
    numbers = _padded(width)
    groups = numbers // group_size(width)
    per_row = numbers * bits // 8 + groups * 2 + 4 + outlier_count(width) * element
    return rows * per_row + outlier_count(width) * 8


def _turn(y: Float[Tensor, "batch rows padded"]) -> Float[Tensor, "batch rows padded"]:
    """Every block of a row times the Hadamard matrix."""
    block = _block(y.shape[-1])
    return (y.unflatten(-1, (-1, block)) @ _hadamard(block, y.device)).flatten(2)


@cache
def _hadamard(size: int, device: torch.device) -> Tensor:
    """Sylvester's matrix over the root of its size: symmetric, and its own inverse."""
    h = torch.ones(1, 1, device=device)
    while h.shape[0] < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h / size**0.5
