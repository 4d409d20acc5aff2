"""Sizes of the short forwards that tell every form of a way from the others.

Which code runs in a forward depends on a few things only: whether there is memory, or padding,
whether a sliding window is shorter than what stands before it, whether a chunk is read or an answer
made. Such a way is probed at sizes of its own: some fill a block of scores, some a window.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np

from apportion.prefill import attention
from apportion.prefill.engine import Engine
from apportion.prefill.forms import FAR, Layout, Sizes, entries_filled, independent
from apportion.prefill.probe import NO_PADDING, Padding, Point, Probe
from apportion.prefill.scorers import base

_CANDIDATES, _SPARE = 300, 1
_ROWS, _ENTRIES = 96, 900  # most of a point, unless more are needed to fill a block or a window
_WIDEST = 1024  # window up to which a first chunk that exceeds it is probed


@dataclass(frozen=True)
class Way:
    """How a forward goes.

    Attributes:
        begun: there is memory.
        padding: where there is some.
        windowed: sliding windows are shorter than memory and chunk.
        fork: it reads a question, or a token of an answer.
        tailed: it reads a token of an answer.
        sampled: the next token is drawn, and not simply the likeliest.
    """

    begun: bool
    padding: Padding = NO_PADDING
    windowed: bool = False
    fork: bool = False
    tailed: bool = False
    sampled: bool = False


class Points:
    """Sizes to probe, of one engine's model.

    Attributes:
        window: the shortest of the layers' sliding windows; None: there is none.
        running: layers that run, each for those like it.
    """

    def __init__(self, engine: Engine, probe: Probe, capped: bool) -> None:
        """Sizes to probe.

        Args:
            engine: whose forwards are probed.
            probe: that runs them.
            capped: the model caps the scores of its attention.
        """
        self._engine, self._probe, self._capped = engine, probe, capped
        self._asked = sum(probe.questions)
        self.running = sorted(set(probe.roles))
        self.window = min((w for w in probe.windows if w is not None), default=None)

    def nearest(self, way: Way) -> Way:
        """The way itself, or one that holds no less, where it can't be probed."""
        if self.window is None:
            return replace(way, windowed=False)
        if self.window - self._asked < 3 + way.begun + 40 * way.tailed:
            way = replace(way, windowed=True)
        if way.windowed and not way.begun and self.window > _WIDEST:
            way = replace(way, begun=True)
        return way

    def of(self, way: Way) -> list[Point]:
        """Sizes that tell every form of a way from the others."""
        chance = random.Random(0)
        candidates = [self._point(way, chance) for _ in range(_CANDIDATES)]
        designs = [
            np.stack(
                [
                    self.sizes(point, layer).features(self.layout(layer, way.fork))
                    for point in candidates
                ]
            )
            for layer in self.running
        ]
        # Layers with more to tell apart first.
        designs.sort(key=lambda design: -np.linalg.matrix_rank(design))
        return [candidates[k] for k in independent(designs, _SPARE)]

    def layout(self, layer: int, fork: bool) -> Layout:
        """What the sizes of a layer follow from."""
        probe = self._probe
        heads = probe.heads // probe.batch if fork else probe.heads
        scores = probe.windows[layer] is None and not fork
        scorer = self._engine.scorer if scores else None
        return Layout(heads, 0 if fork else self._asked, scorer, self._capped)

    def sizes(self, point: Point, layer: int) -> Sizes:
        """Of a layer at a point."""
        first = point.start
        if self._engine.compact:
            first = max(*point.held.values(), point.elsewhere)
        held = point.held[layer]
        return Sizes(
            point.rows,
            held,
            self.kept(layer, point.rows, held, point.budget),
            self.budget(point.budget),
            first + point.tail,
            point.tail,
        )

    def kept(self, layer: int, rows: int, held: int, budget: int) -> int:
        """Entries of a layer after a chunk."""
        window = self._probe.windows[layer]
        if window is not None:
            return min(window - 1, held + rows)
        return min(held + rows, self._engine.sinks + self.budget(budget))

    def budget(self, said: int) -> int:
        """What a layer keeps beside its sinks, where the schedule says so much."""
        return said if self._engine.scorer.remembers else 0

    def _point(self, way: Way, chance: random.Random) -> Point:
        asked = 0 if way.fork else self._asked
        tail = chance.randint(3, 40) if way.tailed else 0
        rows, entries = self._least(way, chance)
        room: int | None = None
        if self.window is not None and not way.windowed:
            # Before the window is full: rows, memory and questions all fit.
            most = max(1, self.window - asked - tail - way.begun)
            rows = rows if rows < most else chance.randint(1, most)
            room = max(0, self.window - asked - tail - rows)
        elif self.window is not None and not way.begun and rows + asked <= self.window:
            rows = chance.randint(self.window + 1 - asked, int(1.2 * self.window) + 1)
        held = {
            layer: self._held(way, layer, room, asked + tail + rows, entries, chance)
            for layer in self.running
        }
        elsewhere = 0
        if way.begun and self._probe.idle is not None and chance.random() < 0.5:
            elsewhere = _spread(2 * _ENTRIES, chance)
        start = chance.randint(1, 5000) if way.begun else 0
        budget = max(2, _spread(600, chance))  # with fewer nothing is kept for being recent
        if way.padding.memory and not way.padding.chunk:
            budget += rows  # so many that some of them are padding
        return Point(rows, held, budget, start, elsewhere, tail)

    def _held(
        self,
        way: Way,
        layer: int,
        room: int | None,
        beside: int,
        entries: int,
        chance: random.Random,
    ) -> int:
        """Entries that a layer holds.

        Args:
            way: of the forward.
            layer: which.
            room: that is left in a window; None: memory and what is beside it exceed it.
            beside: rows and what stands before them.
            entries: to be held at least, where no window forbids it.
            chance: to draw from.
        """
        if not way.begun:
            return 0
        own = self._probe.windows[layer]
        if own is not None and room is None:
            return chance.randint(min(own - 1, max(1, own + 1 - beside)), own - 1)
        found = _spread(_ENTRIES, chance)
        if entries and chance.random() < 0.7:
            found = chance.randint(entries, int(1.3 * entries))
        return found if own is None else min(found, room or 0)

    def _least(self, way: Way, chance: random.Random) -> tuple[int, int]:
        """Rows, and entries to be held at least."""
        if way.tailed:
            return 1, 0
        least = 1 if way.fork else self._engine.sinks + 1
        thresholds = self._thresholds(way)
        if not thresholds or chance.random() < 0.5:
            return chance.randint(least, max(least, _ROWS)), 0
        rows, entries = chance.choice(thresholds)
        if not way.begun:
            rows, entries = max(rows, entries), 0
        if rows:
            return chance.randint(max(least, rows), int(1.3 * max(least, rows))), entries
        return chance.randint(least, max(least, _ROWS)), entries

    def _thresholds(self, way: Way) -> list[tuple[int, int]]:
        """Rows and entries from which something is not linear any more."""
        found: list[tuple[int, int]] = []
        scorer, heads = self._engine.scorer, self.layout(0, way.fork).heads
        seen = _ENTRIES if way.begun else 0
        if not way.fork:
            rows = scorer.window if scorer.observes == "window" else 0
            asked = self._asked if scorer.asks else 0
            if rows <= _WIDEST:
                found.append((rows, 0))
            for each in (rows, asked):
                if each and (filled := entries_filled(each, heads, base.BLOCK)) <= FAR:
                    found.append((min(each, rows), filled))
            if scorer.observes == "chunk":
                found.append((_filling(base.BLOCK / heads, seen), seen))
        if self._capped:
            if self.window is not None:
                seen = min(seen, self.window - 1)
            found.append((_filling(attention.BLOCK / heads, seen), seen))
        return [pair for pair in found if any(pair)]


def _filling(block: float, seen: int) -> int:
    """Rows that fill a block with the entries before them, rows x (rows + seen)."""
    return math.ceil((math.sqrt(seen**2 + 4 * block) - seen) / 2)


def _spread(most: int, chance: random.Random) -> int:
    """Small and large ones alike."""
    return max(1, round(most ** chance.random()))
