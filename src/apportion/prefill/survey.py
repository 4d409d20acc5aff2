"""Forms of everything that a forward holds, for every way that it can go, probed when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from apportion import models
from apportion.prefill.engine import Engine
from apportion.prefill.forms import Design, Forms, Layout, Sizes, Vector, fitted
from apportion.prefill.points import Points, Way
from apportion.prefill.probe import Point, Probe
from apportion.prefill.watch import AFTER, BEFORE, HEAD, TAIL, Phase, Record

_PLAIN = Layout(1, 0, None, capped=False)
_NONE = Forms(np.zeros((0, 0)))


@dataclass(frozen=True)
class LayerForms:
    """What one kind of layer holds above the level at which it begins.

    Attributes:
        layout: what its sizes follow from.
        model: the highest moments but for those of scoring and evicting.
        scoring: the highest of these.
        first: as scoring begins.
        left: what has come to stay when the layer is done; what it let go counts below zero.
    """

    layout: Layout
    model: Forms
    scoring: Forms
    first: Forms
    left: Forms


@dataclass(frozen=True)
class WayForms:
    """Forms of one way, each above the level at which its part begins.

    Attributes:
        before: before the layers.
        stem: what is left of that as they begin.
        layers: by the layer that stands for the kind.
        head: after the layers.
        head_left: what is left of that as evictions begin, if they come after the forward.
        evictions: as `layers`, if they do.
        after: what is done with the logits, above all that is remembered.
    """

    before: Forms
    stem: Forms
    layers: dict[int, LayerForms]
    head: Forms
    after: Forms
    head_left: Forms = _NONE
    evictions: dict[int, LayerForms] = field(default_factory=dict)


def common(rows: int, base: int, tail: int = 0) -> Vector:
    """What decides the size of what is not in a layer."""
    return Sizes(rows, base=base, tail=tail).features(_PLAIN)


class Survey:
    """Probes of one engine's model.

    Attributes:
        probe: that is asked.
        points: where it is.
        late: layers evict after the forward.
    """

    def __init__(self, engine: Engine, batch: int, questions: Sequence[int]) -> None:
        """A survey.

        Args:
            engine: left as it is.
            batch: samples.
            questions: tokens of each question that observes.
        """
        self.probe = Probe(engine, batch, questions)
        self.points = Points(engine, self.probe, _is_capped(engine.model))
        self.late = engine.late
        self._found: dict[Way, WayForms] = {}

    def forms(self, way: Way) -> WayForms:
        """Of a way, or of one that holds no less, where it can't be probed."""
        way = self.points.nearest(way)
        if way not in self._found:
            self._found[way] = self._fit(way)
        return self._found[way]

    def _fit(self, way: Way) -> WayForms:
        points = self.points.of(way)
        if way.fork:
            records = [self.probe.answer(p, way.padding, way.sampled) for p in points]
        else:
            self.probe.forward(points[0], way.padding)  # what is made once only is made now
            records = [self.probe.forward(p, way.padding) for p in points]
        late = self.late and not way.fork
        layers: dict[int, LayerForms] = {}
        evictions: dict[int, LayerForms] = {}
        for layer in self.points.running:
            layout = self.points.layout(layer, way.fork)
            design = np.stack([self.points.sizes(p, layer).features(layout) for p in points])
            after = ("layer", layer + 1) if layer + 1 < len(self.probe.roles) else HEAD
            layers[layer] = _layer(layout, design, records, ("layer", layer), after)
            if late:
                more = [k for k in self.points.running if k > layer]
                after = ("evict", more[0]) if more else TAIL
                evictions[layer] = _layer(layout, design, records, ("evict", layer), after)
        design = np.stack([self._common(point) for point in points])
        row = self.probe.batch * self.probe.logit_bytes
        ends = [r.levels[AFTER] - row if late else _settled(r) for r in records]
        return WayForms(
            before=_sites(design, records, BEFORE),
            stem=_change(design, records, BEFORE, ("layer", 0)),
            layers=layers,
            head=_sites(design, records, HEAD),
            after=fitted(design, [_above(r, AFTER, e) for r, e in zip(records, ends, strict=True)]),
            head_left=_change(design, records, HEAD, ("evict", 0)) if late else _NONE,
            evictions=evictions,
        )

    def _common(self, point: Point) -> Vector:
        return common(point.rows, self.points.sizes(point, 0).base, point.tail)


def _layer(
    layout: Layout, design: Design, records: Sequence[Record], start: Phase, end: Phase
) -> LayerForms:
    found = [_above(r, start, r.levels[start]) for r in records]
    scored = any(site[0] for site in found[0])
    first = [{0: r.scoring[start[1]] - r.levels[start]} if scored else {} for r in records]
    return LayerForms(
        layout,
        fitted(design, [{s: x for s, x in each.items() if not s[0]} for each in found]),
        fitted(design, [{s: x for s, x in each.items() if s[0]} for each in found]),
        fitted(design, first),
        _change(design, records, start, end),
    )


def _sites(design: Design, records: Sequence[Record], phase: Phase) -> Forms:
    return fitted(design, [_above(r, phase, r.levels[phase]) for r in records])


def _change(design: Design, records: Sequence[Record], start: Phase, end: Phase) -> Forms:
    return fitted(design, [{0: r.levels[end] - r.levels[start]} for r in records])


def _above(record: Record, phase: Phase, level: int) -> dict[Any, int]:
    return {site: held - level for site, held in record.sites.get(phase, {}).items()}


def _settled(record: Record) -> int:
    """What stays of a forward whose layers have let go: all that is in memory."""
    return record.levels[BEFORE] + record.levels[HEAD] - record.levels["layer", 0]


def _is_capped(model: nn.Module) -> bool:
    attention: Any = models.attention_of(models.decoder_layers(model)[0])
    return bool(getattr(attention, "attn_logit_softcapping", None))
