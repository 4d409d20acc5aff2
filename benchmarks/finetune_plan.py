"""Does the plan come true? Predicted against measured bytes and seconds, over random settings.

Each setting is drawn from its number: a model (small decoders of several architectures and sizes,
or SmolLM2-135M), batch, length, share of tokens with loss, adapters or all parameters. The plan is
made first; then every way in it is run on the whole model: a step with AdamW under the meter for
the bytes, and several more for the seconds (their median), the ways in turn. Settings that the
ledger has are skipped, so the run can be stopped and started again.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from apportion import models
from apportion.finetune import probe
from apportion.finetune.plan import Option, plan
from apportion.finetune.ways import WAYS
from apportion.meter import LiveStorages
from harness import RESULTS, ROOT, arguments, record, show

NAME = "finetune_plan"
WIDTHS, LAYERS = (128, 256, 512), (6, 12, 24)
KINDS = ("llama", "qwen3", "gemma3_text", "phi3")


@dataclass(frozen=True)
class Case:
    """One random setting."""

    number: int
    model: str
    width: int
    layers: int
    batch: int
    length: int
    loss_share: float
    lora: int


def draw(number: int) -> Case:
    """The setting with that number; every third one is SmolLM2."""
    rng = random.Random(number)
    batch, share, lora = rng.choice((1, 2, 4)), rng.choice((1.0, 0.5, 0.2)), rng.choice((0, 8))
    if number % 3 == 2:
        length = rng.choice((64, 128, 256))
        return Case(number, "smollm2", 576, 30, min(batch, 2), length, share, lora)
    kind, width, layers = rng.choice(KINDS), rng.choice(WIDTHS), rng.choice(LAYERS)
    return Case(number, kind, width, layers, batch, rng.choice((96, 192, 384)), share, lora)


def build(case: Case) -> torch.nn.Module:
    """The model with what is trained of it marked."""
    torch.manual_seed(case.number)
    if case.model == "smollm2":
        sys.path.insert(0, str(ROOT / "tools"))
        from smollm2 import folder

        model, _ = models.load(folder())
    else:
        from transformers import AutoConfig, AutoModelForCausalLM

        more: dict[str, Any] = {}
        if case.model == "gemma3_text":
            types = ["sliding_attention", "sliding_attention", "full_attention"]
            more = {"sliding_window": 64, "layer_types": types * (case.layers // 3)}
        config = AutoConfig.for_model(
            case.model,
            vocab_size=8192,
            hidden_size=case.width,
            intermediate_size=3 * case.width,
            num_hidden_layers=case.layers,
            num_attention_heads=case.width // 32,
            num_key_value_heads=case.width // 64,
            head_dim=32,
            pad_token_id=0,
            **more,
        )
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return models.adapted(model, case.lora, 2 * case.lora) if case.lora else model


class Real:
    """Whole steps of the whole model in one way."""

    def __init__(
        self,
        model: torch.nn.Module,
        case: Case,
        option: Option,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.model = model
        self.inner = models.unwrap(model)
        self.way = next(way for way in WAYS if way.name == option.name)
        self.inputs = probe.inputs_for(self.inner, case.batch, case.length, case.loss_share)
        self.loss_share = case.loss_share
        self.optimizer = optimizer

    def seconds(self) -> float:
        """Of one step; attaching is not among them."""
        with self._prepared():
            return self._step()

    def bytes(self) -> int:
        """The most that is alive in a step: weights and optimizer states too."""
        with self._prepared():
            self._step()  # makes the states of the optimizer
            with LiveStorages() as meter:
                self._step()
        states = [x for s in self.optimizer.state.values() for x in s.values()]
        held = [*self.model.parameters(), *self.model.buffers(), *states]
        return sum(x.numel() * x.element_size() for x in held) + meter.peak

    @contextmanager
    def _prepared(self) -> Generator[None]:
        with (
            probe.undisturbed(self.inner),
            probe.prepared(self.inner, self.way.settings, self.way.checkpoints),
        ):
            if self.way.settings is not None:
                probe.learn(self.inner, self.loss_share)
            yield

    def _step(self) -> float:
        start = time.perf_counter()
        self.model(**self.inputs, use_cache=False).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


def trial(case: Case, rounds: int) -> list[dict[str, Any]]:
    """One row a way."""
    model = build(case)
    began = time.perf_counter()
    found = plan(
        model, batch=case.batch, length=case.length, loss_share=case.loss_share, rounds=rounds
    )
    took = time.perf_counter() - began
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0)
    real = [Real(model, case, option, optimizer) for option in found.options]
    sizes = [each.bytes() for each in real]
    # In turn, so that a slow spell of the machine hits all of them.
    turns = [[each.seconds() for each in real] for _ in range(rounds)]
    rows: list[dict[str, Any]] = []
    for k, (option, size) in enumerate(zip(found.options, sizes, strict=True)):
        taken = statistics.median(turn[k] for turn in turns)
        rows.append(
            {
                **vars(case),
                "way": option.name,
                "predicted_bytes": option.peak_bytes,
                "measured_bytes": size,
                "bytes_error": round(option.peak_bytes / size - 1, 5),
                "predicted_s": round(option.seconds, 5),
                "measured_s": round(taken, 5),
                "seconds_error": round(option.seconds / taken - 1, 4),
                "peak_at": option.peak_at,
                "plan_s": round(took, 3),
                "rounds": rounds,
                "threads": torch.get_num_threads(),
            }
        )
    return rows


def done(folder: Path = RESULTS) -> set[int]:
    """Numbers of the settings that the ledger has."""
    path = folder / f"{NAME}.csv"
    if not path.exists():
        return set()
    with path.open(encoding="utf-8", newline="") as handle:
        return {int(row["number"]) for row in csv.DictReader(handle)}


def main() -> None:
    """Draw, predict, measure and record."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cases", type=int, default=30, help="random settings, from 0 up")
        parser.add_argument(
            "--again", default="", help="a model or a setting's number to measure again, or 'all'"
        )
        parser.add_argument("--threads", type=int, default=2)

    options = arguments(__doc__, rounds=3, add=add)
    torch.set_num_threads(options.threads)
    known = set() if options.dry else done()
    every: list[dict[str, Any]] = []
    for number in range(options.cases):
        case = draw(number)
        if number in known and options.again not in (case.model, str(number), "all"):
            continue
        rows = trial(case, options.rounds)
        every += rows
        columns = ("model", "batch", "length", "loss_share", "lora", "way", "bytes_error",
                   "seconds_error")  # fmt: skip
        show([{name: row[name] for name in columns} for row in rows])
        if not options.dry:
            print(record(NAME, rows), flush=True)
    if every:
        for name in ("bytes_error", "seconds_error"):
            worst = sorted(abs(row[name]) for row in every)
            middle = statistics.median(worst)
            print(f"{name}: median {middle:.2%}, largest {worst[-1]:.2%} of {len(worst)}")


if __name__ == "__main__":
    main()
