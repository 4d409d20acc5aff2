"""Real text cut to a length in tokens, in which something is hidden.

Sentences are the unit: what is hidden stands between two of them, and a cut ends with one. So a
text is as long as asked for to within a sentence.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import Any

from apportion.errors import InputError

# A sentence with the white space after it, a line that ends without a stop, or the rest.
_PIECE = re.compile(r".+?(?:[.!?][\"”’)]*\s+|\n\s*|\Z)", re.DOTALL)
WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*|\d+(?:[.,:]\d+)*")
"""A word of letters, with hyphens inside; or a number, with points and such inside."""


class Haystack:
    """A long text in sentences, with the tokens of each.

    Attributes:
        pieces: the sentences; joined they are the text.
        starts: tokens before each, and at last the tokens of all.
    """

    def __init__(self, text: str, tokenizer: Any) -> None:
        """Split and count.

        Args:
            text: real prose, longer than any context that will be cut from it.
            tokenizer: of the model.

        Raises:
            InputError: no text.
        """
        self.pieces: list[str] = _PIECE.findall(text.lstrip())
        if not self.pieces:
            raise InputError("expected a text, got an empty one")
        self._tokenizer = tokenizer
        ids = tokenizer(self.pieces, add_special_tokens=False)["input_ids"]
        self.starts = [0, *accumulate(map(len, ids))]

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each word stands in the text, in any case."""
        return Counter(found.casefold() for piece in self.pieces for found in WORD.findall(piece))

    def count(self, text: str) -> int:
        """Tokens of another text."""
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def cut(self, start: int, tokens: int) -> range:
        """Numbers of the sentences from `start` on that hold about so many tokens.

        Raises:
            InputError: there are not so many.
        """
        wanted = self.starts[start] + max(1, tokens)
        end = bisect_left(self.starts, wanted)
        if end == len(self.starts):
            raise InputError(
                f"expected a text of {tokens} tokens to cut a context from, got one of "
                f"{self.starts[-1] - self.starts[start]}; give a longer text or ask for less"
            )
        return range(start, end)

    def anywhere(self, tokens: int, random: Random) -> range:
        """A cut from a place that is drawn.

        Raises:
            InputError: the text has not so many tokens.
        """
        last = bisect_right(self.starts, self.starts[-1] - tokens) - 1
        return self.cut(random.randint(0, max(0, last)), tokens)

    def hide(self, cut: range, needles: Sequence[tuple[float, str]]) -> str:
        """The text of a cut with sentences put between its own.

        Args:
            cut: numbers of the sentences.
            needles: each with its depth, 0 before the first sentence and 1 after the last; those
                of one place in the order given.
        """
        first, whole = self.starts[cut.start], self.starts[cut.stop] - self.starts[cut.start]
        borders = self.starts[cut.start : cut.stop + 1]
        added: dict[int, list[str]] = {}
        for depth, needle in needles:
            place = _nearest(borders, first + depth * whole)
            added.setdefault(cut.start + place, []).append(needle)
        out: list[str] = []
        for number in range(cut.start, cut.stop + 1):
            for needle in added.get(number, ()):
                # Behind a sentence that ended the text, a blank is missing.
                gap = "" if not out or out[-1][-1].isspace() else " "
                out.append(gap + needle)
            if number < cut.stop:
                out.append(self.pieces[number])
        return "".join(out)


def _nearest(ascending: Sequence[int], wanted: float) -> int:
    """Place of the number nearest to another."""
    after = bisect_left(ascending, wanted)
    if after == 0 or after == len(ascending):
        return min(after, len(ascending) - 1)
    before = after - 1
    return before if wanted - ascending[before] <= ascending[after] - wanted else after
