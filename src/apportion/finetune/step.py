"""One forward and backward of the model: what its rows are, and which of them are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion.finetune.rows import kept_count, select
from apportion.finetune.saliency import View
from apportion.finetune.settings import Settings, TopP
from apportion.finetune.tokens import Tokens


@dataclass
class Step:
    """The state that the layers of one forward share.

    Attributes:
        settings: the user's.
        tokens: what every row is.
        backward: decided for this batch.
        number: of the step, from 0; seeds the rules that draw.
        layers: how many layers take part.
        kept: rows of the backward where all layers share them, once chosen.
        total: saliency summed over the layers so far.
    """

    settings: Settings
    tokens: Tokens
    backward: Literal["full", "sparse"]
    number: int
    layers: int
    kept: Int[Tensor, "batch kept"] | None = None
    total: Float[Tensor, "batch length"] | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    _known: Int[Tensor, "batch exact"] | None = None
    _fine: Int[Tensor, "batch fine"] | None = None

    def __post_init__(self) -> None:
        self.generator.manual_seed(self.settings.seed * 1_000_003 + self.number)

    @property
    def length(self) -> int:
        """Rows a sample."""
        return self.tokens.real.shape[1]

    @property
    def everything_exact(self) -> bool:
        """Whether every row is stored in the model's dtype."""
        return self._exact_count >= self.length

    @property
    def _exact_count(self) -> int:
        return kept_count(self.settings.exact_rows(self.length, self.backward), self.length)

    def needs_saliency(self) -> bool:
        """Whether this forward must score its layers."""
        late = self.settings.choose == "backward"
        done = self.settings.per == "model" and self.kept is not None
        first = self.settings.saliency.first_only and self.total is not None
        return self.backward == "sparse" and not (late or done or first)

    def exact_for(self, score: Float[Tensor, "batch length"] | None) -> Tensor:
        """The rows that a layer stores exactly, (batch, exact).

        With `choose="start"` they are the rows of the backward, so the layer's score decides (the
        first layer's, where all share them); later choices leave the sinks, the rows with loss,
        and the latest rows before the end.
        """
        if self.backward == "sparse" and self.settings.choose == "start":
            if self.kept is not None:
                return self.kept
            assert score is not None
            chosen = self._select(score)
            if self.settings.per == "model":
                self.kept = chosen
            return chosen
        if self._known is None:
            self._known = self._before_any_score(self._exact_count)
        return self._known

    def fine_for(self, exact: Int[Tensor, "batch exact"]) -> Int[Tensor, "batch fine"] | None:
        """The rows that a layer stores in 8 bits, next after its exact ones; None: none.

        Args:
            exact: rows of `exact_for`.
        """
        share = self.settings.fine_rows(self.tokens.loss_share, self.backward)
        count = min(self.length, exact.shape[1] + kept_count(share, self.length))
        if share == 0 or count >= self.length:
            return None
        if self._fine is None:
            both = self._before_any_score(count)
            fine = torch.zeros_like(self.tokens.real).scatter_(1, both, True)
            fine.scatter_(1, exact, False)
            self._fine = fine.nonzero()[:, 1].view(len(fine), -1)
        return self._fine

    def _before_any_score(self, count: int) -> Int[Tensor, "batch rows"]:
        """Sinks, rows with loss, then the latest before the end."""
        latest = torch.arange(self.length, device=self.tokens.real.device)
        latest = latest.to(torch.float32).expand(self.tokens.real.shape)
        return select(latest, self.tokens, count)

    def add(self, score: Float[Tensor, "batch length"]) -> None:
        """Add one layer's saliency."""
        self.total = score if self.total is None else self.total + score

    def end_forward(self) -> None:
        """Choose the rows that all layers share, now that every layer has been seen."""
        settings = self.settings
        waits = settings.choose == "forward" and settings.per == "model"
        if self.backward == "sparse" and waits and self.total is not None:
            self.kept = self._select(self.total)
            self.total = None

    def kept_for(
        self, score: Tensor | None, upstream: Float[Tensor, "batch length width"]
    ) -> Int[Tensor, "batch kept"]:
        """The rows that a layer's backward computes.

        Args:
            score: the layer's saliency, where each layer has its own rows.
            upstream: the gradient at the layer's output.
        """
        if self.kept is not None:
            return self.kept
        if self.settings.choose == "backward":
            return self._select(upstream.to(torch.float32).norm(dim=-1))
        if score is None:  # the forward was cut short before its end
            self.end_forward()
            assert self.kept is not None
            return self.kept
        return self._select(score)

    def _select(self, score: Float[Tensor, "batch length"]) -> Int[Tensor, "batch kept"]:
        keep = self.settings.keep
        if not isinstance(keep, TopP):
            return select(score, self.tokens, kept_count(keep, self.length))
        shares = torch.where(self.tokens.real, score.to(torch.float64), 0)
        ordered = shares.sort(dim=1, descending=True).values
        reached = ordered.cumsum(dim=1) / ordered.sum(dim=1, keepdim=True).clamp(min=1e-300)
        needed = int((reached < keep.share).sum(dim=1).max()) + 1
        return select(score, self.tokens, min(needed, kept_count(keep.cap, self.length)))


def view_of(step: Step, hidden: Tensor, output: Tensor, seen: object, layer: int) -> View:
    """What a saliency rule sees of a layer.

    Args:
        seen: `attention.Seen` of the layer, or None.
    """
    options = getattr(seen, "options", {})
    query = getattr(seen, "query", None)
    scaling = options.get("scaling")
    if scaling is None:
        scaling = 1.0 if query is None else query.shape[-1] ** -0.5
    return View(
        hidden=hidden,
        output=output,
        query=query,
        key=getattr(seen, "key", None),
        value=getattr(seen, "value", None),
        mask=getattr(seen, "mask", None),
        scaling=float(scaling),
        softcap=float(options.get("softcap") or 0.0),
        real=step.tokens.real,
        loss=step.tokens.loss,
        generator=step.generator,
        layer=layer,
        layers=step.layers,
    )
