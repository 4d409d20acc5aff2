"""A model's own rotary embedding, asked for any positions.

The model's own module is asked, so its scaling of positions (linear, YaRN, Llama 3's, ...) and, in
models with several kinds of layers, each kind's own frequencies are in what it says. All positions
of a forward are asked for at once: dynamic scalings choose their frequencies by the largest one,
and what is rotated and what is rotated back must agree.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from apportion.errors import InputError
from apportion.models.find import decoder_layers, decoder_of, row_size, tensor_device
from apportion.models.routing import RoutedAttention, attention_of

# Of position and pair of numbers, float32: cosine and sine, a scale in both.
RotaryTable = tuple[Float[Tensor, "positions pairs"], Float[Tensor, "positions pairs"]]
# The same of position and number of a head; the sines signed.
Turns = tuple[Float[Tensor, "positions numbers"], Float[Tensor, "positions numbers"]]


class Rotary:
    """A model's own rotary embedding.

    Attributes:
        moves: for every layer, whether its attention rotates its keys at all; some models leave
            some layers without positions.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find it, and see for every layer what it does to keys.

        Args:
            model: unwrapped, with weights.

        Raises:
            InputError: a model without rotary positions, or with pairs of numbers other than the
                two halves of the rotated part, or weights that are not finite.
        """
        self._name = type(model).__name__
        found = _find(decoder_of(model))
        if found is None:
            raise InputError(
                f"expected a model with rotary positions (RoPE), whose keys can be moved to other "
                f"positions; got {self._name}, which has none that can be found (learned positions "
                "and ALiBi can't be moved); Llama, Mistral, Qwen, Gemma, Phi and SmolLM models work"
            )
        self._module = found
        self._device = tensor_device(model)
        self._takes_kind = "layer_type" in inspect.signature(found.forward).parameters
        attentions = [attention_of(layer) for layer in decoder_layers(model)]
        self.kinds = [self._kind(attention) for attention in attentions]
        routed = RoutedAttention(model, lambda own: _show)
        try:
            self.moves = [self._moves(model, attention) for attention in attentions]
        finally:
            routed.restore()

    def table(self, count: int, kind: str | None) -> RotaryTable:
        """Cosines and sines of positions 0 up, for layers of a kind (see `kinds`).

        Raises:
            InputError: the model's embedding gives something else.
        """
        places = torch.arange(count, device=self._device)[None]
        wide = torch.empty(1, 1, device=self._device, dtype=torch.float32)
        more = (kind,) if kind is not None else ()
        made = self._module(wide, places, *more)
        if not isinstance(made, tuple):
            raise self._other_way()
        cos, sin = made
        half = cos.shape[-1] // 2
        return cos[0, :, :half], sin[0, :, :half]

    def _kind(self, attention: nn.Module) -> str | None:
        if not self._takes_kind:
            return None
        kind: Any = getattr(attention, "layer_type", None)
        if kind is None:
            config: Any = attention.config
            kind = config.layer_types[attention.layer_idx]
        return str(kind)

    @torch.no_grad()
    def _moves(self, model: nn.Module, attention: nn.Module) -> bool:
        """Whether the layer rotates as is written here, or not at all; refused otherwise."""
        width, _ = row_size(model)
        generator = torch.Generator().manual_seed(0)
        weight = next(attention.parameters())
        rows = torch.randn(1, 3, width, generator=generator).to(weight)
        cos, sin = (part[1:4].to(weight.dtype) for part in self.table(4, self._kind(attention)))
        still = _keys(attention, rows, torch.ones_like(cos), torch.zeros_like(sin))
        moved = _keys(attention, rows, cos, sin)
        if still is not None and moved is not None:
            size = float(still.abs().max())
            if not math.isfinite(size):
                raise InputError(
                    f"expected finite weights, got NaN or infinity in the attention of layer "
                    f"{attention.layer_idx}"
                )
            near = 0.02 if weight.dtype in (torch.bfloat16, torch.float16) else 1e-4
            if torch.allclose(moved, rotate(still, (cos, sin)), atol=near * size):
                return True
            if torch.equal(still, moved):
                return False
        raise self._other_way()

    def _other_way(self) -> InputError:
        return InputError(
            f"expected a model whose rotary positions pair the two halves of a head, as Llama, "
            f"Mistral, Qwen, Gemma and Phi do; {self._name} rotates in another way"
        )


def rotate(
    x: Float[Tensor, "batch heads entries size"], table: RotaryTable, back: bool = False
) -> Float[Tensor, "batch heads entries size"]:
    """Keys turned to the positions of a table's rows, in float32, given in their own dtype.

    Args:
        x: keys; what exceeds the table's numbers is not rotated.
        table: a row for every entry.
        back: undo it.
    """
    return turned(x, turns(table, back))


def turns(table: RotaryTable, back: bool = False) -> Turns:
    """What `turned` multiplies with: cosines and signed sines of whole heads.

    Args:
        table: cosines and sines of half a head.
        back: undo the rotation.
    """
    cos, sin = table
    if back:
        # A model's own scale stands in both; undone, it is divided by twice.
        size = cos.square() + sin.square()
        cos, sin = cos / size, -sin / size
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def turned(
    x: Float[Tensor, "batch heads entries size"], by: Turns
) -> Float[Tensor, "batch heads entries size"]:
    """As `rotate`, with the result of `turns`, which many layers share."""
    cos, sin = by
    size = cos.shape[-1]
    if x.shape[-1] > size:
        return torch.cat([turned(x[..., :size], by), x[..., size:]], dim=-1)
    wide = x.to(torch.float32, copy=True)
    halves = wide.roll(size // 2, dims=-1)
    return wide.mul_(cos).addcmul_(halves, sin).to(x.dtype)


class _Seen(Exception):
    """Carries the keys out of a layer's attention, which need not go on."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys


def _show(module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
    raise _Seen(key)


def _keys(attention: nn.Module, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """The keys that the layer's attention would have used; None if it can't be called like that."""
    both = tuple(torch.cat([part, part], dim=-1)[None] for part in (cos, sin))
    try:
        attention(hidden_states=rows, position_embeddings=both, attention_mask=None)
    except _Seen as seen:
        return seen.keys
    except (TypeError, RuntimeError, AttributeError):
        pass
    return None


def _find(decoder: nn.Module) -> Any:
    for module in decoder.modules():
        found = getattr(module, "rotary_emb", None)
        if isinstance(found, nn.Module):
            return found
    return None
