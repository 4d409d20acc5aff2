"""One forward over a chunk: attention that sees memory, and remembers as it goes.

The model's own code runs; its attention is looked up by name, and under ours each layer does all
that is to be done as soon as its keys are there: memory is rotated to stand directly before the
chunk, the chunk's rows attend to both, the scorer looks, and what is not kept is let go before the
next layer begins. So only one layer at a time holds memory and chunk; evicting after the forward,
as published, holds both in all layers.

Positions. Rotary positions only matter by their differences, and chunk and memory stand in a row:
the entries of a layer at base - m to base - 1, the chunk from base on, where base is the length of
the longest memory. However long the text, no position exceeds memory plus chunk.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError
from apportion.prefill.attention import Entries, Rules, attend
from apportion.prefill.checks import check_arguments, check_finite
from apportion.prefill.memory import LayerMemory, choose, empty, joined_real
from apportion.prefill.observe import view_of
from apportion.prefill.rows import dense
from apportion.prefill.scorers import Scorer

# See `models.turns`: of all positions of a forward, and back for those of the text.
_Turns = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Chunk:
    """What a forward reads.

    Attributes:
        ids: token ids.
        real: False for padding; None: none.
        start: place of the first column in the text.
        budgets: entries that each layer keeps afterwards, sinks not among them; None in a fork,
            which keeps everything.
        questions: token ids of questions that observe it.
    """

    ids: Int[Tensor, "batch tokens"]
    start: int
    budgets: Sequence[int] | None
    real: Bool[Tensor, "batch tokens"] | None = None
    questions: Sequence[Int[Tensor, " _"]] = ()


@dataclass
class Forward:
    """A forward under way: what layers need to know, and what they leave behind."""

    chunk: Chunk
    base: int
    real: Bool[Tensor, "batch rows"] | None
    turns: Mapping[str | None, _Turns]
    touched: bool = False  # whether a layer has remembered anything of it
    sums: dict[int, Tensor] = field(default_factory=dict)
    pending: list[Callable[[], None]] = field(default_factory=list)
    retained: dict[int, float] = field(default_factory=dict)


class Engine:
    """A model that reads into memory.

    Attributes:
        memory: of each layer; None before the first chunk.
        layers: how many there are.
        compressed: numbers of those without a sliding window of their own.
        torn: whether a forward has stopped halfway, so that some layers remember its chunk and
            others don't, or has put NaN into memory.
        tails: in a fork, what each layer has read behind memory; None elsewhere.
        watch: told the number of a layer as it begins to score and evict (True), and when it has
            (False).
    """

    def __init__(
        self,
        model: nn.Module,
        scorer: Scorer,
        sinks: int = 4,
        compact: bool = True,
        late: bool = False,
        seed: int = 0,
        store: str = "model",
    ) -> None:
        """An engine with empty memory.

        Args:
            model: a causal language model of transformers.
            scorer: says what is worth keeping.
            sinks: first tokens that are always kept.
            compact: positions directly before the chunk; otherwise those of the text.
            late: evict after the forward, as published; for comparison.
            seed: of scorers that draw.
            store: of memory; see `PACKINGS`.

        Raises:
            InputError: a model whose positions or attention can't be handled.
        """
        self.model = models.unwrap(model)
        models.check_no_state(self.model)
        self.scorer, self.sinks = scorer, sinks
        self.compact, self.late, self.store = compact, late, store
        self.rotary = models.Rotary(self.model)
        self.layers = len(self.rotary.moves)
        self._windows = models.windows(self.model)
        self.compressed = [k for k, window in enumerate(self._windows) if window is None]
        self.memory: list[LayerMemory | None] = [None] * self.layers
        self.generator = torch.Generator().manual_seed(seed)
        self.torn = False
        self.watch: Callable[[int, bool], None] = _unwatched
        self.tails: list[Entries | None] | None = None
        self._base = 0
        self._now: Forward | None = None

    def fork(self, sample: int) -> Engine:
        """An engine that sees this one's memory of a sample and leaves it as it is.

        What it reads it adds behind the memory, in storages of its own, and evicts nothing: for a
        question and its answer.

        Raises:
            InputError: the memory is torn.
        """
        self.check_whole()
        twin = copy.copy(self)
        twin.memory = [None if held is None else held.of(sample) for held in self.memory]
        twin.tails = [None for _ in range(self.layers)]
        twin._base = max(self.lengths())
        return twin

    def lengths(self) -> list[int]:
        """Entries of each layer, sinks among them."""
        return [0 if held is None else len(held) for held in self.memory]

    def bytes(self) -> int:
        """Of memory, in all layers."""
        return sum(held.bytes for held in self.memory if held is not None)

    def check_whole(self) -> None:
        """Memory can be used.

        Raises:
            InputError: it is torn.
        """
        if self.torn:
            raise InputError(
                "expected memory that is whole; reading was stopped or failed within a chunk, "
                "which some layers hold and others don't: read the text again"
            )

    @torch.no_grad()
    def read(self, chunk: Chunk, logits: int = 1) -> tuple[Tensor, dict[int, float]]:
        """Read a chunk into memory.

        Args:
            chunk: what to read.
            logits: of so many last positions of the chunk; 0: of all.

        Returns:
            Logits (batch, positions, vocabulary), and each compressed layer's retention ratio.

        Raises:
            InputError: numbers that are not finite, with the first layer where they show; torn
                memory.
        """
        self.check_whole()
        forward = self._prepared(chunk)
        ids, places = self._rows(chunk, forward.base)
        asked = sum(len(question) for question in chunk.questions)
        wanted: Any = logits
        if asked:
            kept = chunk.ids.shape[1]
            first = max(0, kept - logits) if logits else 0
            wanted = torch.arange(first, kept, device=ids.device)
        try:
            with self._routed(forward):
                out = self.model(
                    input_ids=ids, position_ids=places, use_cache=False, logits_to_keep=wanted
                ).logits
            while forward.pending:
                # One that is done holds its layer's keys no longer.
                forward.pending.pop(0)()
            check_finite(forward.sums, out, chunk.start, chunk.ids.shape[1])
        except BaseException:
            self.torn = forward.touched
            raise
        return out, forward.retained

    def _prepared(self, chunk: Chunk) -> Forward:
        asked = [len(question) for question in chunk.questions]
        base = chunk.start
        turns: dict[str | None, _Turns] = {}
        if self.compact:
            tail = self.tails[0] if self.tails is not None else None
            base = max(self.lengths()) + (0 if tail is None else len(tail))
            # Up to the last position of the forward and no further: scalings go by it.
            end = base + chunk.ids.shape[1]
            for kind in set(self.rotary.kinds):
                cos, sin = self.rotary.table(end + max(asked, default=0), kind)
                back = models.turns((cos[base:end], sin[base:end]), back=True)
                turns[kind] = models.turns((cos, sin)), back
        real = chunk.real
        if real is not None and asked:
            real = torch.cat([real, real.new_ones(len(real), sum(asked))], dim=1)
        return Forward(chunk, base, real, turns)

    def _rows(self, chunk: Chunk, base: int) -> tuple[Tensor, Tensor]:
        """Token ids and positions of the chunk and of the questions after it."""
        batch, count = chunk.ids.shape
        device = chunk.ids.device
        ids = [chunk.ids, *(q.to(device).expand(batch, -1) for q in chunk.questions)]
        # Each question stands directly after the chunk.
        places = [torch.arange(base, base + count, device=device)]
        end = base + count
        places += [torch.arange(end, end + len(q), device=device) for q in chunk.questions]
        return torch.cat(ids, dim=1), torch.cat(places).expand(batch, -1)

    @contextmanager
    def _routed(self, forward: Forward) -> Generator[None]:
        # What is registered stays so, and must not keep memory alive.
        own: Any = weakref.WeakMethod(self._attention)
        routed = models.RoutedAttention(
            self.model, lambda _: lambda *args, **more: own()(*args, **more), unmasked=True
        )
        training = [module for module in self.model.modules() if module.training]
        self._now = forward
        try:
            for module in training:
                module.training = False
            yield
        finally:
            self._now = None
            for module in training:
                module.training = True
            routed.restore()

    def _attention(
        self,
        module: Any,
        query: Float[Tensor, "batch heads rows size"],
        key: Float[Tensor, "batch keyheads rows size"],
        value: Float[Tensor, "batch keyheads rows valuesize"],
        attention_mask: Any,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **more: Any,
    ) -> tuple[Float[Tensor, "batch rows heads valuesize"], None]:
        """One layer, as transformers calls it."""
        forward, layer = self._now, int(module.layer_idx)
        assert forward is not None
        check_arguments(module, sliding_window, self._windows[layer], more, forward.sums)
        factor = float(query.shape[3]) ** -0.5 if scaling is None else scaling
        rules = Rules(factor, softcap or 0.0, sliding_window)
        new = Entries(key, value, forward.real)
        old, seen = self._seen(layer, new, forward)
        parts = [seen] if len(seen) else []
        if self.tails is not None:
            tail = self.tails[layer]
            parts += [] if tail is None else [tail]
            forward.touched = True
            self.tails[layer] = new if tail is None else tail.followed(new)
        out = attend(query, parts, new, rules, [len(q) for q in forward.chunk.questions])
        forward.sums[layer] = out.sum(dtype=torch.float32)
        if self.tails is not None:
            return out.transpose(1, 2), None

        def evict() -> None:
            self.watch(layer, True)
            self._remember(layer, old, seen, new, query, rules, forward)
            self.watch(layer, False)

        if self.late:
            forward.pending.append(evict)
        else:
            evict()
        return out.transpose(1, 2), None

    def _seen(self, layer: int, new: Entries, forward: Forward) -> tuple[LayerMemory, Entries]:
        """A layer's memory, as it is held and as the chunk sees it."""
        old = self.memory[layer]
        if old is None:
            order = torch.zeros(new.keys.shape[:3], dtype=torch.int32, device=new.keys.device)
            old = empty(LayerMemory(new.keys, new.values, order, new.real))
        keys = dense(old.keys)
        if self.compact and self.rotary.moves[layer] and len(old):
            end = forward.base if self.tails is None else self._base
            (cos, sin), _ = forward.turns[self.rotary.kinds[layer]]
            keys = models.turned(keys, (cos[end - len(old) : end], sin[end - len(old) : end]))
        real = old.real if len(old) else None
        return old, Entries(keys, dense(old.values), real)

    def _remember(
        self,
        layer: int,
        old: LayerMemory,
        seen: Entries,
        new: Entries,
        query: Tensor,
        rules: Rules,
        forward: Forward,
    ) -> None:
        """Keep of memory and chunk what is worth it."""
        chunk = forward.chunk
        forward.touched = True
        fresh = self._fresh(layer, new.part(0, chunk.ids.shape[1]), forward)
        if rules.window is not None:
            # A window holds what the next row sees of the past.
            self.memory[layer] = old.slid(fresh, rules.window - 1)
            return
        assert chunk.budgets is not None, "only a fork keeps everything"
        budget = chunk.budgets[layer] if self.scorer.remembers else 0
        view = view_of(
            self.scorer, seen, new, old, fresh, query, rules, budget, self.sinks, self.generator
        )
        scores = self.scorer.score(view)
        index = choose(scores, joined_real(old, fresh), budget, self.sinks)
        kept = old.chosen(fresh, index)
        sums = {name: x.gather(2, index) for name, x in scores.carried.items()}
        self.memory[layer] = replace(kept, carried=sums).packed(self.store)
        held = int((index < len(old)).sum())
        forward.retained[layer] = held / max(1, index.numel())

    def _fresh(self, layer: int, text: Entries, forward: Forward) -> LayerMemory:
        """The chunk as memory holds entries: unrotated."""
        keys = text.keys
        if self.compact and self.rotary.moves[layer]:
            keys = models.turned(keys, forward.turns[self.rotary.kinds[layer]][1])
        start = forward.chunk.start
        order = torch.arange(start, start + len(text), dtype=torch.int32, device=keys.device)
        shape = keys.shape[:3]
        none = {name: torch.zeros(shape, device=keys.device) for name in self.scorer.carries}
        return LayerMemory(keys, text.values, order.expand(shape), text.real, none)


def _unwatched(layer: int, begins: bool) -> None:
    pass
