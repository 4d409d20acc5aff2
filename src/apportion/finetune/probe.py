"""A short real run of a model with a few of its decoder layers in place of all of them.

What a layer costs is measured, not derived: formulas per architecture would have to know every
kernel's workspace and every library's copies. Layers that are built alike cost alike, so a few of
each kind (full and sliding attention, dense and with experts, frozen and trained) stand for all:
the first of them for the decoder's lowest layer, the second for every other.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from apportion import models
from apportion.finetune.attach import Handle, attach
from apportion.finetune.trace import Trace, record
from apportion.meter import Meter

_MISSING = object()
# Weights of a probe's layers together, where the decoder has as many: more than caches hold, or a
# layer would find its weights where it left them, as it does not between thirty others.
COLD_BYTES = 2**26


@dataclass(frozen=True)
class Kind:
    """Decoder layers that are built alike and stand alike in the graph.

    Attributes:
        members: their places in the whole decoder.
        examples: places of some of them in the model at hand, which may hold fewer layers.
        gradient_bytes: of one layer's trainable parameters.
        reached: its input takes a gradient.
    """

    members: tuple[int, ...]
    examples: tuple[int, ...]
    gradient_bytes: int
    reached: bool


@dataclass(frozen=True)
class Excerpt:
    """The layers of a probe.

    Attributes:
        layers: those that are timed, and what must stand around them.
        first, steady: which of them stand for the decoder's lowest layer and for the others.
    """

    layers: tuple[nn.Module, ...]
    sources: tuple[int, ...]
    first: int
    steady: int


def kinds_of(model: nn.Module) -> list[Kind]:
    """The kinds of a decoder's layers, by their first places.

    Args:
        model: unwrapped.
    """
    layers = models.decoder_layers(model)
    groups: dict[Any, list[int]] = {}
    reached = embeds_with_gradient(model)
    trained = [any(p.requires_grad for p in layer.parameters()) for layer in layers]
    for k, layer in enumerate(layers):
        # A trained layer's gradient starts in it, wherever its input comes from.
        groups.setdefault((_build(layer), reached or trained[k]), []).append(k)
        reached = reached or trained[k]
    return [
        Kind(
            tuple(members), tuple(members), bytes_of(layers[members[0]], trained_only=True), key[1]
        )
        for key, members in groups.items()
    ]


def embeds_with_gradient(model: nn.Module) -> bool:
    """Whether the lowest layer's input takes a gradient."""
    find: Any = getattr(model, "get_input_embeddings", None)
    embeddings: Any = find() if callable(find) else None
    if embeddings is None:
        return False
    # Adapters on a frozen base may have a hook here that asks for a gradient.
    token = torch.zeros(1, 1, dtype=torch.int64, device=models.tensor_device(model))
    return bool(embeddings(token).requires_grad)


def bytes_of(module: nn.Module, trained_only: bool = False) -> int:
    """Bytes of parameters (each once) and, unless only what is trained counts, buffers."""
    total = sum(
        p.numel() * p.element_size()
        for p in module.parameters()
        if p.requires_grad or not trained_only
    )
    if not trained_only:
        total += sum(b.numel() * b.element_size() for b in module.buffers())
    return total


def whole_bytes(model: nn.Module, kinds: Sequence[Kind]) -> tuple[int, int]:
    """Bytes of the whole model, and of its trainable parameters, from a few of its layers."""
    layers = models.decoder_layers(model)
    found: list[int] = []
    for trained_only in (False, True):
        total = bytes_of(model, trained_only) - sum(bytes_of(x, trained_only) for x in layers)
        total += sum(
            len(kind.members) * bytes_of(layers[kind.examples[0]], trained_only) for kind in kinds
        )
        found.append(total)
    return found[0], found[1]


def _build(layer: nn.Module) -> Any:
    """What two layers must share to cost the same."""
    parameters = tuple(
        (name, type(p).__name__, tuple(p.shape), p.dtype, p.requires_grad)
        for name, p in layer.named_parameters()
    )
    # Plain attributes: the width of a sliding window, the kind of attention.
    plain = tuple(
        (name, type(module).__name__, key, value)
        for name, module in layer.named_modules()
        for key, value in sorted(vars(module).items())
        if isinstance(value, bool | int | str) and not key.endswith(("idx", "index"))
    )
    return parameters, plain


