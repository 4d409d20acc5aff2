"""Gradients of leaves without their hooks.

A backward inside of another one hands its gradients on, and the outer one gives them to the
parameters. Hooks that a user has on a parameter belong to the outer one: run in both, a hook that
scales gradients would scale them twice.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def gradients_of(
    outputs: Tensor, leaves: Sequence[Tensor], upstream: Tensor
) -> list[Tensor | None]:
    """Gradients of leaves; None where `outputs` doesn't depend on one.

    Args:
        outputs: of a graph that this call frees.
        leaves: tensors that it ends in.
        upstream: the gradient of `outputs`.
    """
    with _hooks_aside(leaves):
        return list(torch.autograd.grad(outputs, leaves, upstream, allow_unused=True))


@contextmanager
def _hooks_aside(leaves: Sequence[Tensor]) -> Generator[None]:
    """Take the hooks away; torch has no other way to ask for a gradient without them."""
    hooked = [(x, x._backward_hooks) for x in leaves if x._backward_hooks]  # pyright: ignore[reportPrivateUsage]
    for leaf, _ in hooked:
        leaf._backward_hooks = None  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        for leaf, hooks in hooked:
            leaf._backward_hooks = hooks  # pyright: ignore[reportPrivateUsage]
