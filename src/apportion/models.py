"""The file that knows transformers: where a model's layers, norm and head are, and its attention.

What is relied on, all of it public in transformers 5: decoder layers derive from
`GradientCheckpointingLayer` and run through their `_gradient_checkpointing_func` when they train;
attention is looked up by `config._attn_implementation` in `ALL_ATTENTION_FUNCTIONS`, its mask in
`ALL_MASK_ATTENTION_FUNCTIONS`. A registered attention without a mask function of the same name gets
no mask at all, so both are registered together.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from apportion.errors import InputError, require

PREFIX = "apportion_"
NORM_NAMES = ("norm", "final_layernorm", "ln_f", "final_norm", "norm_f")


def unwrap(model: nn.Module) -> nn.Module:
    """The Hugging Face model inside wrappers (data parallelism, compilation, PEFT)."""
    while True:
        inner: Any = getattr(model, "_orig_mod", None)
        if inner is None and hasattr(model, "get_base_model"):
            outer: Any = model
            inner = outer.get_base_model()
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of the text decoder, in order.

    Args:
        model: unwrapped.

    Raises:
        InputError: the model has none with the hook of gradient checkpointing.
    """
    decoder = decoder_of(model)
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module):
            layers = list(module)
            if all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
                return layers
    raise InputError(
        f"expected a model whose decoder layers have the hook of gradient checkpointing "
        f"(transformers.modeling_layers.GradientCheckpointingLayer), got {type(model).__name__}, "
        "which has none; a decoder of transformers such as Llama, Mistral, Qwen, Gemma or Phi works"
    )


def decoder_of(model: nn.Module) -> nn.Module:
    """The part of the model from token ids to last hidden states."""
    find = getattr(model, "get_decoder", None)
    found = find() if callable(find) else None
    if isinstance(found, nn.Module) and found is not model:
        return found
    inner = getattr(model, getattr(model, "base_model_prefix", ""), None)
    return inner if isinstance(inner, nn.Module) else model


def final_norm(model: nn.Module) -> nn.Module | None:
    """The norm after the last layer; None where it can't be told."""
    decoder = decoder_of(model)
    for name in NORM_NAMES:
        found = getattr(decoder, name, None)
        if isinstance(found, nn.Module):
            return found
    return None


def output_head(model: nn.Module) -> nn.Module | None:
    """The module from hidden states to logits; None for a model without one."""
    find = getattr(model, "get_output_embeddings", None)
    found = find() if callable(find) else None
    return found if isinstance(found, nn.Module) else None


def final_softcap(model: nn.Module) -> float:
    """The cap on the logits that the model's config states; 0: none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return float(getattr(text, "final_logit_softcapping", None) or 0.0)


def implementation(model: nn.Module) -> str:
    """The attention that the model was loaded with: "sdpa", "eager", "flash_attention_2", ..."""
    config: Any = model.config
    return config._attn_implementation


def routes_experts(layer: nn.Module) -> bool:
    """Whether a layer holds a mixture of experts."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(hasattr(module, name) for module in layer.modules() for name in names)


def arguments_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model's `forward` by their names."""
    names = list(inspect.signature(unwrap(model).forward).parameters)
    return {**dict(zip(names, args, strict=False)), **kwargs}


class RoutedAttention:
    """The model's attention under a name of ours, until `restore`.

    Attributes:
        original: the implementation that the model was loaded with.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Callable[[Callable[[nn.Module], Callable[..., Any]]], Callable[..., Any]],
    ) -> None:
        """Register and switch over.

        Args:
            model: unwrapped.
            make: gets a function from a module to the attention that it would have called, and
                returns the attention to register.
        """
        self.original = implementation(model)
        self.name = PREFIX + self.original
        self._configs = _configs(model, self.original)
        AttentionInterface.register(self.name, make(self._own))
        if self.original in ALL_MASK_ATTENTION_FUNCTIONS:
            mask = ALL_MASK_ATTENTION_FUNCTIONS[self.original]
            AttentionMaskInterface.register(self.name, mask)
        for config in self._configs:
            config._attn_implementation = self.name

    def _own(self, module: nn.Module) -> Callable[..., Any]:
        """What `module` would have called: `eager` is a function of its own file."""
        if self.original == "eager":
            return sys.modules[type(module).__module__].eager_attention_forward
        return ALL_ATTENTION_FUNCTIONS[self.original]

    def restore(self) -> None:
        """Give the model its own attention back. The registered name stays: others may use it."""
        for config in self._configs:
            config._attn_implementation = self.original


def _configs(model: nn.Module, implementation: str) -> list[Any]:
    """Every config that a module of the model looks at, once each."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == implementation:
            found[id(config)] = config
    return list(found.values())


def row_size(model: nn.Module) -> tuple[int, int]:
    """Width of the hidden states, and bytes of a number of theirs."""
    outer: Any = model
    weight = outer.get_input_embeddings().weight
    return weight.shape[-1], weight.element_size()


def tensor_device(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next(model.parameters()).device


def load(path: str | Path, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
    """A causal language model and its tokenizer.

    No code that comes with the model is run, its weights are read from safetensors or GGUF, and
    nothing is downloaded.

    Args:
        path: a folder as `save_pretrained` writes it, a GGUF file (its weights are dequantised), or
            a name that transformers finds in its cache.
        dtype: of the weights.

    Raises:
        InputError: nothing there, not such a model, or weights that are not finite.
    """
    # In full, since an adapter notes where its model is.
    name = str(Path(path).resolve() if Path(path).exists() else path)
    source: dict[str, Any] = {"pretrained_model_name_or_path": name, "local_files_only": True}
    more: dict[str, Any] = {"use_safetensors": True}
    if str(path).endswith(".gguf"):
        require("gguf", "finetune")
        file = Path(name)
        source |= {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        more = {"quantization_config": GgufConfig(dequantize=True)}
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


def positions(model: nn.Module) -> int | None:
    """The most tokens that the model's positions reach; None where its config says nothing."""
    config: Any = getattr(unwrap(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = getattr(text, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


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
