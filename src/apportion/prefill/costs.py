"""Bytes of any chunk and of any answer, from short forwards.

A forward goes through its layers one after the other, and what is alive rises and falls. The level
at which a layer begins follows from what the layers before it have left behind; in a layer there
are some hundred moments, each linear in a few sizes. The peak is the highest of all of them:

    evict="layer"     memory of all layers (new below, old above) + one layer's memory and chunk
    evict="forward"   memory of all layers + every layer's chunk, and its memory turned again

Refused: one fit of the whole peak, which has a kink wherever another moment becomes the highest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from apportion.prefill.engine import Engine
from apportion.prefill.forms import Sizes
from apportion.prefill.points import Way
from apportion.prefill.probe import NO_PADDING, Padding
from apportion.prefill.survey import LayerForms, Survey, common

_SLACK = 1024
"""Bytes that a prediction is above what was fitted: rounding, and sums of a few numbers."""


@dataclass(frozen=True)
class Ahead:
    """A chunk that may come.

    Attributes:
        rows: tokens of it.
        held: entries of every layer before.
        budgets: what every layer keeps, sinks not among them.
        start: its place in the text.
        padding: where there is some.
        logits: whether those of an earlier chunk are held.
    """

    rows: int
    held: Sequence[int]
    budgets: Sequence[int]
    start: int = 0
    padding: Padding = NO_PADDING
    logits: bool = True


@dataclass(frozen=True)
class Peak:
    """The highest moment of a forward, in bytes beyond the weights.

    Attributes:
        memory: entries of all layers.
        activations: hidden states, queries, keys and values of the chunk, what attention gathers;
            logits.
        scores: what scoring and evicting takes at that moment.
        where: it is.
    """

    memory: int
    activations: int
    scores: int
    where: str

    @property
    def bytes(self) -> int:
        """In all."""
        return self.memory + self.activations + self.scores


class Costs:
    """What an engine's forwards hold.

    Attributes:
        batch: samples.
        probe: that runs the forwards.
    """

    def __init__(self, engine: Engine, batch: int = 1, questions: Sequence[int] = ()) -> None:
        """Costs; probes run when they are needed.

        Args:
            engine: left as it is.
            batch: samples.
            questions: tokens of each question that observes.
        """
        self.batch = batch
        self._survey = Survey(engine, batch, questions)
        self.probe = self._survey.probe
        self._compact, self._asked = engine.compact, sum(questions)
        self._logits = batch * self.probe.logit_bytes

    def kept(self, ahead: Ahead) -> list[int]:
        """Entries of every layer after a chunk."""
        points = self._survey.points
        return [
            points.kept(layer, ahead.rows, held, budget)
            for layer, (held, budget) in enumerate(zip(ahead.held, ahead.budgets, strict=True))
        ]

    def memory(self, lengths: Sequence[int], padded: bool = False) -> list[int]:
        """Bytes of every layer's memory."""
        probe = self.probe
        flag = self.batch if padded else 0
        return [
            (each + flag) * count + (fixed if count else 0)
            for each, fixed, count in zip(
                probe.entry_bytes, probe.fixed_bytes, lengths, strict=True
            )
        ]

    def peak(self, ahead: Ahead) -> Peak:
        """The highest moment of a chunk: never below what it will be."""
        kept = self.kept(ahead)
        survey = self._survey
        begun = any(ahead.held)
        chunk = ahead.padding.chunk
        padding = Padding(chunk, begun and (chunk or ahead.padding.memory))
        way = Way(begun, padding, self._windowed(ahead.held, ahead.rows + self._asked))
        base = max(ahead.held) if self._compact else ahead.start
        sizes = [
            Sizes(ahead.rows, held, after, survey.points.budget(budget), base)
            for held, after, budget in zip(ahead.held, kept, ahead.budgets, strict=True)
        ]
        old = self.memory(ahead.held, padding.memory)
        new = self.memory(kept, padding.memory or padding.chunk)
        logits = self._logits if ahead.logits else 0
        return self._course(way, sizes, old, new, logits).peak()

    def answer(
        self,
        lengths: Sequence[int],
        question: int,
        tokens: int,
        padded: bool = False,
        sampled: bool = False,
    ) -> int:
        """Bytes at the highest moment of a question and its answer.

        Args:
            lengths: entries of every layer's memory.
            question: tokens.
            tokens: of the answer, at most.
            padded: there is padding in memory.
            sampled: tokens are drawn.
        """
        memory = self.memory(lengths, padded)
        way = Way(any(lengths), Padding(memory=padded), fork=True, sampled=sampled)
        base = max(lengths)

        def course(rows: int, tail: int, more: int) -> _Course:
            seen = [held + tail for held in lengths]
            now = replace(way, tailed=tail > 0, windowed=self._windowed(seen, rows))
            sizes = [Sizes(rows, held, 0, 0, base + tail, tail) for held in lengths]
            return self._course(now, sizes, memory, memory, self._logits + more)

        asked = course(question, 0, 0)
        found = [asked.peak().bytes]
        if tokens > 1:
            probe = self.probe
            row = probe.logit_bytes  # of the token before, which are held yet
            # A question's keys and values may be held within what they were cut from.
            held = math.ceil(asked.level) - sum(memory) - self._logits
            found.append(course(1, question, row + held).peak().bytes)
            tail = question + tokens - 2
            found.append(course(1, tail, row + tail * sum(probe.tail_bytes)).peak().bytes)
        return max(found)

    def _windowed(self, held: Sequence[int], rows: int) -> bool:
        windows = self.probe.windows
        return any(w is not None and w < h + rows for w, h in zip(windows, held, strict=True))

    def _course(
        self,
        way: Way,
        sizes: Sequence[Sizes],
        old: Sequence[int],
        new: Sequence[int],
        logits: int,
    ) -> _Course:
        forms = self._survey.forms(way)
        plain = common(sizes[0].rows, sizes[0].base, sizes[0].tail)
        course = _Course(sum(old), logits)
        course.rise(forms.before(plain), "the embeddings")
        stem = forms.stem(plain)
        course.level += stem
        late = bool(forms.evictions)
        self._through(course, forms.layers, sizes, None if late else (old, new))
        course.rise(forms.head(plain), "the head")
        if late:
            course.level += forms.head_left(plain)
            self._through(course, forms.evictions, sizes, (old, new))
            course.level = float(sum(new) + logits)
        else:
            course.level -= stem
        course.rise(forms.after(plain), "the logits")
        return course

    def _through(
        self,
        course: _Course,
        layers: dict[int, LayerForms],
        sizes: Sequence[Sizes],
        change: tuple[Sequence[int], Sequence[int]] | None,
    ) -> None:
        """Layer after layer; memory changes from one to the other in each."""
        known: dict[tuple[int, Sizes], tuple[float, float, float, float]] = {}
        for number, (role, size) in enumerate(zip(self.probe.roles, sizes, strict=True)):
            layer = layers[role]
            if (role, size) not in known:
                at = size.features(layer.layout)
                known[role, size] = (
                    layer.model(at),
                    layer.scoring(at),
                    layer.first(at),
                    layer.left(at),
                )
            model, scoring, first, left = known[role, size]
            course.rise(model, f"layer {number}")
            course.rise(scoring, f"scoring in layer {number}", first)
            course.level += left
            if change is not None:
                course.memory += change[1][number] - change[0][number]


class _Course:
    """The level as a forward goes, and the highest moment so far."""

    def __init__(self, memory: int, logits: int) -> None:
        self.memory, self.level = memory, float(memory + logits)
        self._best, self._at, self._memory, self._scores = self.level, "memory", memory, 0.0

    def rise(self, above: float, where: str, first: float | None = None) -> None:
        """A moment; of scoring, which began at `first` above the level."""
        if self.level + above > self._best:
            self._best, self._at, self._memory = self.level + above, where, self.memory
            self._scores = 0.0 if first is None else max(0.0, above - first)

    def peak(self) -> Peak:
        whole, scores = math.ceil(self._best) + _SLACK, int(self._scores)
        return Peak(self._memory, whole - self._memory - scores, scores, self._at)
