"""Short forwards of the engine that show what any forward will hold, moment by moment.

The engine's and the model's own code runs, with a few decoder layers in place of all: the lowest,
and one of every kind of the others. A trace notes how many bytes are alive after each operation
that makes a storage, by its place in the program. Places are the same whatever the sizes, and what
is alive at one is linear in a few products of them, so forms that are fitted to small forwards hold
for large ones (see `forms`). Refused: formulas for every moment, which are wrong as soon as a line
of the engine, a scorer of the user's own or a model's code is changed.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from apportion import models
from apportion.prefill.decode import Sampling, draw
from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.memory import LayerMemory
from apportion.prefill.rows import Eight, Rows
from apportion.prefill.watch import AFTER, Clock, Phase, Record, Trace, only, watched

_SEED = 8  # tokens of the read whose entries stand for any
# Weights of the layers that are timed together, where the decoder has as many: more than caches
# hold, or a layer would find its weights where it left them, as it does not between thirty others.
COLD_BYTES = 2**26


@dataclass(frozen=True)
class Padding:
    """Where padding is.

    Attributes:
        chunk: among the rows of the chunk.
        memory: among the entries of memory.
    """

    chunk: bool = False
    memory: bool = False


NO_PADDING = Padding()


@dataclass(frozen=True)
class Point:
    """Sizes of one forward of a probe.

    Attributes:
        rows: of the chunk, or of what is asked.
        held: entries of every layer that runs.
        budget: what each of them keeps, sinks not among them.
        start: place of the chunk in the text.
        elsewhere: entries of a layer that doesn't run; 0: none.
        tail: entries of question and answer that each layer holds besides, in a fork.
    """

    rows: int
    held: Mapping[int, int]
    budget: int = 1
    start: int = 0
    elsewhere: int = 0
    tail: int = 0


class Probe:
    """Forwards of an engine's model with few of its layers.

    Attributes:
        batch: samples.
        questions: tokens of each question that observes.
        windows: of every layer, what its attention looks back; None: all.
        roles: of every layer, which one that runs stands for it.
        entry_bytes: of every layer, bytes of an entry of its memory, over all samples.
        fixed_bytes: of every layer, bytes of its memory that are there however many entries are.
        tail_bytes: of every layer, bytes of an entry of a question or an answer, of one sample.
        logit_bytes: of one row's logits, of one sample.
        heads: query heads of a layer, over all samples.
        idle: a layer that doesn't run; None: all do.
    """

    def __init__(self, engine: Engine, batch: int, questions: Sequence[int] = ()) -> None:
        """A probe; the engine and its memory are left as they are.

        Args:
            engine: whose forwards are asked for.
            batch: samples.
            questions: tokens of each question that observes.
        """
        self._engine = copy.copy(engine)
        self._layers = models.decoder_layers(engine.model)
        self._device = models.tensor_device(engine.model)
        self._random = torch.Generator().manual_seed(0)
        self.batch, self.questions = batch, tuple(questions)
        self._asked = [self._ids(count)[0] for count in questions]
        self.windows = models.windows(engine.model)
        self.roles = _roles(self._layers, engine, self.windows)
        self._running = sorted(set(self.roles))
        idle = set(range(len(self._layers))) - set(self._running)
        self.idle = max(idle, default=None)
        self._seeds, self.logit_bytes = self._seeded()
        own = {k: _bytes(seed) for k, seed in self._seeds.items()}
        self.entry_bytes = [own[role][0] for role in self.roles]
        self.fixed_bytes = [own[role][1] for role in self.roles]
        self.tail_bytes = [_tail_bytes(self._seeds[role]) // batch for role in self.roles]
        attention: Any = models.attention_of(self._layers[0])
        grouped = int(getattr(attention, "num_key_value_groups", 1))
        self.heads = batch * grouped * self._seeds[0].keys.shape[1]

    def forward(self, point: Point, padding: Padding) -> Record:
        """What a forward over a chunk holds, from its beginning to the logits' last row."""
        engine = self._prepared(point, padding, self._running)
        chunk = self._chunk(point, padding)
        trace = Trace(_tensors(engine), sys._getframe().f_code)  # pyright: ignore[reportPrivateUsage]
        engine.watch = trace.score_late if engine.late else trace.score
        with ExitStack() as stack:
            stack.enter_context(only(self._layers, self._running))
            stack.enter_context(watched(self._layers, trace))
            stack.enter_context(trace)
            out, _ = engine.read(chunk)
            trace.enter(AFTER)
            last = out[:, -1].clone()
        del last
        lengths = engine.lengths()
        trace.record.kept = {layer: lengths[layer] for layer in self._running}
        return trace.record

    def answer(self, point: Point, padding: Padding, sampled: bool) -> Record:
        """What a forward over a question, or over a token of its answer, and a draw hold."""
        whole = self._prepared(point, padding, self._running)
        engine = whole.fork(0)
        sampling = Sampling(1.0, 0.9) if sampled else Sampling()
        trace = Trace(_tensors(whole), sys._getframe().f_code)  # pyright: ignore[reportPrivateUsage]
        with ExitStack() as stack:
            stack.enter_context(only(self._layers, self._running))
            stack.enter_context(watched(self._layers, trace))
            stack.enter_context(trace)
            if point.tail:
                # A question and a token, so that nothing is held of what they were cut from.
                engine.read(Chunk(self._ids(point.tail - 1)[:1], point.start, None))
                engine.read(Chunk(self._ids(1)[:1], point.start + point.tail - 1, None))
            ids = self._ids(point.rows)[:1]
            trace.clear()
            logits, _ = engine.read(Chunk(ids, point.start + point.tail, None))
            trace.enter(AFTER)
            draw(logits[0, -1], sampling, self._random)
        return trace.record

    def seconds(self, point: Point) -> dict[Phase, float]:
        """How long a forward takes in each layer that stands for others, and in all the rest.

        More layers of each kind run than those, so that none finds its weights in a cache.
        """
        running = self._many()
        engine = self._prepared(point, NO_PADDING, running)
        clock = Clock(self._device)
        with ExitStack() as stack:
            stack.enter_context(only(self._layers, running))
            stack.enter_context(watched(self._layers, clock))
            begun = clock.now()
            engine.read(self._chunk(point, NO_PADDING))
            whole = clock.now() - begun
        spent: dict[Phase, list[float]] = {}
        for number in running:
            spent.setdefault(("layer", self.roles[number]), []).append(clock.spent["layer", number])
        rest = whole - sum(map(sum, spent.values()))
        return {
            **{phase: sum(times) / len(times) for phase, times in spent.items()},
            ("rest", 0): max(0.0, rest),
        }

    def _many(self) -> list[int]:
        found = set(self._running)
        for role in self._running:
            weights = self._layers[role].parameters()
            each = max(1, sum(p.numel() * p.element_size() for p in weights))
            members = [k for k, r in enumerate(self.roles) if r == role]
            found.update(members[: max(2, -(-COLD_BYTES // each))])
        return sorted(found)

    def _prepared(self, point: Point, padding: Padding, running: Sequence[int]) -> Engine:
        """An engine of its own, with memory of the sizes of a point."""
        engine = copy.copy(self._engine)
        engine.generator = torch.Generator().manual_seed(0)
        engine.memory = [None] * engine.layers
        for layer in running:
            role = self.roles[layer]
            if count := point.held[role]:
                engine.memory[layer] = _repeated(self._seeds[role], count, padding.memory)
        if self.idle is not None and point.elsewhere:
            engine.memory[self.idle] = _repeated(self._seeds[0], point.elsewhere, padding.memory)
        return engine

    def _chunk(self, point: Point, padding: Padding) -> Chunk:
        real = None
        if padding.chunk:
            # A sample that is nearly all padding: its memory will be padded too.
            real = torch.ones(self.batch, point.rows, dtype=torch.bool, device=self._device)
            real[0, :-1] = False
            real[0, -1] = point.rows > 1
        budgets = [point.budget] * self._engine.layers
        return Chunk(self._ids(point.rows), point.start, budgets, real, self._asked)

    def _seeded(self) -> tuple[dict[int, LayerMemory], int]:
        """A few entries of every layer that runs; bytes of a sample's logits."""
        engine = copy.copy(self._engine)
        engine.memory = [None] * engine.layers
        engine.generator = torch.Generator().manual_seed(0)
        engine.sinks = _SEED  # which are kept, whatever the scorer says
        with only(self._layers, self._running):
            out, _ = engine.read(Chunk(self._ids(_SEED), 0, [_SEED] * engine.layers))
        found = {k: engine.memory[k] for k in self._running}
        seeds = {k: memory for k, memory in found.items() if memory is not None}
        return seeds, out[0, -1].numel() * out.element_size()

    def _ids(self, count: int) -> Tensor:
        outer: Any = self._engine.model
        vocabulary = int(outer.get_input_embeddings().weight.shape[0])
        ids = torch.randint(vocabulary, (self.batch, count), generator=self._random)
        return ids.to(self._device)


def _roles(layers: list[nn.Module], engine: Engine, windows: list[int | None]) -> list[int]:
    """Of every layer, which one stands for it: the lowest for itself, since the embeddings are
    alive beside its output all the while; of the others the first of each kind."""
    first: dict[Any, int] = {}
    found = [0]
    for number, layer in enumerate(layers[1:], 1):
        kind = (
            tuple((name, tuple(p.shape), p.dtype) for name, p in layer.named_parameters()),
            tuple(type(module) for module in layer.modules()),
            windows[number],
            engine.rotary.kinds[number],
            engine.rotary.moves[number],
        )
        found.append(first.setdefault(kind, number))
    return found


def _repeated(seed: LayerMemory, count: int, padded: bool = False) -> LayerMemory:
    """Some entries over and over, in storages of their own; the first sample may be all padding."""
    index = torch.arange(count, device=seed.order.device) % len(seed)
    keys, values = _taken(seed.keys, index), _taken(seed.values, index)
    order = torch.arange(count, dtype=torch.int32, device=index.device)
    carried = {name: sums[:, :, index] for name, sums in seed.carried.items()}
    real = None
    if padded:
        real = torch.ones(seed.order.shape[0], count, dtype=torch.bool, device=index.device)
        real[0] = False
    order = order.expand(*seed.order.shape[:2], count).clone()
    return replace(seed, keys=keys, values=values, order=order, real=real, carried=carried)


def _taken(x: Rows, index: Tensor) -> Rows:
    if isinstance(x, Eight):
        return replace(x, codes=x.codes[:, :, index], scale=x.scale[:, :, index])
    return x[:, :, index]


def _bytes(seed: LayerMemory) -> tuple[int, int]:
    """Of an entry, and of all that is not an entry's."""
    if not len(seed):
        return 0, 0
    one = _repeated(seed, 1).bytes
    each = _repeated(seed, 2).bytes - one
    return each, one - each


def _tail_bytes(seed: LayerMemory) -> int:
    parts: tuple[Rows, Rows] = (seed.keys, seed.values)
    return sum(x.shape[0] * x.shape[1] * x.shape[3] * x.dtype.itemsize for x in parts)


def _tensors(engine: Engine) -> list[Tensor]:
    return [x for memory in engine.memory if memory is not None for x in memory.tensors]
