"""A plain reader of a Llama: float64, a sample and a head at a time, whole attention matrices.

It knows no padding, since a sample is read without, no blocks, no tables and no storage: an entry
is a position in the text, and every key of the text is there for good, unrotated. What a layer
remembers is a list of positions for every head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

WINDOW, POOL, WEIGHT = 3, 5, 0.5


@dataclass
class Layer:
    """Of one layer and sample: its text so far, and what each key head remembers."""

    weights: dict[str, Tensor]
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    held: list[list[int]] = field(default_factory=list)
    received: list[dict[int, float]] = field(default_factory=list)


@dataclass
class Seen:
    """What one key head has seen of a chunk, by places in `at`.

    Attributes:
        at: positions of memory, then of the chunk.
        text: (group, rows, entries) attention of the chunk's rows.
        asked: (group, rows, entries) of the questions' rows, over the text alone.
    """

    at: list[int]
    text: Tensor
    asked: Tensor


class PlainReader:
    """Reads one sample."""

    def __init__(self, model: nn.Module, scorer: str, sinks: int, compact: bool = True) -> None:
        self.config = model.config
        self.scorer, self.sinks, self.compact = scorer, sinks, compact
        self.weights = {name: x.double() for name, x in model.state_dict().items()}
        self.heads, self.kept = self.config.num_attention_heads, self.config.num_key_value_heads
        self.group = self.heads // self.kept
        self.layers = []
        for number in range(self.config.num_hidden_layers):
            prefix = f"model.layers.{number}."
            own = {k.removeprefix(prefix): x for k, x in self.weights.items() if prefix in k}
            layer = Layer(own, held=[[] for _ in range(self.kept)])
            layer.received = [{} for _ in range(self.kept)]
            self.layers.append(layer)

    def read(
        self, ids: Tensor, start: int, budgets: Sequence[int], questions: Sequence[Tensor] = ()
    ) -> Tensor:
        """Logits (tokens, vocabulary) of a chunk that starts at a place of the text."""
        count = len(ids)
        self.new = list(range(start, start + count))
        # Of every row who wrote it, None for the text, and its place behind the chunk's first.
        self.rows: list[tuple[int | None, int]] = [(None, r) for r in range(count)]
        for number, question in enumerate(questions):
            self.rows += [(number, count + k) for k in range(len(question))]
        x = self.weights["model.embed_tokens.weight"][torch.cat([ids, *questions])]
        for layer, budget in zip(self.layers, budgets, strict=True):
            w = layer.weights
            gathered, seen = self._attend(layer, self._norm(x, w["input_layernorm.weight"]))
            x = x + gathered @ w["self_attn.o_proj.weight"].T
            h = self._norm(x, w["post_attention_layernorm.weight"])
            gate = functional.silu(h @ w["mlp.gate_proj.weight"].T)
            x = x + (gate * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
            self._choose(layer, seen, budget)
        x = self._norm(x[:count], self.weights["model.norm.weight"])
        return x @ self.weights["lm_head.weight"].T

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        size = x.square().mean(dim=-1, keepdim=True) + self.config.rms_norm_eps
        return x / size.sqrt() * weight

    def _turned(self, x: Tensor, place: int) -> Tensor:
        """A head's vector at a rotary position."""
        half = len(x) // 2
        out = x.clone()
        for p in range(half):
            angle = place * self.config.rope_parameters["rope_theta"] ** (-p / half)
            cos, sin = math.cos(angle), math.sin(angle)
            out[p] = x[p] * cos - x[p + half] * sin
            out[p + half] = x[p + half] * cos + x[p] * sin
        return out

    def _attend(self, layer: Layer, h: Tensor) -> tuple[Tensor, list[Seen]]:
        rows, count = len(self.rows), len(self.new)
        split = {
            part: (h @ layer.weights[f"self_attn.{part}_proj.weight"].T).view(rows, heads, -1)
            for part, heads in (("q", self.heads), ("k", self.kept), ("v", self.kept))
        }
        for r, p in enumerate(self.new):
            layer.keys[p], layer.values[p] = split["k"][r], split["v"][r]
        outs, seen = [], []
        for g in range(self.kept):
            old = layer.held[g]
            # Memory stands directly before the chunk, or everything where it is in the text.
            places = [i - len(old) for i in range(len(old))] if self.compact else old
            first = 0 if self.compact else self.new[0]
            keys = [self._turned(layer.keys[p][g], at) for p, at in zip(old, places, strict=True)]
            keys += [self._turned(split["k"][r, g], first + self.rows[r][1]) for r in range(rows)]
            values = [layer.values[p][g] for p in old] + [split["v"][r, g] for r in range(rows)]
            text, asked = [], []
            for q in range(g * self.group, (g + 1) * self.group):
                scores = self._scores(split["q"][:, q], torch.stack(keys), first)
                share = torch.softmax(scores.masked_fill(~self._sees(len(old)), -math.inf), 1)
                outs.append(share @ torch.stack(values))
                text.append(share[:count, : len(old) + count])
                asked.append(torch.softmax(scores[count:, : len(old) + count], dim=1))
            seen.append(Seen([*old, *self.new], torch.stack(text), torch.stack(asked)))
        return torch.stack(outs, dim=1).flatten(1), seen

    def _scores(self, queries: Tensor, keys: Tensor, first: int) -> Tensor:
        turned = [self._turned(x, first + self.rows[r][1]) for r, x in enumerate(queries)]
        return torch.stack(turned) @ keys.T / math.sqrt(queries.shape[1])

    def _sees(self, held: int) -> Tensor:
        sees = torch.ones(len(self.rows), held + len(self.rows), dtype=torch.bool)
        for r, (writer, place) in enumerate(self.rows):
            for other, (by, at) in enumerate(self.rows):
                sees[r, held + other] = by in (None, writer) and at <= place
        return sees

    def _choose(self, layer: Layer, seen: list[Seen], budget: int) -> None:
        for g, own in enumerate(seen):
            worth, forced = self._worth(layer, seen, g, budget)
            first, rest = own.at[: self.sinks], own.at[self.sinks :]
            rest = sorted(rest, key=lambda p: (p not in forced, -worth[p]))
            layer.held[g] = sorted([*first, *rest[:budget]])

    def _worth(self, layer: Layer, seen: list[Seen], g: int, budget: int):
        """Scores by position of one head, and what is kept by force."""
        own = seen[g]
        newest = {"h2o": budget // 2, "streaming": 0, "tova": 0}
        recent = newest.get(self.scorer, min(WINDOW, budget // 2))
        forced = set(own.at[len(own.at) - recent :])
        window = own.text[:, -WINDOW:]
        if self.scorer == "streaming":
            return {p: float(p) for p in own.at}, forced
        if self.scorer == "tova":
            total = sum(each.text[:, -1].mean(dim=0) for each in seen) / len(seen)
            return dict(zip(own.at, total.tolist(), strict=True)), forced
        if self.scorer == "h2o":
            for p, x in zip(own.at, own.text.sum(dim=(0, 1)).tolist(), strict=True):
                layer.received[g][p] = layer.received[g].get(p, 0.0) + x
            return layer.received[g], forced
        total = window.sum(dim=(0, 1))
        if self.scorer == "query":
            total = window.mean(dim=(0, 1))
            if own.asked.shape[1]:
                total = (1 - WEIGHT) * total + WEIGHT * own.asked.mean(dim=(0, 1))
        worth = dict(zip(own.at, self._pooled(total.tolist()), strict=True))
        if self.scorer == "value-aware":
            worth = {p: x * float(layer.values[p][g].abs().sum()) for p, x in worth.items()}
        return worth, forced

    def _pooled(self, scores: list[float]) -> list[float]:
        """Averages over neighbours; sinks neither give nor take."""
        first, inner = scores[: self.sinks], scores[self.sinks :]
        side = POOL // 2
        near = [inner[max(0, k - side) : k + side + 1] for k in range(len(inner))]
        return first + [sum(part) / len(part) for part in near]
