"""Where tokens come from: a text, token ids, or a stream of pieces."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apportion.errors import InputError
from apportion.prefill.prompt import Prompt

if TYPE_CHECKING:
    from apportion.prefill.reader import Reader


_WORD_ENDS = re.compile(r"\w(?= \S)")
_HELD = 4096
"""Characters of a stream without spaces that are held at most."""


@dataclass(frozen=True)
class Part:
    """Some columns: ids (batch, tokens), and which are real; None: all."""

    ids: Tensor
    real: Tensor | None


class Source(ABC):
    """Hands out tokens in order.

    Attributes:
        tokens: in all; None for a stream.
        batch: samples.
        padded: whether there is padding.
        padding: columns at the beginning in which there is some.
    """

    tokens: int | None
    batch = 1
    padded = False
    padding = 0

    @abstractmethod
    def take(self, count: int) -> Part | None:
        """The next tokens, at most so many; None at the end."""


class _Ids(Source):
    def __init__(self, ids: Tensor, real: Tensor | None = None) -> None:
        self.ids, self.real, self.at = ids, real, 0
        (self.batch, self.tokens), self.padded = ids.shape, real is not None
        self.padding = 0 if real is None else int((~real).sum(dim=1).max())

    def take(self, count: int) -> Part | None:
        cut = slice(self.at, self.at + count)
        ids = self.ids[:, cut]
        self.at += ids.shape[1]
        real = None if self.real is None else self.real[:, cut]
        if real is not None and bool(real.all()):
            real = None
        return Part(ids, real) if ids.shape[1] else None


class _Stream(Source):
    """Pieces of text as they come; tokens are not torn apart at their ends.

    A piece is held until a space shows that its last word is over.
    """

    tokens = None

    def __init__(self, prompt: Prompt, pieces: Iterable[str], opening: list[int]) -> None:
        self.prompt, self.pieces = prompt, iter(pieces)
        self.ready, self.text, self.ended = opening, "", False
        self.empty = True

    def take(self, count: int) -> Part | None:
        while len(self.ready) < count and not self.ended:
            self._more()
        if self.empty and self.ended:
            return None
        ids, self.ready = self.ready[:count], self.ready[count:]
        return Part(torch.tensor([ids]), None) if ids else None

    def _more(self) -> None:
        piece = next(self.pieces, None)
        if piece is None:
            self.ended = True
            cut = len(self.text)
        else:
            self.text += piece
            cut = _between_tokens(self.text)
        if cut > 0:
            ids = self.prompt.context(self.text[:cut])
            self.ready, self.text = [*self.ready, *ids], self.text[cut:]
            self.empty = self.empty and not ids


def _between_tokens(text: str) -> int:
    """The last place where no tokenizer has a token on both sides; 0: not known yet.

    That is between a word and a single space before another. Line ends and runs of white space are
    joined with one another by some, and with what stands before them by others.
    """
    cut = max((found.end() for found in _WORD_ENDS.finditer(text)), default=0)
    if not cut and len(text) > _HELD:
        cut = text.rfind("\n") + 1 or len(text)
    return cut


def source_of(
    reader: Reader, text: str | Tensor | Iterable[str], mask: Tensor | None, opening: bool
) -> Source:
    """What a user gives, as a source.

    Args:
        reader: with its tokenizer.
        text: as for `Reader.read`.
        mask: of token ids.
        opening: whether the text is the first.

    Raises:
        InputError: empty, of other shapes, padded in the middle, or text without a tokenizer.
    """
    if isinstance(text, Tensor):
        return _of_ids(text, mask)
    if mask is not None:
        raise InputError("expected attention_mask with token ids, got it with text")
    prompt = reader.with_prompt()
    first = prompt.opening() if opening else []
    if not isinstance(text, str):
        return _Stream(prompt, _strings(text), first)
    ids = prompt.context(text)
    if not text.strip() or not ids:
        raise InputError("expected a text, got an empty one")
    return _Ids(torch.tensor([[*first, *ids]]))


def _strings(pieces: Iterable[object]) -> Iterator[str]:
    for piece in pieces:
        if not isinstance(piece, str):
            raise InputError(
                f"expected text, pieces of text, or token ids (batch, tokens); got pieces of "
                f"{type(piece).__name__}"
            )
        yield piece


def _of_ids(ids: Tensor, mask: Tensor | None) -> Source:
    if ids.ndim == 1:
        ids = ids[None]
        mask = None if mask is None else mask.reshape(1, -1)
    if ids.ndim != 2 or ids.is_floating_point():
        raise InputError(
            f"expected token ids (batch, tokens), whole numbers; got {tuple(ids.shape)} of "
            f"{ids.dtype}"
        )
    if not ids.shape[1] or not len(ids):
        raise InputError("expected a text, got an empty one")
    if mask is None:
        return _Ids(ids.long())
    if mask.shape != ids.shape:
        raise InputError(
            f"expected an attention mask as the ids, {tuple(ids.shape)}; got {tuple(mask.shape)}"
        )
    real = mask.to(ids.device) != 0
    counts = real.sum(dim=1)
    if bool((counts == 0).any()):
        raise InputError(
            f"expected real tokens in every sample, sample {int((counts == 0).nonzero()[0])} is "
            "all padding"
        )
    if bool(real.all()):
        return _Ids(ids.long())
    return _Ids(*_to_the_right(ids.long(), real))


def _to_the_right(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Padding moved before the tokens."""
    begins = real[:, 1:] & ~real[:, :-1]
    if bool((begins.sum(dim=1) + real[:, 0] > 1).any()):
        raise InputError("expected padding on the left or on the right, got some between tokens")
    turn = real.int().argsort(dim=1, stable=True)
    # Columns that are padding in all samples say nothing.
    empty = real.shape[1] - int(real.sum(dim=1).max())
    return ids.gather(1, turn)[:, empty:], real.gather(1, turn)[:, empty:]
