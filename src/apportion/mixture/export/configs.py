"""Trainers that read weights from a file of arguments or YAML.

Megatron-LM, NeMo, nanotron and MosaicML draw samples of one length, so shares of samples are shares
of tokens. Axolotl is different: its weight is the part of a data set that is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from apportion.budget import format_count
from apportion.errors import InputError, option
from apportion.mixture.export.plan import Plan


def megatron(plan: Plan) -> str:
    """Arguments `WEIGHT PREFIX …` for `--data-args-path FILE` (or after `--data-path`).

    Raises:
        InputError: a prefix with spaces or with the ending of a file, or several paths a source.
    """
    prefixes = _prefixes(plan, "Megatron-LM")
    for prefix in prefixes:
        if len(prefix.split()) != 1:
            raise InputError(
                f"Megatron-LM splits its arguments at spaces; rename the prefix {prefix!r}"
            )
    return "".join(f"{w} {p}\n" for w, p in zip(plan.weights, prefixes, strict=True))


def nemo(plan: Plan) -> str:
    """YAML with `paths: [WEIGHT, PREFIX, …]`, the zipped list of NeMo's PreTrainingDataModule.

    Raises:
        InputError: a prefix with the ending of a file, or several paths a source.
    """
    lines = ["paths:"]
    for weight, prefix in zip(plan.weights, _prefixes(plan, "NeMo"), strict=True):
        lines += [f"  - {weight}", f"  - {_text(_literal(prefix))}"]
    return _lines(lines)


def nanotron(plan: Plan) -> str:
    """YAML with one data stage: `data_stages[].data.dataset.{dataset_folder, dataset_weights}`.

    Raises:
        InputError: several paths a source.
    """
    folders = plan.single_paths("nanotron")
    lines = [
        "data_stages:",
        "  - name: mixture",
        "    start_training_step: 1",
        "    data:",
        f"      seed: {plan.seed}",
        "      num_loading_workers: 1",
        "      dataset:",
        "        dataset_folder:",
        *(f"          - {_text(folder)}" for folder in folders),
        "        dataset_weights:",
        *(f"          - {weight}" for weight in plan.weights),
    ]
    return _lines(lines)


def mosaicml(plan: Plan) -> str:
    """YAML `train_loader.dataset` with a stream a source and `epoch_size` in samples.

    Proportions are relative, and without `epoch_size` an epoch would follow the size of the data.

    Raises:
        InputError: no `tokens` or `sequence_length`, or several paths a source.
    """
    plan.need("MosaicML", tokens=plan.tokens, sequence_length=plan.sequence_length)
    assert plan.tokens is not None
    assert plan.sequence_length is not None
    samples = math.floor(plan.tokens / plan.sequence_length)
    if samples < 1:
        raise InputError(
            f"expected tokens for one sample at least, got {format_count(plan.tokens)} tokens for "
            f"samples of {plan.sequence_length}"
        )
    lines = [
        "train_loader:",
        "  dataset:",
        f"    max_seq_len: {plan.sequence_length}",
        f"    epoch_size: {samples}",
        "    shuffle: true",
        f"    shuffle_seed: {plan.seed}",
        "    streams:",
    ]
    paths = plan.single_paths("MosaicML")
    for name, path, weight in zip(plan.names, paths, plan.weights, strict=True):
        where = "remote" if "://" in path else "local"
        lines += [
            f"      {_text(name)}:",
            f"        {where}: {_text(_literal(path))}",
            f"        proportion: {weight}",
        ]
    return _lines(lines)


def axolotl(plan: Plan) -> str:
    """YAML `datasets` whose `weight` is the part of each data set that is kept, 0 < weight <= 1.

    It is not a share of the mixture: share * D / supply, which needs both. Weights are rounded
    down, so no data set is asked for more than the mixture has.

    Raises:
        InputError: no `tokens` or `supply`, a source that would need more than its whole data set,
            or several paths a source.
    """
    plan.need("axolotl", tokens=plan.tokens, supply=plan.supply)
    assert plan.tokens is not None
    assert plan.supply is not None
    if plan.max_epochs is not None and plan.max_epochs < 1:
        raise InputError(f"expected {option('max_epochs')} of 1 or more for axolotl, or none")
    lines = ["num_epochs: 1", "datasets:"]
    paths = plan.single_paths("axolotl")
    parts = plan.shares * plan.tokens / plan.supply
    for k, (name, path) in enumerate(zip(plan.names, paths, strict=True)):
        if not math.isfinite(float(plan.supply[k])):
            raise InputError(
                f"axolotl needs the supply of {name}: its weight is a part of that data set"
            )
        if parts[k] > 1.0 + 1e-6:
            most = plan.tokens / float(parts.max())
            raise InputError(
                f"axolotl keeps a part of each data set, 1 at most; {name} would need "
                f"{parts[k]:.4g} of its {format_count(plan.supply[k])} tokens: train on "
                f"{format_count(most)} tokens at most, or add data"
            )
        weight = math.floor(min(float(parts[k]), 1.0) * 1e9) / 1e9
        if weight == 0.0:
            raise InputError(f"axolotl refuses a weight of 0; {name} needs {parts[k]:.2g}")
        lines += [f"  - path: {_text(path)}", "    type: completion", f"    weight: {weight:.9f}"]
    return _lines(lines)


def _prefixes(plan: Plan, trainer: str) -> list[str]:
    prefixes = plan.single_paths(trainer)
    for prefix in prefixes:
        if prefix.endswith((".bin", ".idx")):
            raise InputError(
                f"{trainer} expects the prefix of a .bin and .idx pair, got {prefix!r}; "
                f"give {prefix[:-4]!r}"
            )
    return prefixes


def _text(value: str) -> str:
    """A YAML scalar in double quotes, the one style that can hold every character."""
    return '"' + "".join(_character(each) for each in value) + '"'


def _character(value: str) -> str:
    if value in '"\\':
        return "\\" + value
    if value.isprintable():
        return value
    code = ord(value)
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"


def _literal(value: str) -> str:
    """The text as OmegaConf, which NeMo and MosaicML read with, must have it: `${` would start an
    interpolation there, and backslashes before it are escapes."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value)


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
