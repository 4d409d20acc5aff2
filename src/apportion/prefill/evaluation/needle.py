"""A sentence with a random number, hidden in real text.

After the pass key of Mohtashami & Jaggi, "Landmark Attention", NeurIPS 2023; here the text around
it is real, and what the number belongs to is drawn too, so that no two trials are alike.
"""

from __future__ import annotations

from random import Random

from apportion.prefill.evaluation.case import Case
from apportion.prefill.evaluation.haystack import Haystack

PLACES = (
    "Amsterdam", "Athens", "Bangkok", "Berlin", "Bogota", "Boston", "Brussels", "Cairo", "Chicago",
    "Dublin", "Geneva", "Hamburg", "Helsinki", "Istanbul", "Jakarta", "Kyoto", "Lagos", "Lima",
    "Lisbon", "London", "Madrid", "Montreal", "Moscow", "Mumbai", "Nairobi", "Oslo", "Paris",
    "Prague", "Rome", "Seattle", "Seoul", "Shanghai", "Stockholm", "Sydney", "Tokyo", "Toronto",
    "Venice", "Vienna", "Warsaw", "Zurich",
)  # fmt: skip


def needle(haystack: Haystack, length: int, depth: float, seed: int, digits: int = 5) -> Case:
    """One hidden number; the same arguments give the same case.

    Args:
        haystack: real text.
        length: of the context in tokens, the needle among them.
        depth: of the needle, 0 to 1.
        seed: which stretch of text, which place, which number.
        digits: of the number.

    Raises:
        InputError: less text than that.
    """
    random = Random(f"needle {length} {depth} {seed}")
    place = random.choice(PLACES)
    number = str(random.randrange(10 ** (digits - 1), 10**digits))
    sentence = f"The pass key of {place} is {number}. Remember it: {number}.\n"
    cut = haystack.anywhere(length - haystack.count(sentence), random)
    return Case(
        text=haystack.hide(cut, [(depth, sentence)]),
        question=f"What is the pass key of {place}?",
        answer=number,
        opening=f"The pass key of {place} is",
        task="needle",
        length=length,
        depth=depth,
    )
