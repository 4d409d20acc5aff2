"""What a fine-tuning run is told to do, checked before anything is read."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from apportion.errors import InputError, option
from apportion.finetune.settings import check

LENGTH = 1024
LEARNING_RATE_LORA = 2e-4
LEARNING_RATE_FULL = 2e-5
# Of the steps; the learning rate rises to its value over these and falls to zero afterwards.
WARMUP = 0.03
LORA_ALPHA_PER_RANK = 2
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        lora: rank of the adapters on all linear layers; None: every parameter is trained.
        epochs: passes over the data, also parts of one; `steps` goes before it.
        steps: optimizer steps.
        batch: samples of a batch, on each device.
        accumulate: batches of a step.
        length: the most tokens of a sample; None: 1024, or what the model has positions for.
        truncate: cut longer samples instead of refusing them.
        learning_rate: at its highest; None: 2e-4 with adapters, 2e-5 without.
        seed: of the order of samples, the adapters and dropout.
        dtype: "float32"; "bfloat16", in which the model computes and frozen weights are held while
            trained ones stay in float32; "auto": bfloat16 on a GPU that has it.
        save_every: steps between checkpoints.
        eval_every: steps between evaluations; None: before and after only.
        cosine_every: steps between comparisons with the exact gradient; 0: never.
        memory: bytes that the run may take, which the plan turns into the settings below.
        keep: see `attach`, as are all that follow.
    """

    lora: int | None = 16
    epochs: float = 1.0
    steps: int | None = None
    batch: int = 4
    accumulate: int = 1
    length: int | None = None
    truncate: bool = False
    learning_rate: float | None = None
    seed: int = 0
    dtype: str = "auto"
    save_every: int = 100
    eval_every: int | None = None
    cosine_every: int = 0
    memory: str | int | None = None
    keep: float | str = 0.25
    rest: str = "4bit"
    saliency: str = "attention"
    backward: str = "auto"
    loss: str = "chunked"

    def __post_init__(self) -> None:
        for name in ("lora", "steps", "eval_every"):
            self._whole(name, getattr(self, name), 1, optional=True)
        self._whole("length", self.length, 2, optional=True)
        for name in ("batch", "accumulate", "save_every"):
            self._whole(name, getattr(self, name), 1)
        self._whole("seed", self.seed, 0)
        self._whole("cosine_every", self.cosine_every, 0)
        if not 0 < self.epochs < 1e6:
            raise InputError(f"expected {option('epochs')} above 0, got {self.epochs}")
        if not 0 < self.rate < 1:
            raise InputError(
                f"expected {option('learning_rate')} in (0, 1) such as "
                f"{option('learning_rate', 2e-4)}, got {self.rate}"
            )
        if self.dtype not in (*DTYPES, "auto"):
            raise InputError(
                f"expected {option('dtype')} of {', '.join(DTYPES)} or auto, got {self.dtype!r}"
            )
        choose = "start" if self.rest == "drop" else "forward"
        check(
            self.keep, self.saliency, self.rest, self.backward, choose, "model", self.loss, None,
            self.seed,
        )  # fmt: skip

    @staticmethod
    def _whole(name: str, value: int | None, least: int, optional: bool = False) -> None:
        if (value is None and optional) or (value is not None and value >= least):
            return
        raise InputError(f"expected {option(name)} from {least} up, got {value}")

    @property
    def tokens(self) -> int:
        """The most tokens of a sample."""
        return LENGTH if self.length is None else self.length

    def within(self, positions: int | None) -> Recipe:
        """The same with a length that the model has positions for.

        Raises:
            InputError: a longer one was asked for.
        """
        if positions is None or self.tokens <= positions:
            return replace(self, length=self.tokens)
        if self.length is None:
            return replace(self, length=positions)
        raise InputError(
            f"expected {option('length')} of at most {positions}, the model's positions; got "
            f"{self.length}; give {option('length', positions)}"
        )

    @property
    def rate(self) -> float:
        """The learning rate, or its default."""
        if self.learning_rate is not None:
            return self.learning_rate
        return LEARNING_RATE_FULL if self.lora is None else LEARNING_RATE_LORA

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `attach`."""
        names = ("keep", "rest", "saliency", "backward", "loss", "seed")
        return {name: getattr(self, name) for name in names}

    def compute_dtype(self) -> torch.dtype:
        """What `dtype` means here."""
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if gpu else torch.float32

    def items(self, samples: int) -> int:
        """Samples that the run takes, of a file with so many."""
        if self.steps is None:
            return max(1, round(self.epochs * samples))
        return self.steps * self.batch * self.accumulate * int(os.environ.get("WORLD_SIZE", "1"))

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: everything that changes a number, nothing else."""
        return {k: v for k, v in asdict(self).items() if k not in ("save_every", "cosine_every")}
