"""A text, a question about it, and the right answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from apportion.errors import InputError


@dataclass(frozen=True)
class Case:
    """One trial.

    Attributes:
        text: to be read.
        question: about it.
        answer: a word, number or phrase; right is what contains it (see `matches`).
        opening: how the answer begins; the model goes on from there. Models that answer in whole
            sentences, or hardly, are asked the same thing with it.
        task: cases of one task, length and depth share a row of the results.
        length: nominal, in tokens; None: as it is.
        depth: where the answer stands, 0 at the beginning of the text and 1 at its end; None:
            not known.
    """

    text: str
    question: str
    answer: str
    opening: str = ""
    task: str = "own"
    length: int | None = None
    depth: float | None = None

    def __post_init__(self) -> None:
        for name in ("text", "question", "answer"):
            if not getattr(self, name).strip():
                raise InputError(f"expected text, question and answer, got an empty {name}")


def cases_of(given: Iterable[object]) -> list[Case]:
    """Cases, also from bare triples (text, question, answer).

    Raises:
        InputError: none, or something else.
    """
    found: list[Case] = []
    for each in given:
        if isinstance(each, Case):
            found.append(each)
            continue
        parts: list[object] = list(each) if isinstance(each, tuple | list) else [each]
        words = [part for part in parts if isinstance(part, str)]
        if len(words) != 3 or len(parts) != 3:
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise InputError(
                f'expected cases or triples of strings, such as ("… the code is 81205 …", '
                f'"What is the code?", "81205"); got ({kinds})'
            )
        found.append(Case(words[0], words[1], words[2]))
    if not found:
        raise InputError("expected a case at least, got none")
    return found
