"""Loading and saving: weights from safetensors or GGUF, no code that comes with a model."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from apportion.errors import InputError, require


def load(
    path: str | Path, dtype: torch.dtype = torch.float32, extra: str = "finetune"
) -> tuple[nn.Module, Any]:
    """A causal language model and its tokenizer.

    No code that comes with the model is run, its weights are read from safetensors or GGUF, and
    nothing is downloaded.

    Args:
        path: a folder as `save_pretrained` writes it, a GGUF file (its weights are dequantised), or
            a name that transformers finds in its cache.
        dtype: of the weights.
        extra: of this package that the caller belongs to, to be named if GGUF needs it.

    Raises:
        InputError: nothing there, not such a model, or weights that are not finite.
    """
    # In full, since an adapter notes where its model is.
    name = str(Path(path).resolve() if Path(path).exists() else path)
    source: dict[str, Any] = {"pretrained_model_name_or_path": name, "local_files_only": True}
    more: dict[str, Any] = {"use_safetensors": True}
    if str(path).endswith(".gguf"):
        require("gguf", extra)
        file = Path(name)
        source |= {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        # Before there was this class, numbers were always given back.
        packed = getattr(transformers, "GgufConfig", None)
        more = {} if packed is None else {"quantization_config": packed(dequantize=True)}
        if not file.is_file():
            raise InputError(f"expected a GGUF file, there is no {path}")
    elif Path(path).exists() and not (Path(path) / "config.json").is_file():
        raise InputError(
            f"expected a folder with config.json, *.safetensors and a tokenizer, or a .gguf file; "
            f"got {path}"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            **source, **more, dtype=dtype, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(
            f"expected a causal language model of transformers with its tokenizer, got {path}: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    for parameter_name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise InputError(
                f"expected finite weights, got NaN or infinity in {parameter_name} of {path}"
            )
    return model, tokenizer


@contextmanager
def quietly() -> Generator[None]:
    """No progress bars of transformers on loading and saving."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def adapted(model: nn.Module, rank: int, alpha: int) -> nn.Module:
    """The model with trainable low-rank adapters on all its linear layers, the head excepted.

    After LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.

    Raises:
        MissingExtraError: PEFT is not installed.
    """
    peft = require("peft", "finetune")
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        # PEFT asks the model for an attribute by its older name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return peft.get_peft_model(model, config)


def save(model: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write the model, or its adapter, as transformers (or PEFT) reads it.

    Raises:
        OSError: it can't be written.
    """
    whole: Any = model
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def outline(path: str | Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A causal language model from its config alone, on the meta device: shapes, no weights.

    Args:
        path: as for `load`, or a config.json alone.
        dtype: of the weights.

    Raises:
        InputError: no config there, or not of such a model.
    """
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path)}
    if str(path).endswith(".gguf"):
        require("gguf", "finetune")
        file = Path(path)
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        config = AutoConfig.from_pretrained(**source, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(
            f"expected a folder with config.json, a config.json or a .gguf file of a causal "
            f"language model of transformers, got {path}: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def fill(model: nn.Module, device: torch.device) -> None:
    """Give a model on the meta device random weights, as if it were to be pretrained."""
    whole: Any = model
    whole.to_empty(device=device)
    with torch.no_grad():
        whole.apply(whole._init_weights)
    whole.tie_weights()