def excerpt_for(model: nn.Module, kind: Kind, kinds: Sequence[Kind]) -> Excerpt:
    """The probe of one kind: two of its layers, more where they are small, and a trained one where
    the gradient needs it."""
    layers = models.decoder_layers(model)
    each = max(1, bytes_of(layers[kind.examples[0]]))
    count = max(2, min(len(kind.members), -(-COLD_BYTES // each)))
    at = list(kind.examples[:count])
    few = [layers[k] for k in at]
    while len(few) < count:
        few.append(copy.deepcopy(few[-1]))
        at.append(at[-1])
    trained = next((k.examples[0] for k in kinds if k.gradient_bytes), None)
    if kind.gradient_bytes or trained is None or embeds_with_gradient(model):
        return Excerpt(tuple(few), tuple(at), 0, 1)
    if kind.reached:  # frozen, above a trained layer
        return Excerpt((layers[trained], *few), (trained, *at), 1, 2)
    return Excerpt((*few, layers[trained]), (*at, trained), 0, 1)


@contextmanager
def only(model: nn.Module, excerpt: Excerpt) -> Generator[None]:
    """The model with a few layers in place of all of them."""
    parent, name = container_of(model)
    container = getattr(parent, name)
    with ExitStack() as stack:
        for config in configs_of(model, models.decoder_of(model)):
            stack.enter_context(_shortened(config, len(container), excerpt.sources))
        setattr(parent, name, nn.ModuleList(excerpt.layers))
        try:
            yield
        finally:
            setattr(parent, name, container)


def container_of(model: nn.Module) -> tuple[nn.Module, str]:
    """The module that holds the list of decoder layers, and its name there."""
    decoder, layers = models.decoder_of(model), models.decoder_layers(model)
    path = next(
        name
        for name, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and [*module] == layers
    )
    outer, _, name = path.rpartition(".")
    return decoder.get_submodule(outer), name


def configs_of(*modules: nn.Module) -> list[Any]:
    """The text configs of some modules, each once."""
    found: dict[int, Any] = {}
    for module in modules:
        config: Any = getattr(module, "config", None)
        if config is not None:
            text = config.get_text_config() if hasattr(config, "get_text_config") else config
            found[id(text)] = text
    return list(found.values())


def lists_of(config: Any, layers: int) -> dict[str, Any]:
    """What a config lists for every layer."""
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == layers
    }


@contextmanager
def _shortened(config: Any, layers: int, sources: Sequence[int]) -> Generator[None]:
    """A config that begins with the layers that are left."""
    old = lists_of(config, layers)
    count = getattr(config, "num_hidden_layers", _MISSING)
    try:
        for name, value in old.items():
            # All entries stay behind: a mask is made for every kind of attention that is listed.
            setattr(config, name, type(value)([*(value[k] for k in sources), *value]))
        if count is not _MISSING:
            config.num_hidden_layers = len(sources)
        yield
    finally:
        for name, value in old.items():
            setattr(config, name, value)
        if count is not _MISSING:
            config.num_hidden_layers = count


@contextmanager
def undisturbed(model: nn.Module) -> Generator[None]:
    """Train on `model` inside; gradients, modes, flags and random numbers are as before after."""
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters]
    modes = [(module, module.training) for module in model.modules()]
    device = models.tensor_device(model)
    for parameter in parameters:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            model.train()
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for module, training in modes:
            module.training = training


@contextmanager
def checkpointing(model: nn.Module, on: bool) -> Generator[None]:
    """Transformers' gradient checkpointing switched on or off, as it was before afterwards."""
    names = ("gradient_checkpointing", "_gradient_checkpointing_func")
    layers = models.decoder_layers(model)
    before = [{name: layer.__dict__.get(name, _MISSING) for name in names} for layer in layers]
    try:
        for layer in layers:
            layer.__dict__[names[0]] = on
            layer.__dict__[names[1]] = partial(checkpoint, use_reentrant=False)
        yield
    finally:
        for layer, values in zip(layers, before, strict=True):
            for name, value in values.items():
                if value is _MISSING:
                    layer.__dict__.pop(name, None)
                else:
                    layer.__dict__[name] = value


@contextmanager
def prepared(
    model: nn.Module, settings: dict[str, Any] | None, checkpoints: bool
) -> Generator[None]:
    """The model as one option trains it.

    Args:
        settings: keywords of `attach`; None: nothing attached.
        checkpoints: whether gradient checkpointing is on where nothing is attached.
    """
    with ExitStack() as stack:
        stack.enter_context(checkpointing(model, checkpoints and settings is None))
        if settings is not None:
            stack.enter_context(attach(model, **settings))
        yield


def is_attached(model: nn.Module) -> bool:
    """Whether `attach` has been called on the model, and not been undone."""
    functions = [
        layer.__dict__.get("_gradient_checkpointing_func") for layer in models.decoder_layers(model)
    ]
    owners = [getattr(getattr(f, "func", None), "__self__", None) for f in functions]
    return any(isinstance(owner, Handle) for owner in owners)


def inputs_for(model: nn.Module, batch: int, length: int, loss_share: float) -> dict[str, Tensor]:
    """Random tokens, the last `loss_share` of every sample labelled."""
    device = models.tensor_device(model)
    find: Any = getattr(model, "get_input_embeddings", None)
    weight = getattr(find(), "weight", None) if callable(find) else None
    vocabulary = int(weight.shape[0]) if isinstance(weight, Tensor) else 256
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator).to(device)
    labels = ids.clone()
    labelled = max(1, round(loss_share * length))
    labels[:, : length - labelled] = -100
    return {"input_ids": ids, "labels": labels}


def learn(model: nn.Module, loss_share: float) -> None:
    """A step on few tokens: the first one after attaching finds out which products to leave out."""
    model(**inputs_for(model, 1, 16, loss_share), use_cache=False).loss.backward()
    for parameter in model.parameters():
        parameter.grad = None


def run(model: nn.Module, inputs: dict[str, Tensor], meter: Meter | None) -> Trace:
    """One step's trace; gradients are dropped."""
    try:
        return record(model, inputs, meter)
    finally:
        for parameter in model.parameters():
            parameter.grad = None
