"""`Reader`: a model that reads any length of text in bounded memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor, nn

from apportion import models
from apportion.budget import parse_bytes, parse_count
from apportion.errors import InputError, option
from apportion.prefill.bound import Bound, chosen
from apportion.prefill.context import Context
from apportion.prefill.costs import Costs
from apportion.prefill.engine import Engine
from apportion.prefill.pace import RULES
from apportion.prefill.prompt import Prompt
from apportion.prefill.rows import PACKINGS
from apportion.prefill.schedule import Schedule, get_schedule
from apportion.prefill.scorers import Scorer, get_scorer

Ids = Int[Tensor, "batch tokens"]
MEMORY, CHUNK = 2048, 1024
"""M and c where there is no budget to choose them by."""
# Settings that say how long, and not what is done.
_SIZES = {"memory", "chunk", "schedule", "chunks", "seed", "budget"}


@dataclass(frozen=True)
class Settings:
    """What a reader was asked for, checked.

    Attributes:
        memory: M, entries that every compressed layer keeps in the end, sinks not among them.
        chunk: c, the reference size of a chunk.
        schedule: how memory grows.
        chunks: rule for their sizes.
        scorer: what is kept; None: `query` where there are questions, else `snapkv`.
        sinks: first tokens that are always kept.
        positions: `"compact"` or `"original"`.
        evict: `"layer"` or `"forward"`.
        seed: of scorers that draw.
        budget: bytes that a read and its answers may take beyond the weights; None: no bound.
        store: `"model"` or `"8bit"`.
    """

    memory: int
    chunk: int
    schedule: Schedule
    chunks: str
    scorer: str | Scorer | None
    sinks: int
    positions: str
    evict: str
    seed: int
    budget: int | None = None
    store: str = "model"

    def scorer_for(self, questions: Sequence[Any]) -> Scorer:
        """The scorer of a read."""
        if self.scorer is None:
            return get_scorer("query" if questions else "snapkv")
        return get_scorer(self.scorer)


class Reader:
    """Reads long texts with a model, in bounded memory, and answers questions about them.

    Zeng et al., "Memorize Step by Step: Efficient Long-Context Prefilling with Incremental Memory
    and Decremental Chunk", EMNLP 2024.

    Attributes:
        settings: what it was asked for, checked.
        given: memory and chunk as they were asked for; None where the budget decides.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        memory: int | str | None = None,
        chunk: int | str | None = None,
        schedule: str | Schedule = "linear",
        chunks: Literal["fixed", "decremental", "bytes"] | None = None,
        scorer: str | Scorer | None = None,
        sinks: int = 4,
        positions: Literal["compact", "original"] = "compact",
        evict: Literal["layer", "forward"] = "layer",
        seed: int = 0,
        budget: int | str | None = None,
        store: Literal["model", "8bit"] = "model",
    ) -> None:
        """A reader.

        Args:
            model: a causal language model of transformers with rotary positions.
            tokenizer: needed for text and questions; token ids are read without.
            memory: M in tokens, such as 2048 or "2k". By default the largest that `budget` has room
                for, and 2,048 without one.
            chunk: c in tokens. By default what fits beside memory (see `bound.chosen`), and 1,024
                without `budget`.
            schedule: how memory grows to M; see `SCHEDULES`.
            chunks: `"fixed"`, `"decremental"`, or `"bytes"`: each as long as `budget` allows, which
                is the default with one. Without one `"bytes"` takes three quarters of what fixed
                memory would with the same M and c, or the least that works.
            scorer: which entries are kept; see `SCORERS`. By default the questions decide
                (`"query"`) where they are known, else recent text does (`"snapkv"`).
            sinks: first tokens of the text that are always kept.
            positions: `"compact"`: memory stands directly before the chunk, so any length fits any
                model; `"original"`: everything stays where it was in the text.
            evict: `"layer"`: each layer lets go before the next begins; `"forward"`: after the
                whole forward, as published.
            seed: of scorers that draw.
            budget: bytes that memory, activations and scores may take together, such as "200MB";
                answers keep to it too.
            store: memory in the model's own type, or in 8 bits.

        Raises:
            InputError: an option that is none, a model that can't be read with, or a budget that is
                too small, with the least that works.
        """
        given = {
            name: None if value is None else _tokens(name, value)
            for name, value in (("memory", memory), ("chunk", chunk))
        }
        if chunks is None:
            chunks = "decremental" if budget is None else "bytes"
        if chunks not in RULES:
            raise InputError(f"expected {option('chunks')} of {', '.join(RULES)}; got {chunks!r}")
        if positions not in ("compact", "original"):
            raise InputError(
                f"expected {option('positions')} 'compact' or 'original'; got {positions!r}"
            )
        if evict not in ("layer", "forward"):
            raise InputError(f"expected {option('evict')} 'layer' or 'forward'; got {evict!r}")
        if store not in PACKINGS:
            raise InputError(f"expected {option('store')} of {', '.join(PACKINGS)}; got {store!r}")
        if type(sinks) is not int or sinks < 0:
            raise InputError(f"expected {option('sinks')}, a whole number such as 4; got {sinks!r}")
        self.model, self.tokenizer = models.unwrap(model), tokenizer
        self.settings = Settings(
            memory=given["memory"] or MEMORY,
            chunk=given["chunk"] or CHUNK,
            schedule=get_schedule(schedule),
            chunks=chunks,
            scorer=None if scorer is None else get_scorer(scorer),
            sinks=sinks,
            positions=positions,
            evict=evict,
            seed=seed,
            budget=None if budget is None else parse_bytes(budget),
            store=store,
        )
        self.prompt = None if tokenizer is None else Prompt(tokenizer)
        self._costs: dict[object, Costs] = {}
        self.given = given
        self.settings = self.settled(1, ()).settings
        self._check(self.engine(()))

    def engine(self, questions: Sequence[Any]) -> Engine:
        """A new engine with these settings."""
        settings = self.settings
        return Engine(
            self.model,
            settings.scorer_for(questions),
            settings.sinks,
            compact=settings.positions == "compact",
            late=settings.evict == "forward",
            seed=settings.seed,
            store=settings.store,
        )

    def bound(self, batch: int, questions: Sequence[Int[Tensor, " _"]]) -> Bound:
        """What a read may hold, and what it will; short forwards run when that is asked for.

        Args:
            batch: samples.
            questions: token ids of those that observe.
        """
        settings, asked = self.settings, tuple(len(each) for each in questions)
        parts = {f.name: getattr(settings, f.name) for f in fields(settings)}
        # What is held per chunk doesn't depend on how many there are.
        same = [x for name, x in parts.items() if name not in _SIZES]
        key = (batch, asked, *(x if isinstance(x, str | int) else id(x) for x in same))
        if key not in self._costs:
            self._costs[key] = Costs(self.engine(questions), batch, asked)
        reach = models.positions(self.model) if settings.positions == "compact" else None
        return Bound(
            self._costs[key],
            settings.budget,
            settings.sinks,
            None if reach is None else reach - max(asked, default=0),
            models.windows(self.model),
        )

    def varied(self, **changes: Any) -> Reader:
        """A reader with some settings changed; itself where nothing is."""
        settings = replace(self.settings, **changes)
        if settings == self.settings:
            return self
        twin = copy.copy(self)
        twin.settings = settings
        return twin

    def settled(self, batch: int, questions: Sequence[Int[Tensor, " _"]]) -> Reader:
        """A reader with the memory and the chunk that the budget has room for.

        Args:
            batch: samples.
            questions: token ids of those that observe.

        Raises:
            InputError: the budget is too small.
        """
        settings, given = self.settings, self.given
        if settings.budget is None or None not in given.values():
            return self
        bound = self.bound(batch, questions)
        memory, chunk = chosen(bound, settings.chunks, given["memory"], given["chunk"])
        return self.varied(memory=memory, chunk=chunk)

    def read(
        self,
        text: str | Ids | Iterable[str],
        questions: Sequence[str | Int[Tensor, " _"]] = (),
        attention_mask: Int[Tensor, "batch tokens"] | None = None,
        progress: bool = False,
        predict: bool = False,
    ) -> Context:
        """Read a text.

        Args:
            text: a string; pieces of one, of a stream whose length is not known; or token ids.
            questions: what will be asked, if it is known: the questions observe every chunk.
            attention_mask: for token ids: 0 where a sample is padded, on the left or on the right.
            progress: show a bar.
            predict: foresee the peak also where there is no budget, by short forwards; with a
                budget it always is.

        Returns:
            What can be asked, extended and saved.

        Raises:
            InputError: no text, or one that doesn't go with the options.
            ReadInterruptedError: Ctrl-C; it carries what was read.
        """
        asked = [self.question(each) for each in questions]
        batch = max(1, len(text)) if isinstance(text, Tensor) and text.ndim == 2 else 1
        reader = self.settled(batch, asked)
        context = Context(reader, self.engine(asked), asked, predict=predict)
        context.take(text, attention_mask, progress)
        return context

    def question(self, question: str | Int[Tensor, " tokens"]) -> Int[Tensor, " tokens"]:
        """Token ids of a question, with the opening of its answer.

        Raises:
            InputError: an empty question, or text without a tokenizer.
        """
        if isinstance(question, Tensor):
            ids = question.flatten()
        elif not question.strip():
            raise InputError("expected a question, got an empty one")
        else:
            ids = self.with_prompt().question(question)
        if not len(ids):
            raise InputError("expected a question, got one without tokens")
        return ids.to(models.tensor_device(self.model))

    def load(self, path: str | Path) -> Context:
        """A context that `Context.save` has written, of this model.

        Raises:
            InputError: not such a file, damaged, or of another model or dtype.
        """
        from apportion.prefill.saved import load

        return load(self, path)

    def with_prompt(self) -> Prompt:
        """The prompt.

        Raises:
            InputError: there is no tokenizer.
        """
        if self.prompt is None:
            raise InputError(
                "expected token ids, since this reader has no tokenizer; got text. "
                "Reader(model, tokenizer) reads text"
            )
        return self.prompt

    def _check(self, engine: Engine) -> None:
        reach = models.positions(self.model)
        if self.settings.positions != "compact" or reach is None:
            return
        need = self.settings.sinks + self.settings.memory + self.settings.chunk
        if need > reach:
            raise InputError(
                f"expected sinks, memory and chunk within the model's {reach} positions, got "
                f"{self.settings.sinks} + {self.settings.memory} + {self.settings.chunk}; "
                f"{option('memory', max(1, reach - self.settings.chunk - self.settings.sinks))} "
                "fits"
            )


def _tokens(name: str, value: int | str) -> int:
    count = parse_count(value, f"{option(name)} in tokens")
    if count < 1 or count != int(count):
        raise InputError(f"expected {option(name)}, a whole number of tokens; got {value!r}")
    return int(count)
