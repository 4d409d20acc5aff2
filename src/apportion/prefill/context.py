"""`Context`: what has been read, to be asked, extended and saved."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apportion import models
from apportion.errors import InputError
from apportion.meter import meter_of
from apportion.prefill.answer import Answer, ask, check_length
from apportion.prefill.bound import Bound
from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.interrupt import finishing
from apportion.prefill.pace import Pace
from apportion.prefill.pacing import foreseen, paced
from apportion.prefill.progress import Bar
from apportion.prefill.source import source_of

if TYPE_CHECKING:
    from apportion.prefill.reader import Reader


@dataclass(frozen=True)
class Step:
    """One chunk of a read.

    Attributes:
        start: place of its first token in the text.
        tokens: of the chunk.
        memory: entries that each layer kept.
        retained: of those, the share that was memory before, in each compressed layer.
        seconds: it took.
        peak_bytes: most that was alive in it: memory, activations and scores.
        memory_bytes: of memory after it.
    """

    start: int
    tokens: int
    memory: list[int]
    retained: dict[int, float]
    seconds: float
    peak_bytes: int
    memory_bytes: int


class ReadInterruptedError(KeyboardInterrupt):
    """Ctrl-C in a read.

    Attributes:
        context: what was read so far; it can be asked, extended and saved.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(f"stopped after {context.tokens} tokens")
        self.context = context


