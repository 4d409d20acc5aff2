"""A read of random queries, keys and values, chunk by chunk, that keeps every attention matrix.

Heads remember different entries, samples are padded on the left, and whoever scores sees only what
a layer holds. Beside it stands, for every step and head, the whole attention in float64 by position
in the text: what the references are calculated from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apportion.prefill.scorers import Scorer, Scores, View

HEADS, GROUP, SIZE = 2, 3, 5


@dataclass
class Text:
    """Random queries, keys and values of a whole text, and the questions' queries."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    questions: Tensor
    padding: tuple[int, ...]
    softcap: float = 0.0
    scaling: float = 0.9

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def real(self, positions: Tensor) -> Tensor:
        """Of positions (batch, …), which are not padding; -1 stands for an empty one."""
        first = torch.tensor(self.padding).view(-1, *[1] * (positions.ndim - 1))
        return positions >= first


def text(padding=(0, 4), length=26, softcap=0.0, dtype=torch.float32, seed=0) -> Text:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(len(padding), HEADS, *shape, generator=generator).to(dtype)

    return Text(
        queries=2 * draw(GROUP, length, SIZE),
        keys=draw(length, SIZE),
        values=draw(length, SIZE + 1),
        questions=2 * draw(GROUP, 4, SIZE),
        padding=padding,
        softcap=softcap,
    )


@dataclass
class Step:
    """One step: what the scorer saw and said, and the whole attention of the chunk's rows.

    Attributes:
        positions: (batch, heads, entries) in the text, -1 for none.
        attention: (batch, heads, group, rows of the chunk, length), float64, zero where unseen.
        sees: (batch, heads, rows, length).
        asked: as `attention`, of the questions' rows.
        kept: (batch, heads, memory) positions kept, -1 for none.
    """

    view: View
    scores: Scores
    positions: Tensor
    attention: Tensor
    sees: Tensor
    asked: Tensor
    kept: Tensor


def softmax64(source: Text, queries: Tensor, sees: Tensor) -> Tensor:
    """(batch, heads, group, rows, length) with loops over samples and heads."""
    out = torch.zeros(*queries.shape[:4], source.length, dtype=torch.float64)
    for b in range(queries.shape[0]):
        for h in range(HEADS):
            scores = queries[b, h].double() @ source.keys[b, h].double().T * source.scaling
            if source.softcap:
                scores = source.softcap * torch.tanh(scores / source.softcap)
            seen = sees[b, h].expand(scores.shape)
            weight = torch.where(seen, torch.exp(scores - scores.abs().nan_to_num().max()), 0.0)
            out[b, h] = weight / weight.sum(dim=-1, keepdim=True).where(seen.any(-1, True), 1.0)
    return out


def read(
    scorer: Scorer, source: Text, chunks=(9, 6, 4, 7), budgets=(6, 5, 8, 7), sinks=2, ask=True
) -> list[Step]:
    """Read a text: score after each chunk and keep the best, sinks always."""
    batch = source.keys.shape[0]
    generator = torch.Generator().manual_seed(3)
    tables = {name: torch.zeros(batch, HEADS, source.length + 1) for name in scorer.carries}
    memory = torch.empty(batch, HEADS, 0, dtype=torch.int64)
    steps: list[Step] = []
    start = 0
    for chunk, budget in zip(chunks, budgets, strict=True):
        new = torch.arange(start, start + chunk)
        positions = torch.cat([memory, new.expand(batch, HEADS, chunk)], dim=2)
        view = replace(
            _view(scorer, source, positions, memory.shape[2], new),
            budget=budget,
            sinks=sinks,
            generator=generator,
            carried={name: t.gather(2, positions % t.shape[2]) for name, t in tables.items()},
            questions=source.questions if ask else None,
        )
        scores = scorer.score(view)
        for name, sums in scores.carried.items():
            tables[name].scatter_(2, positions % tables[name].shape[2], sums)
            tables[name][:, :, -1] = 0.0  # where the empty entries, -1, point
        sees = _sees(source, positions, memory.shape[2], new)
        attention = softmax64(source, source.queries[:, :, :, new], sees)
        # A question stands after the chunk, at a row that nothing hides from.
        after = torch.full((4,), source.length)
        asked = softmax64(
            source, source.questions, _sees(source, positions, memory.shape[2], after)
        )
        memory = _select(scores, positions, view.real, budget, sinks)
        steps.append(Step(view, scores, positions, attention, sees, asked, memory))
        start += chunk
    return steps


def _view(scorer: Scorer, source: Text, positions: Tensor, memory: int, new: Tensor) -> View:
    chunk = len(new)
    rows = {"none": 0, "window": min(scorer.window, chunk), "chunk": chunk}[scorer.observes]
    index = positions.clamp(min=0)[..., None]
    return View(
        queries=source.queries[:, :, :, new[chunk - rows :]] if rows else None,
        keys=source.keys.gather(2, index.expand(*positions.shape, SIZE)),
        values=source.values.gather(2, index.expand(*positions.shape, SIZE + 1)),
        memory=memory,
        budget=0,
        scaling=source.scaling,
        softcap=source.softcap,
        real=source.real(positions)[:, 0],
        first_row=chunk - rows,
        order=positions,
        carried={},
        generator=torch.Generator(),
    )


def _sees(source: Text, positions: Tensor, memory: int, rows: Tensor) -> Tensor:
    """(batch, heads, rows, length): old memory and the chunk's rows up to the own one."""
    batch = positions.shape[0]
    sees = torch.zeros(batch, HEADS, len(rows), source.length, dtype=torch.bool)
    for b in range(batch):
        for h in range(HEADS):
            held = positions[b, h]
            old = torch.arange(len(held)) < memory
            for r, own in enumerate(rows.tolist()):
                seen = (held >= source.padding[b]) & (old | (held <= own))
                if own >= source.padding[b]:
                    sees[b, h, r, held[seen]] = True
    return sees


def _select(scores: Scores, positions: Tensor, real: Tensor, budget: int, sinks: int) -> Tensor:
    """Positions kept, sorted, empty ones first."""
    batch, heads, _ = positions.shape
    kept = torch.full((batch, heads, sinks + budget), -1)
    for b in range(batch):
        for h in range(heads):
            held = [j for j in range(positions.shape[2]) if real[b, j]]
            held.sort(key=lambda j, b=b, h=h: int(positions[b, h, j]))
            first, rest = held[:sinks], held[sinks:]
            forced = scores.keep

            def worth(j: int, b: int = b, h: int = h, forced=forced) -> tuple[bool, float]:
                must = forced is not None and bool(forced[b, h, j])
                return (not must, -float(scores.values[b, h, j]))

            chosen = first + sorted(rest, key=worth)[:budget]
            found = sorted(int(positions[b, h, j]) for j in chosen)
            if found:
                kept[b, h, -len(found) :] = torch.tensor(found)
    return kept
