"""Trainers that are configured in Python: OLMo-core, Hugging Face datasets, litgpt.

`interleave_datasets` draws examples, not tokens: a family with long documents would get more than
its share, so shares of tokens are divided by the mean tokens of an example.
"""

from __future__ import annotations

import math

import numpy as np

from apportion.errors import InputError
from apportion.mixture.export.plan import Plan


def olmo_core(plan: Plan) -> str:
    """A `SourceMixtureDatasetConfig`; ratios sum to 1 and repetition is allowed where needed.

    Raises:
        InputError: no `tokens` or `batch_tokens`.
    """
    plan.need("OLMo-core", tokens=plan.tokens, batch_tokens=plan.batch_tokens)
    assert plan.tokens is not None
    assert plan.batch_tokens is not None
    repetitions = np.ones(len(plan.names))
    if plan.epochs is not None:
        # Upwards in the fourth decimal: the trainer refuses a source that falls a token short.
        repetitions = np.maximum(1.0, np.ceil(plan.epochs * 1e4) / 1e4)
        if plan.max_epochs is not None:
            repetitions = np.minimum(repetitions, max(1.0, plan.max_epochs))
    lines = [
        "from olmo_core.data.source_mixture import (",
        "    SourceMixtureConfig,",
        "    SourceMixtureDatasetConfig,",
        "    SourceMixtureList,",
        ")",
        "",
        "source_mixture_config = SourceMixtureDatasetConfig(",
        "    source_list=SourceMixtureList(",
        "        sources=[",
    ]
    for k, name in enumerate(plan.names):
        lines += [
            "            SourceMixtureConfig(",
            f"                source_name={name!r},",
            f"                target_ratio={plan.weights[k]},",
            f"                paths={list(plan.paths[k])!r},",
            f"                max_repetition_ratio={float(repetitions[k])!r},",
            "            ),",
        ]
    lines += [
        "        ]",
        "    ),",
        f"    requested_tokens={math.floor(plan.tokens)},",
        f"    global_batch_size={plan.batch_tokens},",
        f"    seed={plan.seed},",
        ")",
    ]
    return "\n".join(lines) + "\n"


def huggingface(plan: Plan) -> str:
    """A call of `interleave_datasets` with probabilities per example.

    With `tokens` the result is cut to the examples that hold them; with a supply as well, sources
    that run out before that are repeated, up to `max_epochs` times.

    Raises:
        InputError: no `tokens_per_example`, or several paths a source.
    """
    plan.need("interleave_datasets", tokens_per_example=plan.tokens_per_example)
    chance = example_probabilities(plan)
    lines = [
        "from datasets import interleave_datasets, load_dataset",
        "",
        "# Probabilities are per example: shares of tokens over mean tokens per example.",
        "sources = [",
    ]
    repeats = _repeats(plan)
    for path, times in zip(plan.single_paths("interleave_datasets"), repeats, strict=True):
        repeat = f".repeat({times})" if times > 1 else ""
        lines.append(f'    load_dataset({path!r}, split="train"){repeat},')
    lines += [
        "]",
        "mixed = interleave_datasets(",
        "    sources,",
        f"    probabilities={[float(value) for value in chance]!r},",
        f"    seed={plan.seed},",
        '    stopping_strategy="first_exhausted",',
        ")",
    ]
    if plan.tokens is not None:
        assert plan.tokens_per_example is not None
        mean = float((chance * plan.tokens_per_example).sum())
        examples = max(1, math.floor(plan.tokens / mean))
        lines.append(f"mixed = mixed.select(range(min({examples}, len(mixed))))")
    return "\n".join(lines) + "\n"


def litgpt(plan: Plan) -> str:
    """A `CombinedStreamingDataset` of litdata, as litgpt's data modules build it.

    Raises:
        InputError: no `sequence_length`, or several paths a source.
    """
    plan.need("litgpt", sequence_length=plan.sequence_length)
    assert plan.sequence_length is not None
    lines = [
        "from litdata import CombinedStreamingDataset, StreamingDataset, TokensLoader",
        "",
        "# One token more than the model reads: the last one is only a target.",
        f"loader = TokensLoader(block_size={plan.sequence_length + 1})",
        "train_data = CombinedStreamingDataset(",
        "    datasets=[",
    ]
    for path in plan.single_paths("litgpt"):
        lines.append(
            f"        StreamingDataset(input_dir={path!r}, item_loader=loader, shuffle=True, "
            "drop_last=True),"
        )
    lines += [
        "    ],",
        f"    weights=({', '.join(plan.weights)},),",
        f"    seed={plan.seed},",
        "    # litdata refuses weights together with iterate_over_all=True, its default.",
        "    iterate_over_all=False,",
        ")",
    ]
    return "\n".join(lines) + "\n"


def example_probabilities(plan: Plan) -> np.ndarray:
    """Probability of drawing an example of every source so that its tokens have its share.

    Raises:
        InputError: a mean that is not positive.
    """
    assert plan.tokens_per_example is not None
    mean = plan.tokens_per_example
    if not (np.isfinite(mean).all() and (mean > 0).all()):
        raise InputError(f"expected positive tokens per example, got {mean.tolist()}")
    rate = plan.shares / mean
    return rate / rate.sum()


def _repeats(plan: Plan) -> list[int]:
    """How often each source is repeated so that chance alone does not end the mixture early."""
    if plan.epochs is None:
        return [1] * len(plan.names)
    # A tenth more than the expected draws; whole repetitions stay within the limit.
    wanted = np.ceil(plan.epochs * 1.1)
    most = math.inf if plan.max_epochs is None else max(1.0, math.floor(plan.max_epochs + 1e-9))
    return [int(min(value, most)) for value in np.maximum(wanted, 1.0)]
