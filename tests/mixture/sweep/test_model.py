"""The decoder: exact counts, causality, and the formulas written out plainly."""

import math

import pytest
import torch
import torch.nn.functional as F

from apportion.mixture.sweep.model import SHAPES, Decoder, ModelShape

SHAPE = ModelShape(width=16, layers=2, heads=2, hidden=24)


def make(seed: int = 0) -> Decoder:
    return Decoder(SHAPE, 50, 12, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [*SHAPES.values(), SHAPE])
def test_the_count_of_parameters_is_exact(shape: ModelShape) -> None:
    model = Decoder(shape, 300, 8, torch.Generator())
    total = sum(p.numel() for p in model.parameters())
    assert shape.params == total - 300 * shape.width


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ((0, 1, 1, 1), "expected positive sizes"),
        ((15, 1, 2, 8), "width must be heads times an even head size"),
        ((6, 1, 2, 8), "width must be heads times an even head size"),
    ],
)
def test_impossible_shapes_are_refused(size: tuple[int, int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelShape(*size)


def test_equal_seeds_give_equal_weights_also_in_place() -> None:
    first, second = make(3), make(4)
    second.reset(torch.Generator().manual_seed(3))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(make(4).embedding, first.embedding)


def test_a_later_token_never_changes_an_earlier_prediction() -> None:
    model = make()
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    # the loss on the first six targets, by cutting the sequence off and by gradient
    model.requires_grad_(False)
    embedded = F.embedding(tokens, model.embedding).requires_grad_(True)
    x = embedded * math.sqrt(SHAPE.width)
    for layer in model.layers:
        x = layer(x, model.cos, model.sin)
    x[0, 5].sum().backward()
    assert embedded.grad is not None
    assert torch.all(embedded.grad[0, 6:] == 0)
    assert torch.all(embedded.grad[0, :6].abs().sum(-1) > 0)


def plain_loss(model: Decoder, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The decoder written token by token and head by head, in double precision."""
    d, heads = SHAPE.width, SHAPE.heads
    size = d // heads

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    def rotate(x: torch.Tensor, place: int) -> torch.Tensor:
        out = x.clone()
        for i in range(size // 2):
            angle = place * 10_000.0 ** (-i / (size // 2))
            a, b = x[i].item(), x[i + size // 2].item()
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + size // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    losses = []
    for row, wanted in zip(inputs, targets, strict=True):
        x = model.embedding[row] * math.sqrt(d)
        for layer in model.layers:
            q, k, v = (norm(x, layer.norm1) @ layer.qkv.T).split(d, dim=-1)
            mixed = torch.zeros_like(x)
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                for t in range(len(row)):
                    turned = rotate(q[t, part], t)
                    scores = torch.stack([turned @ rotate(k[s, part], s) for s in range(t + 1)])
                    mixed[t, part] = (scores / math.sqrt(size)).softmax(0) @ v[: t + 1, part]
            x = x + mixed @ layer.out.T
            gate, up = (norm(x, layer.norm2) @ layer.gate_up.T).split(SHAPE.hidden, dim=-1)
            x = x + (gate * torch.sigmoid(gate) * up) @ layer.down.T
        logits = norm(x, model.norm) @ model.embedding.T
        logs = logits.log_softmax(-1)
        losses.append(-logs[torch.arange(len(row)), wanted].mean())
    return torch.stack(losses)


def test_the_loss_is_that_of_the_formulas() -> None:
    model = make()
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 50, (3, 13), generator=generator)
    with torch.no_grad():
        fast = model(tokens[:, :-1], tokens[:, 1:])
        slow = plain_loss(model.double(), tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(fast.double(), slow, rtol=2e-5, atol=1e-6)
