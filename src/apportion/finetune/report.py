"""What the last step stored and kept, layer by layer, beside gradient checkpointing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from apportion.budget import format_bytes
from apportion.errors import InputError
from apportion.finetune.ledger import Ledger
from apportion.finetune.settings import Settings, TopP


@dataclass(frozen=True)
class LayerReport:
    """One decoder layer in one step.

    Attributes:
        layer: its place, from 0.
        stored_bytes: held from its forward to its backward.
        checkpoint_bytes: what gradient checkpointing would have held.
        kept: rows of every sample that its backward computed; None: it has not run yet.
    """

    layer: int
    stored_bytes: int
    checkpoint_bytes: int
    kept: int | None


@dataclass(frozen=True)
class Report:
    """The last step.

    Attributes:
        layers: in order.
        batch, length: samples, and rows of each.
        real_tokens: rows that are not padding, of all samples.
        loss_share: rows that carry loss, of the real ones.
        backward: which one the batch got.
        settings: in words.
    """

    layers: tuple[LayerReport, ...]
    batch: int
    length: int
    real_tokens: int
    loss_share: float
    backward: Literal["full", "sparse"]
    settings: dict[str, Any]

    @property
    def stored_bytes(self) -> int:
        """Of all layers."""
        return sum(layer.stored_bytes for layer in self.layers)

    @property
    def checkpoint_bytes(self) -> int:
        """What gradient checkpointing would have stored of all layers."""
        return sum(layer.checkpoint_bytes for layer in self.layers)

    @property
    def kept_share(self) -> float | None:
        """Rows that the backward computed, of all, over the layers; None: it has not run yet."""
        kept = [layer.kept for layer in self.layers]
        if any(k is None for k in kept):
            return None
        return sum(k for k in kept if k is not None) / (len(kept) * self.length)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name != "layers"},
            "stored_bytes": self.stored_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "kept_share": self.kept_share,
            "layers": [vars(layer) for layer in self.layers],
        }

    def __str__(self) -> str:
        """Two lines and a table; neighbours with equal figures share a line."""
        ratio = self.stored_bytes / max(1, self.checkpoint_bytes)
        head = (
            f"{self.backward} backward of {self.batch} x {self.length} tokens "
            f"({self.real_tokens} real), {self.loss_share:.0%} of them with loss\n"
            f"stored {format_bytes(self.stored_bytes)}, {ratio:.0%} of gradient checkpointing's "
            f"{format_bytes(self.checkpoint_bytes)}; {_share(self.kept_share)}"
        )
        rows = [("layers", "stored", "checkpointing", "rows a sample")]
        for first, last in _runs(self.layers):
            one = self.layers[first]
            rows.append(
                (
                    str(one.layer) if first == last else f"{one.layer}-{self.layers[last].layer}",
                    format_bytes(one.stored_bytes),
                    format_bytes(one.checkpoint_bytes),
                    "?" if one.kept is None else f"{one.kept} of {self.length}",
                )
            )
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        table = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        return "\n".join([head, *table])


def report_of(ledger: Ledger, settings: Settings) -> Report:
    """The report of the last step that a ledger saw.

    Raises:
        InputError: there has been none.
    """
    step = ledger.step
    if step is None:
        raise InputError(
            "expected a training step before the report, there has been none since attach; run "
            "model(**batch).loss.backward() in training mode first"
        )
    batch, length = step.tokens.real.shape
    layers = tuple(
        LayerReport(number, stored, ledger.dense[number], _kept(ledger, number, length))
        for number, stored in sorted(ledger.stored.items())
    )
    return Report(
        layers=layers,
        batch=batch,
        length=length,
        real_tokens=int(step.tokens.real.sum()),
        loss_share=step.tokens.loss_share,
        backward=step.backward,
        settings=_in_words(settings),
    )


def _kept(ledger: Ledger, layer: int, length: int) -> int | None:
    step = ledger.step
    if step is not None and step.backward == "full":
        return length
    return ledger.used[layer].shape[1] if layer in ledger.used else None


def _in_words(settings: Settings) -> dict[str, Any]:
    keep = settings.keep
    return {
        "keep": f"top {keep.share:g}, at most {keep.cap:g}" if isinstance(keep, TopP) else keep,
        "budget": settings.budget,
        "saliency": "published" if settings.published else settings.saliency.name,
        "rest": settings.rest,
        "backward": settings.backward,
        "choose": settings.choose,
        "per": settings.per,
        "loss": settings.loss,
    }


def _share(kept: float | None) -> str:
    if kept is None:
        return "the backward has not run yet"
    return f"{kept:.0%} of the rows in the backward"


def _runs(layers: tuple[LayerReport, ...]) -> list[tuple[int, int]]:
    """First and last of every run of layers with equal figures."""
    runs: list[tuple[int, int]] = []
    for k, layer in enumerate(layers):
        previous = layers[k - 1] if k else None
        same = previous is not None and (
            (previous.stored_bytes, previous.checkpoint_bytes, previous.kept)
            == (layer.stored_bytes, layer.checkpoint_bytes, layer.kept)
        )
        runs.append((runs.pop()[0], k) if same else (k, k))
    return runs
