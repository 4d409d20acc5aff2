"""How long the chunks of a read are: a rule gives wishes, feasibility is by construction.

Fixed chunks are of one size. Decremental ones shrink as memory grows, so that chunk and memory
together stay constant (Zeng et al., EMNLP 2024): c_0 = T // N, c_t = T // N + mean(m) - m_{t-1},
and the last takes the remainder. As published the rule goes below zero once half the memory exceeds
a chunk (T = 32k, c = 1,024, M = 4,096 gives -640 to -896). Here the wishes are moved to the nearest
chunks that are feasible: none below a floor, and together T. Where no wish is below the floor the
rule is unchanged. All of it is calculated in fractions, so the sum is exact for any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from apportion.errors import InputError

# No chunk is shorter than this share of the reference size, while T allows it.
FLOOR_SHARE = Fraction(1, 4)


def fixed(tokens: int, chunk: int) -> list[int]:
    """Chunks of one size; the last takes what is left.

    Args:
        tokens: T.
        chunk: c.

    Raises:
        InputError: less than one token, or a chunk of less than one.
    """
    _check(tokens, chunk)
    whole, rest = divmod(tokens, chunk)
    return [chunk] * whole + ([rest] if rest else [])


def decremental(tokens: int, chunk: int, memory: Sequence[int]) -> list[int]:
    """Chunks that shrink as memory grows.

    Args:
        tokens: T.
        chunk: c, the reference size; there are N = ceil(T / c) chunks.
        memory: m_t after each of the N chunks, mean over the layers; the last is not used.

    Returns:
        N chunks, each at least a quarter of c (or T // N, if that is less), together T.

    Raises:
        InputError: less than one token, a chunk of less than one, or not N - 1 sizes at least.
    """
    _check(tokens, chunk)
    steps = -(-tokens // chunk)
    if len(memory) < steps - 1:
        raise InputError(
            f"expected the memory after each of {steps} chunks ({tokens} tokens by {chunk}), "
            f"got {len(memory)} sizes"
        )
    if steps == 1:
        return [tokens]
    each, rest = divmod(tokens, steps)
    mean = Fraction(sum(memory[: steps - 1]), steps - 1)
    wishes = [Fraction(each)]
    wishes += [each + mean - memory[t - 1] for t in range(1, steps)]
    wishes[-1] += rest
    floor = max(1, min(math.ceil(FLOOR_SHARE * chunk), each))
    return feasible(wishes, tokens, floor)


def feasible(wishes: Sequence[Fraction | int], tokens: int, floor: int) -> list[int]:
    """The whole numbers nearest to some wishes, none below `floor`, together `tokens`.

    Nearest in the sum of squares before rounding: every chunk above the floor gives or takes the
    same amount. What rounding leaves over goes to the largest fractions, the earliest first.

    Args:
        wishes: one a chunk.
        tokens: their sum to be.
        floor: of a chunk.

    Raises:
        InputError: not enough tokens for a floor's worth in every chunk.
    """
    if not wishes or tokens < floor * len(wishes):
        raise InputError(
            f"expected at least {floor} tokens for each of {len(wishes)} chunks, got {tokens}"
        )
    shift = _shift(wishes, tokens, floor)
    moved = [max(Fraction(floor), wish + shift) for wish in wishes]
    sizes = [math.floor(x) for x in moved]
    by_fraction = sorted(range(len(sizes)), key=lambda t: sizes[t] - moved[t])
    for t in by_fraction[: tokens - sum(sizes)]:
        sizes[t] += 1
    return sizes


def _shift(wishes: Sequence[Fraction | int], tokens: int, floor: int) -> Fraction:
    """What to add to every wish so that, cut at the floor, they sum to `tokens`."""
    # With the k largest above the floor the sum is linear in the shift. From all of them down, the
    # first k whose least still stands above the floor is right.
    ordered = sorted(wishes, reverse=True)
    left = Fraction(tokens) - sum(ordered)
    for count in range(len(ordered), 0, -1):
        shift = left / count
        if ordered[count - 1] + shift >= floor:
            return shift
        left += ordered[count - 1] - floor
    raise AssertionError("the largest wish takes what is left, and that is a floor at least")


def largest(fits: Callable[[int], bool], most: int, floor: int) -> int:
    """The longest chunk that fits, of `floor` to `most` tokens.

    Args:
        fits: whether a chunk of a length does; if one does, shorter ones do.
        most: tokens that are left.
        floor: the answer where nothing longer fits; it is not asked whether it does itself.

    Returns:
        The length; `most` where less than `floor` is left.
    """
    low, high = min(floor, most), most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _check(tokens: int, chunk: int) -> None:
    if tokens < 1 or chunk < 1:
        raise InputError(
            f"expected a token at least and chunks of one at least, got {tokens} tokens in chunks "
            f"of {chunk}"
        )
