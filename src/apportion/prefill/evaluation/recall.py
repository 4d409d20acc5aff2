"""Lines "key: value" within real text, of which one is asked for.

The other pairs look like the right one, so an answer needs the key and not only something that
stands out. After the line retrieval of Li et al. ("LongChat", 2023) and the key-value pairs of Liu
et al., "Lost in the Middle", TACL 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from apportion.errors import InputError
from apportion.prefill.evaluation.case import Case
from apportion.prefill.evaluation.haystack import Haystack

KEYS = (
    "anchor", "apple", "arrow", "basket", "bottle", "bridge", "butter", "camera", "candle",
    "carpet", "cherry", "circle", "coffee", "copper", "cotton", "desert", "dragon", "engine",
    "feather", "flower", "forest", "garden", "guitar", "hammer", "harbor", "helmet", "island",
    "jacket", "kitchen", "ladder", "lemon", "lantern", "marble", "meadow", "mirror", "monkey",
    "needle", "orange", "oyster", "paddle", "palace", "pencil", "pepper", "piano", "pillow",
    "planet", "pocket", "potato", "rabbit", "ribbon", "rocket", "saddle", "salmon", "school",
    "shadow", "silver", "spider", "spoon", "stable", "summer", "temple", "thunder", "ticket",
    "tiger", "tomato", "tunnel", "turtle", "valley", "velvet", "violin", "walnut", "window",
)  # fmt: skip


def recall(
    haystack: Haystack, length: int, depth: float, seed: int, pairs: int = 8, digits: int = 5
) -> list[Case]:
    """One text with several pairs; the same arguments give the same cases.

    Args:
        haystack: real text.
        length: of the context in tokens, the lines among them.
        depth: of the first case's line, 0 to 1; the others are spread evenly.
        seed: which stretch of text, which keys and values.
        pairs: how many.
        digits: of a value.

    Returns:
        A case for each pair. They share their text.

    Raises:
        InputError: less text than that, or more pairs than there are keys.
    """
    if not 1 <= pairs <= len(KEYS):
        raise InputError(f"expected 1 to {len(KEYS)} pairs, got pairs={pairs}")
    random = Random(f"recall {length} {depth} {seed} {pairs}")
    keys = random.sample(KEYS, pairs)
    values = [str(random.randrange(10 ** (digits - 1), 10**digits)) for _ in keys]
    depths = _spread(depth, pairs)
    lines = [f"\n{key}: {value}\n\n" for key, value in zip(keys, values, strict=True)]
    cut = haystack.anywhere(length - sum(map(haystack.count, lines)), random)
    text = haystack.hide(cut, list(zip(depths, lines, strict=True)))
    return [
        Case(
            text=text,
            question=f'What number stands behind "{key}:" in the text?',
            answer=value,
            opening=f"{key}:",
            task="recall",
            length=length,
            depth=round(at, 3),
        )
        for key, value, at in zip(keys, values, depths, strict=True)
    ]


def _spread(depth: float, pairs: int) -> Sequence[float]:
    """Evenly spread depths, the one nearest to `depth` moved there and put first."""
    even = [(k + 0.5) / pairs for k in range(pairs)]
    nearest = min(range(pairs), key=lambda k: abs(even[k] - depth))
    return [depth, *(at for k, at in enumerate(even) if k != nearest)]
