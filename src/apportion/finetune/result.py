"""What a fine-tuning run came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from apportion.budget import format_bytes


@dataclass(frozen=True)
class Tuned:
    """The figures of a run.

    Attributes:
        out: folder of the model or adapter.
        steps: optimizer steps of the whole run.
        epochs: passes over the data.
        samples: of the training file, those left out not counted.
        final_loss: training loss at the last log, nats per token.
        losses: step and training loss, as often as logged.
        eval_before: nats per token on the evaluation file; None without one.
        eval_after: the same after training.
        evals: step and evaluation loss in between.
        tokens_per_second: real tokens, over the time of the steps.
        seconds_per_step: without evaluation and saving.
        peak_bytes: see `apportion.finetune.peak`.
        before_bytes: what was in use before the model was loaded, of these.
        stored_bytes: the most that the layers stored of one batch for the backward.
        checkpoint_bytes: what gradient checkpointing would have stored of that batch.
        kept_share: rows that the backward computed, mean over batches.
        backward: batches by the backward that they got.
        cosines: step and cosine to the exact gradient, where asked for.
        settings: of `attach`; None: nothing was attached.
        checkpointing: transformers' own gradient checkpointing was on.
        predicted: what the plan said, where there was one.
        resumed_from: step of the checkpoint; None: it ran through. Speed, peak and rows are of what
            ran after it.
        dropped: places of samples without a token to predict.
        truncated: samples that were cut.
    """

    out: str
    steps: int
    epochs: float
    samples: int
    final_loss: float | None
    losses: list[tuple[int, float]]
    eval_before: float | None
    eval_after: float | None
    evals: list[tuple[int, float]]
    tokens_per_second: float
    seconds_per_step: float
    peak_bytes: int
    before_bytes: int
    stored_bytes: int
    checkpoint_bytes: int
    kept_share: float
    backward: dict[str, int]
    cosines: list[tuple[int, float]]
    settings: dict[str, Any] | None
    checkpointing: bool
    predicted: dict[str, Any] | None
    resumed_from: int | None
    dropped: list[str]
    truncated: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Tuned:
        """Back from what `to_dict` gave, also by way of JSON."""
        pairs = ("losses", "evals", "cosines")
        given = {name: each for name, each in value.items() if name not in pairs}
        lists: dict[str, Any] = {n: [(int(a), float(b)) for a, b in value[n]] for n in pairs}
        return cls(**given, **lists)

    def rows(self) -> list[dict[str, str]]:
        """A table of the figures, measured beside predicted where a plan was made."""
        told = self.predicted or {}
        ways = ", ".join(f"{name} ({count} batches)" for name, count in self.backward.items())
        found = [
            ("steps", f"{self.steps}", ""),
            ("epochs", f"{self.epochs:.4g}", ""),
            ("final loss, nats per token", _loss(self.final_loss), ""),
        ]
        if self.eval_before is not None or self.eval_after is not None:
            found += [
                ("evaluation loss before", _loss(self.eval_before), ""),
                ("evaluation loss after", _loss(self.eval_after), ""),
            ]
        found += [
            ("tokens per second", f"{self.tokens_per_second:.4g}", ""),
            ("seconds per step", f"{self.seconds_per_step:.4g}", _number(told.get("seconds"))),
            ("peak memory of the process", format_bytes(self.peak_bytes), ""),
            (
                "above what it had before the model",
                format_bytes(max(0, self.peak_bytes - self.before_bytes)),
                _bytes(told.get("peak_bytes")),
            ),
        ]
        if self.settings is not None:
            found += [
                (
                    "stored for the backward",
                    format_bytes(self.stored_bytes),
                    _bytes(told.get("stored_bytes")),
                ),
                ("gradient checkpointing would store", format_bytes(self.checkpoint_bytes), ""),
                ("rows kept in the backward", f"{self.kept_share:.1%}", ""),
            ]
        own = "gradient checkpointing" if self.checkpointing else "plain"
        found.append(("backward", ways if self.settings is not None else own, ""))
        names = ("figure", "measured", "predicted") if told else ("figure", "measured")
        return [dict(zip(names, row, strict=False)) for row in found]


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def _bytes(value: Any) -> str:
    return format_bytes(value) if isinstance(value, int | float) else ""
