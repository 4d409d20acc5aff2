"""What a forward refuses: attention that asks for more than is handled, numbers that are none."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from apportion.errors import InputError

# What a layer's attention may be told beyond what is handled, and need not be acted on.
_HARMLESS = {
    "dropout",
    "is_causal",
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_router_logits",
    "cache",
    "past_key_values",
    "cache_position",
}


def check_arguments(
    module: Any,
    window: int | None,
    expected: int | None,
    more: Mapping[str, Any],
    done: Container[int],
) -> None:
    """A layer's attention asks for nothing that would change it in a way that is not known.

    Args:
        module: the attention.
        window: sliding window that its call states.
        expected: the one that the model's config states.
        more: arguments that are not handled.
        done: layers that have asked already.

    Raises:
        InputError: it does.
    """
    name = type(module).__name__
    unknown = [key for key, value in more.items() if value is not None and key not in _HARMLESS]
    if unknown:
        raise InputError(
            f"expected attention as in Llama, Mistral, Qwen, Gemma or Phi; {name} asks for "
            f"{', '.join(sorted(unknown))}, which is not handled"
        )
    if module.layer_idx in done:
        raise InputError(
            f"expected every layer to attend once, as in Llama, Mistral, Qwen, Gemma or Phi; "
            f"{name} does so more often"
        )
    if window != expected:
        # Such a layer has its window in a mask alone, and no mask is made here.
        raise InputError(
            f"expected every layer to tell its attention its sliding window ({expected}, by the "
            f"model's config), as Mistral, Qwen and Gemma do; {name} tells {window}"
        )


def check_finite(
    sums: Mapping[int, Float[Tensor, ""]],
    logits: Float[Tensor, "batch positions vocabulary"],
    first: int,
    tokens: int,
) -> None:
    """Nothing is NaN or infinite; one look at the device for all layers.

    Args:
        sums: of what each layer's attention has gathered, in the order of the layers.
        logits: after the last layer.
        first: place in the text of the first token that was read.
        tokens: how many were read.

    Raises:
        InputError: something is; it names the first layer where it shows.
    """
    good = torch.stack([*sums.values(), logits.sum(dtype=torch.float32)]).isfinite().tolist()
    if all(good):
        return
    places = [*(f"the attention of layer {number}" for number in sums), "the logits"]
    where = places[good.index(False)]
    raise InputError(
        f"expected finite numbers, got NaN or infinity in {where} while reading tokens {first} to "
        f"{first + tokens - 1}; a wider dtype may help: dtype=torch.float32"
    )
