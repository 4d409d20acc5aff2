"""How close the sparse backward's gradient is to the exact one, on the batch that was just run."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from apportion.finetune.attach import Handle


@dataclass
class Call:
    """One forward of the model, to be repeated.

    Attributes:
        arguments: of the call.
        states: of the random generators before it.
    """

    arguments: dict[str, Any]
    states: list[Tensor]


@contextmanager
def exactly(handle: Handle) -> Generator[None]:
    """Gradients inside are those of gradient checkpointing; the handle is unchanged afterwards."""
    settings, steps = handle.settings, steps_of(handle)
    handle.settings = replace(settings, keep=1.0, budget=None, published=False)
    try:
        yield
    finally:
        handle.settings = settings
        set_steps(handle, steps)


def steps_of(handle: Handle) -> int:
    """Batches that the handle has seen; seeds the rules that draw."""
    return handle._steps  # pyright: ignore[reportPrivateUsage]


def set_steps(handle: Handle, steps: int) -> None:
    """Go on counting from there, for a run that is resumed."""
    handle._steps = steps  # pyright: ignore[reportPrivateUsage]


def random_states() -> list[Tensor]:
    """Of all generators that a forward may draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *cuda]


def set_random_states(states: list[Tensor]) -> None:
    """Put them back."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def cosine_to_exact(model: nn.Module, handle: Handle, calls: Sequence[Call]) -> float:
    """Cosine between the gradients that the parameters hold and the exact ones of the same batches.

    Parameters' gradients, the random generators and the handle are as before afterwards. Costs the
    time of gradient checkpointing and one more gradient in memory.

    Args:
        model: as it was called.
        handle: attached to it.
        calls: the forwards whose gradients were accumulated, with labels in their arguments.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    held = [p.grad for p in trained]
    now = random_states()
    for parameter in trained:
        parameter.grad = None
    try:
        with exactly(handle):
            for call in calls:
                set_random_states(call.states)
                model(**call.arguments).loss.backward()
        exact = [p.grad for p in trained]
    finally:
        for parameter, gradient in zip(trained, held, strict=True):
            parameter.grad = gradient
        set_random_states(now)
    return _cosine(held, exact)


def _cosine(found: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> float:
    """Over all parameters as one vector, summed in float64."""
    dot, square, wanted = 0.0, 0.0, 0.0
    for a, b in zip(found, exact, strict=True):
        if a is not None:
            square += float(a.double().square().sum())
        if b is not None:
            wanted += float(b.double().square().sum())
        if a is not None and b is not None:
            dot += float((a.double() * b.double()).sum())
    return dot / max((square * wanted) ** 0.5, 1e-300)
