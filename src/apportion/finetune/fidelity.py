"""How close the sparse backward's gradient is to the exact one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from apportion.errors import InputError
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
    settings, steps = handle.settings, handle.steps
    handle.settings = replace(settings, keep=1.0, budget=None, published=False)
    try:
        yield
    finally:
        handle.settings = settings
        handle.steps = steps


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


@dataclass(frozen=True)
class Fidelity:
    """A gradient beside the exact one, all trainable parameters as one vector.

    Attributes:
        cosine: of the angle between them; 1: the same direction.
        norm_ratio: its length over the exact one's; below 1 where rows were dropped.
    """

    cosine: float
    norm_ratio: float


def fidelity(
    handle: Handle, inputs: Mapping[str, Any], loss: Callable[[Any], Tensor] | None = None
) -> Fidelity:
    """Compare the gradient of one batch, as attached, with the exact one (keep 1).

    Both runs draw the same random numbers (dropout). Parameters' gradients, the random generators
    and the handle are as before afterwards; nothing is updated. Costs two steps and one more
    gradient in memory.

    Args:
        handle: attached to a model in training mode.
        inputs: keywords of the model's call, `labels` among them unless `loss` is given.
        loss: from the model's output to a scalar; None: the output's own.

    Raises:
        InputError: a model in evaluation mode, or an output without a loss.
    """
    model = handle.model
    if not model.training:
        raise InputError(
            "expected a model in training mode, got one in evaluation mode, whose gradients are "
            "exact; call model.train() first"
        )
    trained = [p for p in model.parameters() if p.requires_grad]
    held, now, steps = [p.grad for p in trained], random_states(), handle.steps
    try:
        with exactly(handle):
            exact = _gradients(model, trained, inputs, loss)
        set_random_states(now)
        # Second, so that the ledger holds the step as attached.
        found = _gradients(model, trained, inputs, loss)
    finally:
        for parameter, gradient in zip(trained, held, strict=True):
            parameter.grad = gradient
        set_random_states(now)
        handle.steps = steps
    lengths = [_norm(found), _norm(exact)]
    return Fidelity(_cosine(found, exact), lengths[0] / max(lengths[1], 1e-300))


def _gradients(
    model: nn.Module,
    trained: Sequence[nn.Parameter],
    inputs: Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None,
) -> list[Tensor | None]:
    for parameter in trained:
        parameter.grad = None
    output = model(**inputs)
    value = output.loss if loss is None else loss(output)
    if not isinstance(value, Tensor):
        raise InputError(
            "expected inputs with labels, or a loss function, got an output without a loss; add "
            "labels=... to the inputs, or pass loss=lambda output: ..."
        )
    value.backward()
    return [p.grad for p in trained]


def _norm(gradients: Sequence[Tensor | None]) -> float:
    return sum(float(g.double().square().sum()) for g in gradients if g is not None) ** 0.5


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
