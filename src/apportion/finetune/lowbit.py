"""Rows in few bits: groups of channels with a scale and an offset each, outliers handled.

A few channels of a decoder's residual stream are tens to thousands of times larger than the rest;
one of them in a group leaves the others no levels. So (1) the channels that are largest over the
batch are kept as they are, and (2) the others are turned by a Hadamard matrix in blocks of 64,
which spreads what is left of the outliers evenly; its inverse is itself. Then every group of 64
numbers gets its own range: code = round((y - offset) / scale), asymmetric, 4 or 8 bits.

Cost per number in 4 bits: 4 + 32 / 64 bits, and the exact channels. Refused: a dense random
rotation (as good as this, at a tenth of a layer's arithmetic) and one set of outlier channels
measured beforehand (they move with the data and with training).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

GROUP = 64
# One channel in this many is kept exactly: 12 of 576.
CHANNELS_PER_OUTLIER = 48


@dataclass(frozen=True)
class Packed:
    """Rows in few bits; `unpack` gives them back.

    Attributes:
        codes: two codes a byte in 4 bits (all low halves of a group first), one in 8.
        scale: step of each group, bfloat16: its exponent reaches as far as float32's.
        offset: lowest value of each group.
        channels: the exact channels.
        exact: their values, in the dtype of the rows.
        width: channels of the rows.
        bits: 4 or 8.
    """

    codes: UInt8[Tensor, "batch rows groups bytes"]
    scale: Float[Tensor, "batch rows groups 1"]
    offset: Float[Tensor, "batch rows groups 1"]
    channels: Int[Tensor, " outliers"]
    exact: Float[Tensor, "batch rows outliers"]
    width: int
    bits: int

    def unpack(self) -> Float[Tensor, "batch rows width"]:
        """The rows, in the dtype that they had."""
        codes = self.codes
        if self.bits == 4:
            codes = torch.cat([codes & 15, codes >> 4], dim=-1)
        y = codes.to(torch.float32)
        y.mul_(self.scale).add_(self.offset)
        x = _turn(y).flatten(2)[..., : self.width].to(self.exact.dtype)
        x.index_copy_(-1, self.channels, self.exact)
        return x


def pack(x: Float[Tensor, "batch rows width"], bits: int) -> Packed:
    """Put rows into 4 or 8 bits a number."""
    width = x.shape[-1]
    channels = outliers(x)
    exact = x.index_select(-1, channels)
    # Copies even where the dtype is float32 already: the rows are the caller's.
    y = torch.nn.functional.pad(x.to(torch.float32, copy=True), (0, -width % group_size(width)))
    y.index_fill_(-1, channels, 0.0)
    y = _turn(y.unflatten(-1, (-1, group_size(width))))
    low, high = y.aminmax(dim=-1, keepdim=True)
    levels = 2**bits - 1
    offset = low.to(torch.bfloat16)
    # The range must reach from the rounded offset to the top; rounding can lift it above.
    scale = ((high - offset) / levels).clamp(min=0).to(torch.bfloat16)
    step = torch.where(scale > 0, scale, 1).to(torch.float32)
    codes = y.sub_(offset).div_(step).round_().clamp_(0, levels).to(torch.uint8)
    if bits == 4:
        low_half, high_half = codes.chunk(2, dim=-1)
        codes = low_half | (high_half << 4)
    return Packed(codes, scale, offset, channels, exact, width, bits)


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
    """Numbers that share a scale: 64, or the next power of two for narrower rows."""
    return min(GROUP, max(2, 1 << (width - 1).bit_length()))


def packed_bytes(rows: int, width: int, bits: int, element: int) -> int:
    """Bytes that `pack` needs for so many rows, the dtype's `element` bytes a number."""
    groups = -(-width // group_size(width))
    codes = groups * group_size(width) * bits // 8
    per_row = codes + groups * 4 + outlier_count(width) * element
    return rows * per_row + outlier_count(width) * 8


def _turn(y: Float[Tensor, "batch rows groups group"]) -> Float[Tensor, "batch rows groups group"]:
    return y @ _hadamard(y.shape[-1], y.device)


@cache
def _hadamard(size: int, device: torch.device) -> Tensor:
    """Sylvester's matrix over the root of its size: symmetric, and its own inverse."""
    h = torch.ones(1, 1, device=device)
    while h.shape[0] < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h / size**0.5
