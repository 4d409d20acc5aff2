"""A plan from a model's config alone: for models too large to load only to ask what fits.

The whole model exists on the meta device, where nothing has a value, and is counted there. Two
layers of each kind, with the embeddings and the head, get random weights and are probed.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion import models
from apportion.finetune import probe
from apportion.finetune.plan import Asked, Plan, check_positions, plan_kinds
from apportion.finetune.probe import Kind
from apportion.finetune.recipe import Recipe
from apportion.finetune.survey import Progress

# As `train` sets adapters up; it does not change what they cost.
_ALPHA = 16


def plan_from_config(
    source: str | Path,
    *,
    batch: int,
    length: int,
    memory: str | int | None = None,
    loss_share: float = 1.0,
    lora: int | None = 16,
    dtype: str = "auto",
    rounds: int = 3,
    progress: Progress | None = None,
) -> Plan:
    """As `plan`, for a model that is not loaded; nothing but its config is read.

    Args:
        source: a folder with config.json, a config.json, or a GGUF file.
        batch: samples of a step.
        length: tokens of every sample.
        memory: what must be enough, such as "2GB".
        loss_share: tokens that carry loss, of all.
        lora: rank of adapters on all linear layers; None: every parameter is trained.
        dtype: "float32", "bfloat16" (frozen weights are held in it) or "auto", as in `Recipe`.
        rounds: timed steps of each probe.
        progress: takes the share that is done.

    Raises:
        InputError: as `plan`; no such config.
    """
    asked = Asked.checked(batch, length, memory, loss_share, rounds)
    compute = Recipe(lora=lora, dtype=dtype).compute_dtype()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = models.outline(source, torch.float32 if lora is None else compute)
    check_positions(model, str(source), length)
    whole = probe.kinds_of(model)
    picks = sorted(k for kind in whole for k in kind.members[:2])
    _shorten(model, picks)
    models.fill(model, device)
    if lora is not None:
        model = models.adapted(model, lora, _ALPHA)
    inner = models.unwrap(model)
    kinds = [_extended(kind, picks, whole) for kind in probe.kinds_of(inner)]
    with ExitStack() as stack:
        if compute != torch.float32:
            stack.enter_context(torch.autocast(device.type, dtype=compute))
        return plan_kinds(inner, kinds, asked, progress)


def _shorten(model: nn.Module, picks: list[int]) -> None:
    """Leave some layers, and what the config lists of them."""
    layers = models.decoder_layers(model)
    parent, name = probe.container_of(model)
    for config in probe.configs_of(model, models.decoder_of(model)):
        for key, value in probe.lists_of(config, len(layers)).items():
            setattr(config, key, type(value)(value[k] for k in picks))
        if hasattr(config, "num_hidden_layers"):
            config.num_hidden_layers = len(picks)
    setattr(parent, name, nn.ModuleList([layers[k] for k in picks]))


def _extended(kind: Kind, picks: list[int], whole: list[Kind]) -> Kind:
    """A kind of the few layers with its members in the whole decoder."""
    here = {picks[k] for k in kind.members}
    members: Any = [k for each in whole if here & set(each.members) for k in each.members]
    return Kind(tuple(sorted(members)), kind.members, kind.gradient_bytes, kind.reached)
