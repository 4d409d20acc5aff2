"""Questions about a context, and their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor, nn

from apportion import models
from apportion.errors import InputError, option
from apportion.prefill.bound import check_answer
from apportion.prefill.decode import Sampling, generate
from apportion.prefill.rehearse import is_padded

if TYPE_CHECKING:
    from apportion.prefill.context import Context


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        text: what was generated; empty without a tokenizer.
        ids: its tokens.
        known: whether the question observed the reading. If not, what it asks for may have been
            forgotten before it came: `ask(…, reread=True)` reads again.
        kept_share: share of the context that is in memory.
        first_s: seconds from the question to the first token.
        seconds: of question and answer.
        peak_bytes: most that was alive at once beyond the weights, the memory among it.
    """

    text: str
    ids: list[int]
    known: bool
    kept_share: float
    first_s: float
    seconds: float
    peak_bytes: int

    def __str__(self) -> str:
        return self.text


def ask(
    context: Context,
    question: str | Int[Tensor, " tokens"],
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    reread: bool = False,
    sample: int = 0,
    stream: Callable[[str], None] | None = None,
) -> Answer:
    """Answer a question; the context stays as it was.

    Args:
        context: that was read.
        question: text, or token ids.
        max_new_tokens: most tokens of the answer.
        temperature: 0: always the likeliest token.
        top_p: draw from the likeliest tokens that together have this probability.
        seed: the same draws again.
        reread: read the text again with the question observing it, unless it did already.
        sample: of a batch of texts, which one is asked about.
        stream: called with each new piece of text.

    Raises:
        InputError: an empty question, one too long for the model, or options that are none.
    """
    if max_new_tokens < 1:
        raise InputError(
            f"expected tokens to be answered with, such as {option('max_new_tokens', 64)}; got "
            f"{max_new_tokens}"
        )
    reader = context.reader
    batch = 1 if context.ids is None else len(context.ids)
    if not 0 <= sample < batch:
        raise InputError(f"expected a sample of 0 to {batch - 1}, got sample={sample}")
    sampling = Sampling(temperature, top_p, seed)
    ids = reader.question(question)
    known = any(torch.equal(ids, each) for each in context.questions)
    if reread and not known:
        context = read_again(context, [ids])
        known = True
    compact = reader.settings.positions == "compact"
    held = max(context.engine.lengths()) if compact else context.tokens
    check_length(reader.model, held, len(ids) + max_new_tokens)
    _check_bytes(context, len(ids), max_new_tokens, temperature > 0)
    told = _Told(reader.prompt.answer, stream) if stream and reader.prompt else None
    found = generate(
        context.engine.fork(sample),
        ids.to(models.tensor_device(reader.model)),
        context.tokens,
        max_new_tokens,
        models.stop_ids(reader.model, reader.tokenizer),
        sampling,
        told,
        context.held(),
    )
    if told is not None:
        told.finish(found.ids)
    return Answer(
        text="" if reader.prompt is None else reader.prompt.answer(found.ids),
        ids=found.ids,
        known=known,
        kept_share=context.kept_share,
        first_s=found.first_s,
        seconds=found.seconds,
        peak_bytes=found.peak_bytes,
    )


def read_again(context: Context, questions: list[Int[Tensor, " _"]]) -> Context:
    """The text of a context, read with other questions observing."""
    assert context.ids is not None
    mask = None if context.real is None else context.real.long()
    return context.reader.read(context.ids.long(), questions, mask)


def check_length(model: nn.Module, held: int, more: int) -> None:
    """Question and answer fit the model's positions.

    Args:
        model: whose config says how far they reach.
        held: positions before them.
        more: tokens of theirs.

    Raises:
        InputError: they don't.
    """
    reach = models.positions(model)
    if reach is not None and held + more > reach:
        raise InputError(
            f"expected question and answer to fit the model's {reach} positions behind "
            f"{held} entries of memory, got {more} tokens; ask shorter, or read with less memory"
        )


def _check_bytes(context: Context, question: int, tokens: int, sampled: bool) -> None:
    if context.reader.settings.budget is None:
        return
    batch = 1 if context.ids is None else len(context.ids)
    bound = context.reader.bound(batch, context.questions)
    lengths = context.engine.lengths()
    need = bound.costs.answer(lengths, question, tokens, is_padded(context.engine), sampled)
    check_answer(bound, need, question, tokens)


class _Told:
    """Hands on the text of an answer as it grows, in whole characters."""

    def __init__(self, text: Callable[[list[int]], str], stream: Callable[[str], None]) -> None:
        self._text, self._stream, self._said = text, stream, 0

    def __call__(self, ids: list[int]) -> None:
        text = self._text(ids)
        # An unfinished character is shown as U+FFFD until its other bytes have come.
        if not text.endswith("\ufffd"):
            self._say(text)

    def finish(self, ids: list[int]) -> None:
        """Whatever has been held back."""
        self._say(self._text(ids))

    def _say(self, text: str) -> None:
        if len(text) > self._said:
            self._stream(text[self._said :])
            self._said = len(text)