@dataclass
class Context:
    """A text in memory.

    Attributes:
        reader: that read it.
        engine: holds the memory.
        questions: that were known while reading.
        ids: of the text, padding on the left, on the CPU, int32.
        real: False for padding; None: none.
        logits: (batch, vocabulary) after the last token.
        trace: one entry a chunk.
        predicted_bytes: what `peak_bytes` was to be at most, before it was measured; None where
            nobody asked for it, since it takes probes.
        predict: foresee the peak even where there is no bound to keep.
    """

    reader: Reader
    engine: Engine
    questions: list[Int[Tensor, " _"]]
    ids: Int[Tensor, "batch tokens"] | None = None
    real: Tensor | None = None
    logits: Float[Tensor, "batch vocabulary"] | None = None
    trace: list[Step] = field(default_factory=list)
    predicted_bytes: int | None = None
    predict: bool = False

    @property
    def tokens(self) -> int:
        """Tokens read, padding among them."""
        return sum(step.tokens for step in self.trace)

    @property
    def peak_bytes(self) -> int:
        """Most that was alive at once beyond the weights: memory, activations and scores."""
        return max((step.peak_bytes for step in self.trace), default=0)

    @property
    def seconds(self) -> float:
        """Of all chunks."""
        return sum(step.seconds for step in self.trace)

    @property
    def kept_share(self) -> float:
        """Share of the text that is still in memory, mean over the layers."""
        lengths = self.engine.lengths()
        return sum(lengths) / (len(lengths) * max(1, self.tokens))

    def extend(
        self,
        text: str | Int[Tensor, "batch tokens"] | Iterable[str],
        attention_mask: Tensor | None = None,
        progress: bool = False,
    ) -> None:
        """Read on. What is kept never shrinks below the final memory.

        Args:
            text: as for `Reader.read`.
            attention_mask: not needed; more text has no padding.
            progress: show a bar.

        Raises:
            InputError: as `Reader.read`; padding.
        """
        self.take(text, attention_mask, progress)

    def ask(self, question: str | Int[Tensor, " tokens"], **options: Any) -> Answer:
        """Answer a question; the context stays as it was. See `apportion.prefill.answer.ask`."""
        return ask(self, question, **options)

    def save(self, path: str | Path) -> None:
        """Write memory and what belongs to it as safetensors.

        Raises:
            InputError: it can't be written.
        """
        from apportion.prefill.saved import save

        save(self, path)

    def take(
        self,
        text: str | Int[Tensor, "batch tokens"] | Iterable[str],
        attention_mask: Tensor | None,
        progress: bool,
    ) -> None:
        """Read a text into memory, chunk by chunk."""
        opening = self.ids is None
        source = source_of(self.reader, text, attention_mask, opening)
        if not opening and source.padded:
            raise InputError("expected more text without padding, got an attention mask with zeros")
        if self.ids is not None and source.batch != len(self.ids):
            raise InputError(
                f"expected more text for each of {len(self.ids)} samples, got {source.batch}: "
                f"token ids ({len(self.ids)}, tokens)"
            )
        self._check_questions(source.tokens)
        pace, bound = paced(self, source, full=not opening)
        with Bar(source.tokens, progress) as bar:
            try:
                while True:
                    part = source.take(pace.next(self._compressed(), self._means()))
                    if part is None:
                        break
                    with finishing():
                        self._read(part.ids, part.real, pace, bound)
                    bar.advance(part.ids.shape[1])
            except KeyboardInterrupt as stopped:
                if not self.trace or self.engine.torn:
                    raise
                raise ReadInterruptedError(self) from stopped
        if not self.trace:
            raise InputError("expected a text, got an empty one")

    def _check_questions(self, more: int | None) -> None:
        """Known questions can be answered when all is read; said before, since reading is long."""
        settings, longest = self.reader.settings, max(map(len, self.questions), default=0)
        if not longest or not self.engine.compressed:
            return
        held = settings.sinks + settings.memory
        if more is not None:
            read = self.tokens + more
            held = min(held, read) if settings.positions == "compact" else read
        check_length(self.reader.model, held, longest + 1)

    def held(self) -> list[Tensor]:
        """Memory, and the last row of logits."""
        memory = [x for held in self.engine.memory if held is not None for x in held.tensors]
        return memory if self.logits is None else [*memory, self.logits]

    def _read(self, ids: Tensor, real: Tensor | None, pace: Pace, bound: Bound | None) -> None:
        compressed = self.engine.compressed
        budgets = [0] * self.engine.layers
        wanted = pace.budgets(ids.shape[1], self._means())
        for layer, budget in zip(compressed, wanted, strict=True):
            budgets[layer] = budget
        device = models.tensor_device(self.reader.model)
        start = self.tokens
        if bound is not None:
            expected = foreseen(self, bound, ids.shape[1], budgets, real is not None)
            self.predicted_bytes = max(self.predicted_bytes or 0, expected)
        chunk = Chunk(
            ids.to(device),
            start,
            budgets,
            None if real is None else real.to(device),
            self.questions,
        )
        begun = time.perf_counter()
        with meter_of(device, self.held()) as meter:
            logits, retained = self.engine.read(chunk)
            self.logits = logits[:, -1].clone()
        self.trace.append(
            Step(
                start=start,
                tokens=ids.shape[1],
                memory=self.engine.lengths(),
                retained=retained,
                seconds=time.perf_counter() - begun,
                peak_bytes=meter.peak,
                memory_bytes=self.engine.bytes(),
            )
        )
        self._keep_source(ids, real)

    def _keep_source(self, ids: Tensor, real: Tensor | None) -> None:
        """For reading again: four bytes a token."""
        ids = ids.to("cpu", torch.int32)
        if real is not None or self.real is not None:
            now = torch.ones(ids.shape, dtype=torch.bool) if real is None else real.cpu()
            past = self.real
            if past is None:
                count = 0 if self.ids is None else self.ids.shape[1]
                past = torch.ones(len(ids), count, dtype=torch.bool)
            self.real = torch.cat([past, now], dim=1)
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)

    def _compressed(self) -> list[int]:
        lengths = self.engine.lengths()
        return [lengths[layer] for layer in self.engine.compressed]

    def _means(self) -> Sequence[float]:
        """Mean retention ratio of each compressed layer; the first chunk had nothing to retain."""
        past = [step.retained for step in self.trace[1:] if step.retained]
        if not past:
            return ()
        return [sum(r[layer] for r in past) / len(past) for layer in self.engine.compressed]
