"""Seconds of any chunk, from the times of a few.

A layer takes a n for what is done row by row, b n (m + n / 2) for attention, whose rows see memory
and half of the chunk, and d (m + n) for turning memory, scoring and evicting.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from apportion.prefill.forms import Vector, growing
from apportion.prefill.probe import Point, Probe
from apportion.prefill.watch import Phase

_ROWS, _ENTRIES = 1024, 4096  # most of a chunk that is timed


class Timing:
    """How long an engine's forwards take on this machine."""

    def __init__(self, probe: Probe, memory: int, chunk: int, rounds: int = 2) -> None:
        """Time a few forwards.

        Args:
            probe: that runs them.
            memory: M, about which times are wanted.
            chunk: c, as well.
            rounds: each forward is timed so often; medians count.
        """
        self._probe = probe
        rows, entries = max(16, min(chunk, _ROWS)), max(16, min(memory, _ENTRIES))
        points = [
            self._point(n, m) for n in (max(8, rows // 4), rows) for m in (0, entries // 2, entries)
        ]
        probe.seconds(points[0])
        times: list[list[dict[Phase, float]]] = [[] for _ in points]
        for _ in range(rounds):
            # Points take turns, so that a slow spell of the machine hits all of them.
            for point, found in zip(points, times, strict=True):
                found.append(probe.seconds(point))
        self._layers: dict[int, Vector] = {}
        for role in set(probe.roles):
            design = np.array([_features(p.rows, p.held[role]) for p in points])
            self._layers[role] = _form(design, times, ("layer", role))
        design = np.array([[1.0, p.rows] for p in points])
        self._rest = _form(design, times, ("rest", 0))

    def seconds(self, rows: int, lengths: Sequence[int]) -> float:
        """Of a chunk.

        Args:
            rows: of it.
            lengths: entries of every layer before.
        """
        known: dict[tuple[int, int], float] = {}
        total = float(self._rest @ np.array([1.0, rows]))
        for pair in zip(self._probe.roles, lengths, strict=True):
            if pair not in known:
                known[pair] = float(self._layers[pair[0]] @ np.array(_features(rows, pair[1])))
            total += known[pair]
        return total

    def _point(self, rows: int, entries: int) -> Point:
        windows = self._probe.windows
        held = {
            role: entries if (own := windows[role]) is None else min(own - 1, entries)
            for role in set(self._probe.roles)
        }
        return Point(rows, held, max(1, entries))


def _features(rows: int, held: int) -> list[float]:
    return [1.0, rows, rows * (held + rows / 2), held + rows]


def _form(
    design: np.ndarray, times: Sequence[Sequence[dict[Phase, float]]], phase: Phase
) -> Vector:
    found = np.array([median(each[phase] for each in rounds) for rounds in times])
    # Each time counts by its share, or the longest would decide alone.
    weight = 1 / np.maximum(found, 1e-9)
    scale = np.abs(design).max(axis=0)
    return growing(design / scale * weight[:, None], np.ones(len(found))) / scale
