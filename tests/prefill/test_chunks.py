"""Chunk sizes: the paper's rule where it is feasible, the nearest feasible ones elsewhere."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InputError
from apportion.prefill.schedule import SCHEDULES, At, get_schedule
from apportion.prefill.schedule.chunks import decremental, feasible, fixed, largest
from fuzzing import examples


def memories(name: str, tokens: int, chunk: int, memory: int) -> list[int]:
    steps = math.ceil(tokens / chunk)
    return [get_schedule(name).size(At(t, steps), memory) for t in range(steps)]


def published(tokens: int, chunk: int, memory: list[int]) -> list[Fraction]:
    """c_0 = T // N, c_t = T // N + mean - m_{t-1}, the last takes the remainder."""
    steps = math.ceil(tokens / chunk)
    mean = Fraction(sum(memory[:-1]), steps - 1)
    rule = [Fraction(tokens // steps)]
    for t in range(1, steps - 1):
        rule.append(tokens // steps + mean - memory[t - 1])
    return [*rule, tokens - sum(rule)]


def test_fixed():
    assert fixed(10, 4) == [4, 4, 2]
    assert fixed(8, 4) == [4, 4]
    assert fixed(3, 4) == [3]
    assert fixed(1, 1) == [1]


def test_by_hand():
    # T = 4,000, c = 1,000, M = 400 linear: m = 100, 200, 300; their mean is 200.
    assert decremental(4000, 1000, [100, 200, 300, 400]) == [1000, 1100, 1000, 900]
    # The remainder of 3 goes to the last.
    assert decremental(4003, 1001, [100, 200, 300, 400]) == [1000, 1100, 1000, 903]
    assert decremental(700, 1000, [400]) == [700]


@pytest.mark.parametrize("memory", [31, 256, 512, 992, 1024])
def test_exact_where_it_is_feasible(memory):
    tokens, chunk = 32_768, 1024
    kept = memories("linear", tokens, chunk, memory)
    found = decremental(tokens, chunk, kept)
    rule = published(tokens, chunk, kept)
    assert min(rule) >= 256
    if all(x.denominator == 1 for x in rule):
        assert found == rule
    assert all(abs(x - y) < 1 for x, y in zip(found, rule, strict=True))
    # Chunk and memory together stay constant from the second on.
    together = [c + m for c, m in zip(found[1:], kept, strict=False)]
    assert max(together) - min(together) <= 1
    assert sum(found) == tokens


def test_below_zero_as_published():
    tokens, chunk, memory = 32_768, 1024, 4096
    kept = memories("linear", tokens, chunk, memory)
    rule = published(tokens, chunk, kept)
    # The figures that the facts name: -640 to -896 at the end.
    assert [int(x) for x in rule[-3:]] == [-640, -768, -896]
    found = decremental(tokens, chunk, kept)
    assert sum(found) == tokens
    assert len(found) == 32
    assert min(found) == 256
    # Those above the floor give the same amount, so chunk and memory are constant among them.
    above = [c + m for c, m in zip(found[1:], kept, strict=False) if c > 256]
    assert len(above) > 10
    assert max(above) - min(above) <= 1


def nearest(wishes: list[int], tokens: int, floor: int) -> int:
    """Least sum of squares of all whole chunks, by trying every one."""

    def search(t: int, left: int) -> float:
        if t == len(wishes) - 1:
            return (left - wishes[t]) ** 2 if left >= floor else math.inf
        return min(
            ((c - wishes[t]) ** 2 + search(t + 1, left - c) for c in range(floor, left + 1)),
            default=math.inf,
        )

    return int(search(0, tokens))


@pytest.mark.parametrize("floor", [1, 2, 3])
@pytest.mark.parametrize("wishes", [[4, 4, 4], [9, -3, 2], [12, 0, 0], [-5, 1, 7], [3, 3, -20]])
def test_feasible_is_nearest(wishes, floor):
    for tokens in range(3 * floor, 16):
        found = feasible(wishes, tokens, floor)
        distance = sum((c - w) ** 2 for c, w in zip(found, wishes, strict=True))
        assert distance == nearest(wishes, tokens, floor)
        assert sum(found) == tokens
        assert min(found) >= floor


def test_a_billion_tokens_sum_exactly():
    tokens, chunk = 1_000_000_007, 1_000_003
    found = decremental(tokens, chunk, memories("sqrt", tokens, chunk, 3_000_017))
    assert sum(found) == tokens


@pytest.mark.fuzz
@settings(max_examples=examples(1_000))
@given(
    tokens=st.integers(1, 50_000),
    chunk=st.integers(1, 6_000),
    memory=st.integers(1, 20_000),
    name=st.sampled_from(sorted(SCHEDULES)),
)
def test_any_triple_is_feasible(tokens, chunk, memory, name):
    chunk = max(chunk, tokens // 80)  # at most 80 steps, for the time this takes
    steps = math.ceil(tokens / chunk)
    kept = memories(name, tokens, chunk, memory)
    found = decremental(tokens, chunk, kept)
    floor = max(1, min(math.ceil(chunk / 4), tokens // steps))
    assert sum(found) == tokens
    assert len(found) == steps
    assert min(found) >= floor
    if steps > 1:
        rule = published(tokens, chunk, kept)
        if min(rule) >= floor:
            assert all(abs(x - y) < 1 for x, y in zip(found, rule, strict=True))
        # Where chunks are cut the others give; where none is, nobody does.
        assert all(c <= max(floor, math.ceil(w)) for c, w in zip(found, rule, strict=True))
    assert sum(fixed(tokens, chunk)) == tokens
    assert len(fixed(tokens, chunk)) == steps


def test_largest():
    for limit in range(12):
        asked = []

        def fits(size: int, limit: int = limit, asked: list[int] = asked) -> bool:
            asked.append(size)
            return size <= limit

        assert largest(fits, 10, 3) == min(10, max(3, limit))
        assert len(asked) <= 3
        assert largest(fits, 2, 3) == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fixed(0, 4), "got 0 tokens in chunks of 4"),
        (lambda: decremental(4, 0, [1]), "got 4 tokens in chunks of 0"),
        (lambda: decremental(40, 10, [1, 1]), "each of 4 chunks .40 tokens by 10., got 2 sizes"),
        (lambda: feasible([5, 5], 3, 2), "at least 2 tokens for each of 2 chunks, got 3"),
    ],
)
def test_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
