"""Linear forms of a forward's sizes, fitted to what short forwards held.

What is alive at one place of a program is a sum of storages, and the size of each is a product of
sizes: rows, entries, rows x entries where there is a mask, a block of scores. So it is linear in a
few products, `Sizes.features`, and fitting is solving: it is exact wherever a forward goes the same
way. What can't be expressed so is fitted from above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from apportion.prefill import attention
from apportion.prefill.scorers import Scorer, base

# A block of scores that is filled only beyond so many entries is taken for one that never is; it
# is held for larger than it is, where there are as many.
FAR = 2048
_EXACT = 0.5  # of a byte
_NEAR = 0.01  # what a linear form may be off by, of the most that was seen

Vector = Float[np.ndarray, " features"]
Matrix = Float[np.ndarray, "forms features"]
Design = Float[np.ndarray, "forwards features"]


@dataclass(frozen=True)
class Layout:
    """What the sizes of a layer's tensors follow from, beside those of a step.

    Attributes:
        heads: of queries, over all samples.
        questions: rows of the questions that observe.
        scorer: of the layer; None: it has a sliding window, or is in a fork, and scores nothing.
        capped: its attention's scores are capped, and so made in blocks.
    """

    heads: int
    questions: int
    scorer: Scorer | None
    capped: bool


@dataclass(frozen=True)
class Sizes:
    """One layer at one step.

    Attributes:
        rows: of the chunk.
        held: entries of memory before.
        kept: entries of memory afterwards.
        budget: of those, what the schedule says.
        base: position of the chunk's first row.
        tail: entries behind memory, in a fork.
    """

    rows: int
    held: int = 0
    kept: int = 0
    budget: int = 0
    base: int = 0
    tail: int = 0

    def features(self, layout: Layout) -> Vector:
        """Products of sizes; the first is 1."""
        n, seen = self.rows, self.held + self.tail
        found = [1, n, self.held, self.kept, self.base, self.tail, n * n, n * seen]
        scorer = layout.scorer
        if scorer is not None:
            observing = {"none": 0, "window": min(scorer.window, n), "chunk": n}[scorer.observes]
            entries = self.held + n
            half = min(self.budget // 2, entries)
            asked = layout.questions if scorer.asks else 0
            found += [half, min(scorer.window, half), observing]
            found += _block(observing, entries, layout.heads)
            found += _block(asked, entries, layout.heads)
        if layout.capped:
            rows = n + layout.questions
            entries = seen + rows
            rows = min(rows, attention.block_rows(layout.heads, entries))
            found += [rows, rows * entries]
        return np.array(found, dtype=np.float64)


def _block(rows: int, entries: int, heads: int) -> list[int]:
    """Rows and probabilities of a scorer's block."""
    if rows and entries_filled(rows, heads, base.BLOCK) <= FAR:
        rows = min(rows, base.block_rows(heads, entries))
    return [rows, rows * entries]


def entries_filled(rows: int, heads: int, block: int) -> int:
    """How many entries fill a block of scores of so many rows."""
    return -(-block // (heads * rows))


class Forms:
    """The highest of several linear forms."""

    def __init__(self, rows: Matrix) -> None:
        self.rows = rows

    def __call__(self, features: Vector) -> float:
        """At some sizes; 0 where there are no forms."""
        return float((self.rows @ features).max()) if len(self.rows) else 0.0


def fitted(design: Design, values: Sequence[Mapping[Any, int]]) -> Forms:
    """What is alive at each of some sites, as forms that are nowhere below it.

    Args:
        design: features of each forward.
        values: of each forward, what was alive at every site.
    """
    sites = sorted({site for each in values for site in each}, key=str)
    if not sites:
        return Forms(np.zeros((0, design.shape[1])))
    rank = np.linalg.matrix_rank(_scaled(design))
    groups: dict[tuple[bool, ...], list[Any]] = {}
    for site in sites:
        groups.setdefault(tuple(site in each for each in values), []).append(site)
    rows: list[Matrix] = []
    for present, members in groups.items():
        come = np.array(present)
        if np.linalg.matrix_rank(_scaled(design[come])) < rank:
            # Too few forwards came by; in the others it held nothing.
            come[:] = True
        seen = [
            [each.get(site, 0.0) for site in members]
            for each, here in zip(values, come, strict=True)
            if here
        ]
        rows.append(_solved(design[come], np.array(seen, dtype=np.float64)))
    return Forms(_highest(np.unique(np.round(np.concatenate(rows), 12), axis=0)))


def _solved(design: Design, seen: Float[np.ndarray, "forwards forms"]) -> Matrix:
    """A form a site."""
    scale = _scales(design)
    found, *_ = np.linalg.lstsq(design / scale, seen, rcond=1e-12)
    off = np.abs(seen - design / scale @ found).max(axis=0)
    for site in np.flatnonzero(off > _EXACT):
        if off[site] > _NEAR * np.abs(seen[:, site]).max():
            found[:, site] = _over(design / scale, seen[:, site])
    rows = (found / scale[:, None]).T
    below = (seen - design @ rows.T).max(axis=0)
    rows[:, 0] += np.where(below > _EXACT, below, 0.0)
    return rows


def _over(design: Design, seen: Float[np.ndarray, " forwards"]) -> Vector:
    """A form that grows with every size, and is not below the larger half of what was seen."""
    found = growing(design, seen)
    # What varies from one forward to the next does so in proportion.
    held = design @ found
    large = seen > seen.max() / 2
    return found * max(1.0, float((seen[large] / np.maximum(held[large], 1.0)).max()))


def growing(design: Design, seen: Float[np.ndarray, " forwards"]) -> Vector:
    """The nearest form that falls with no size, or one close to it."""
    used = np.ones(design.shape[1], dtype=bool)
    found = np.zeros(design.shape[1])
    while used.any():
        found[:] = 0.0
        found[used] = np.linalg.lstsq(design[:, used], seen, rcond=1e-12)[0]
        if found.min() >= 0:
            break
        used[found.argmin()] = False
    return found


def _scaled(design: Design) -> Design:
    return design / _scales(design)


def _scales(design: Design) -> Vector:
    scale = np.abs(design).max(axis=0)
    return np.where(scale == 0, 1.0, scale)


def independent(designs: Sequence[Float[np.ndarray, "candidates _"]], spare: int) -> list[int]:
    """Which of many forwards to run, so that every form is told from every other.

    Args:
        designs: features of each candidate, for every kind of layer.
        spare: forwards beyond those, the first that are not among them.

    Returns:
        Numbers of the candidates.
    """
    picked: list[int] = []
    for design in designs:
        left = _scaled(design)
        left = left / np.linalg.norm(left, axis=1, keepdims=True)
        for number in picked:
            left = _without(left, left[number])
        while True:
            size = np.linalg.norm(left, axis=1)
            best = int(size.argmax())
            if size[best] < 1e-6:
                break
            picked.append(best)
            left = _without(left, left[best])
    rest = [k for k in range(len(designs[0])) if k not in picked]
    return [*picked, *rest[:spare]]


def _without(rows: Design, direction: Vector) -> Design:
    size = np.linalg.norm(direction)
    if size < 1e-6:
        return rows
    unit = direction / size
    return rows - np.outer(rows @ unit, unit)


def _highest(rows: Matrix) -> Float[np.ndarray, "kept features"]:
    """Without the forms that another is nowhere below: features are never negative."""
    order = np.argsort(-rows.sum(axis=1), kind="stable")
    kept: list[Vector] = []
    for row in rows[order]:
        if not any(bool((other >= row - 1e-9).all()) for other in kept):
            kept.append(row)
    return np.array(kept)
