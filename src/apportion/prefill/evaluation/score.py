"""When an answer is right, and how sure a share of right ones is."""

from __future__ import annotations

import re
from math import sqrt


def matches(said: str, answer: str) -> bool:
    """Whether the answer stands in what was said: as whole words, in any case and spacing.

    A number within a longer one is not the number.
    """
    wanted = r"\s+".join(re.escape(word) for word in answer.split())
    alone = rf"(?<!\w)(?<!\d[.,]){wanted}(?!\w)(?![.,]\d)"
    return re.search(alone, said, re.IGNORECASE) is not None


def wilson(correct: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share, of 95 % at the default `z`.

    Unlike the normal one it stays within 0 and 1 and says something of 0 or all out of few.
    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 1927.

    Args:
        correct: out of `trials`.
        trials: one at least.
        z: of the normal distribution.
    """
    share, spread = correct / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / trials + spread / (4 * trials))
    # Rounding must not take the end past a share of exactly 0 or 1.
    low = 0.0 if correct == 0 else middle - half
    return low, 1.0 if correct == trials else middle + half
