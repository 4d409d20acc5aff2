"""A small decoder for sweeps on processors, and the shapes it comes in.

Design: pre-norm decoder with RMSNorm, rotary positions, SwiGLU and a tied
embedding, no biases, no dropout. Queries, keys and values are one matrix, gate
and up are one matrix, so a layer costs four matrix products. All sizes are
multiples of eight (whole AVX2 registers).

Initialisation and rates follow the maximal-update idea (Yang et al., "Tensor
Programs V", 2022) as far as a tied decoder needs it: hidden matrices start at
1/sqrt(fan in) and their Adam rate falls as 1/width from ``RATE_WIDTH``; the
embedding's rate and the norms' do not depend on the width; residual outputs are
scaled by 1/sqrt(2 layers). So one tuned base rate serves every size.

Refused: grouped heads, biases and separate output matrices. At these sizes they
change the count of parameters more than the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

RATE_WIDTH = 64
"""Width at which the hidden matrices train with exactly the recipe's rate."""


@dataclass(frozen=True)
class ModelShape:
    """Shape of the decoder: ``width`` features and ``hidden`` ones inside the SwiGLU."""

    width: int
    layers: int
    heads: int
    hidden: int

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.hidden) < 1:
            raise ValueError(f"expected positive sizes; got {self}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"width must be heads times an even head size; got width "
                f"{self.width}, heads {self.heads}"
            )

    @property
    def params(self) -> int:
        """Non-embedding parameters, exact: matrices of every layer and all norms."""
        attention = 4 * self.width * self.width
        feed_forward = 3 * self.width * self.hidden
        return self.layers * (attention + feed_forward + 2 * self.width) + self.width


SHAPES: dict[str, ModelShape] = {
    "0.05M": ModelShape(width=64, layers=1, heads=2, hidden=168),
    "0.2M": ModelShape(width=96, layers=2, heads=3, hidden=168),
    "0.6M": ModelShape(width=128, layers=3, heads=4, hidden=352),
    "2.4M": ModelShape(width=224, layers=4, heads=7, hidden=592),
    "4.8M": ModelShape(width=288, layers=5, heads=9, hidden=736),
    "6.4M": ModelShape(width=320, layers=5, heads=10, hidden=896),
}
"""Named shapes by their non-embedding parameters, exact in ``params``."""


def _rotate(
    x: Float[Tensor, "batch heads time size"],
    cos: Float[Tensor, "time half"],
    sin: Float[Tensor, "time half"],
) -> Float[Tensor, "batch heads time size"]:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _norm(
    x: Float[Tensor, "*any width"], gain: Float[Tensor, " width"]
) -> Float[Tensor, "*any width"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


class _Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        d = shape.width
        self.heads = shape.heads
        self.norm1 = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.empty(3 * d, d))
        self.out = nn.Parameter(torch.empty(d, d))
        self.norm2 = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Parameter(torch.empty(2 * shape.hidden, d))
        self.down = nn.Parameter(torch.empty(d, shape.hidden))

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        cos: Float[Tensor, "time half"],
        sin: Float[Tensor, "time half"],
    ) -> Float[Tensor, "batch time width"]:
        b, t, d = x.shape
        qkv = F.linear(_norm(x, self.norm1), self.qkv).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True
        )
        x = x + F.linear(mixed.transpose(1, 2).reshape(b, t, d), self.out)
        gate, up = F.linear(_norm(x, self.norm2), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Decoder(nn.Module):
    """The decoder: token ids in, summed cross-entropy in nats out.

    ``generator`` makes the initial weights, so that equal seeds give equal weights.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, shape: ModelShape, vocab: int, length: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(vocab, shape.width))
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        half = shape.width // shape.heads // 2
        angles = torch.outer(
            torch.arange(length, dtype=torch.float32),
            10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half),
        )
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.reset(generator)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Fresh initial weights from ``generator``, in place."""
        for norm in (p for p in self.parameters() if p.ndim == 1):
            norm.fill_(1.0)
        nn.init.normal_(self.embedding, std=1 / math.sqrt(self.shape.width), generator=generator)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and name != "embedding":
                scale = 1 / math.sqrt(parameter.shape[1])
                if name.endswith((".out", ".down")):
                    scale /= math.sqrt(2 * self.shape.layers)
                nn.init.normal_(parameter, std=scale, generator=generator)

    def forward(
        self, inputs: Int[Tensor, "batch time"], targets: Int[Tensor, "batch time"]
    ) -> Float[Tensor, " batch"]:
        """Cross-entropy of each sequence: the mean over its tokens, in nats."""
        x = F.embedding(inputs, self.embedding) * math.sqrt(self.shape.width)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(_norm(x, self.norm), self.embedding)
        losses = F.cross_entropy(
            logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="none"
        )
        return losses.view(inputs.shape).mean(dim=1)
