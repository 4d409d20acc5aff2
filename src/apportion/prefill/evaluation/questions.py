"""Questions over a real document, with answers that can be checked, made from the document alone.

A sentence is drawn, and in it a word or number that the document uses a few times at most and the
context only there. Asked for is the sentence that begins with the words before it, which stand only
there too; right is what goes on with the word. Such a question has one right answer that general
knowledge hardly gives (what a model guesses is measured: it reads the last tokens alone beside it),
and the place it asks for looks like any other. What it does not need is reasoning.

After the cloze questions of Taylor, "Cloze Procedure", Journalism Quarterly 1953, and of Hermann et
al., "Teaching Machines to Read and Comprehend", NeurIPS 2015.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from random import Random

from apportion.errors import InputError
from apportion.prefill.evaluation.case import Case
from apportion.prefill.evaluation.haystack import WORD, Haystack

QUESTION = "Quote the sentence of the text that begins with the following words."
CUE = 8
"""Words of the sentence that are given, at least."""
LONGEST = 40
"""Words of a sentence, at most."""
SHORTEST = 5
"""Letters of an answer, at least; a number has two digits."""
RARE = 5
"""Uses of the answer in the whole document, at most: frequent words can be guessed."""


def cloze(haystack: Haystack, length: int, depth: float, seed: int) -> Case:
    """One question; the same arguments give the same case.

    Args:
        haystack: the document.
        length: of the context in tokens.
        depth: of the sentence asked for, 0 to 1.
        seed: which sentence.

    Raises:
        InputError: less text than that, or none of its sentences will do.
    """
    random = Random(f"cloze {length} {depth} {seed}")
    haystack.anywhere(length, Random(0))  # refuses a text that is too short
    numbers = list(range(len(haystack.pieces)))
    random.shuffle(numbers)
    for number in numbers:
        gaps = [
            (cue, answer)
            for cue, answer in _gaps(haystack.pieces[number])
            if haystack.uses[answer.casefold()] <= RARE
        ]
        cut = _around(haystack, number, length, depth) if gaps else None
        if cut is None:
            continue
        text = haystack.hide(cut, [])
        for cue, answer in gaps:
            if text.count(cue) == 1 and _occurrences(answer, text) == 1:
                return Case(
                    text=text,
                    # Were the words in the question too, models would quote it from there.
                    question=QUESTION,
                    answer=answer,
                    opening=f'"{cue}',
                    task="questions",
                    length=length,
                    depth=depth,
                )
    raise InputError(
        f"expected a document with sentences of {CUE} words or more before a word used once, "
        "found none"
    )


def _around(haystack: Haystack, number: int, length: int, depth: float) -> range | None:
    """A cut in which a sentence stands at a depth; None where the document ends too early."""
    before = depth * length
    first = haystack.starts[number] - before
    if first < 0 or first + length > haystack.starts[-1]:
        return None
    start = bisect_right(haystack.starts, first) - 1
    cut = haystack.cut(start, length)
    return cut if number in cut else None


def _gaps(sentence: str) -> Iterator[tuple[str, str]]:
    """Beginnings of a sentence, each with the word that comes next, the rarest kinds first."""
    words = list(WORD.finditer(sentence))
    if len(words) > LONGEST or not sentence.rstrip().endswith("."):
        return
    found: list[tuple[str, str]] = []
    for word in words[CUE:]:
        cue, answer = sentence[: word.start()], word.group()
        plain = cue.endswith(" ") and "\n" not in cue and '"' not in cue
        if plain and (len(answer) >= SHORTEST or (answer[0].isdigit() and len(answer) > 1)):
            found.append((cue.rstrip(), answer))
    # Numbers and names, which no grammar gives away, before other words; of those long ones first.
    yield from sorted(found, key=lambda gap: (gap[1].islower(), -len(gap[1])))


def _occurrences(answer: str, text: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE))
