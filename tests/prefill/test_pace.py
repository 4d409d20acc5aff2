"""Chunk sizes by a bound that is asked, beside those of the other rules."""

from __future__ import annotations

import pytest

from apportion.errors import InputError
from apportion.prefill.pace import STREAM, Pace, floor_of
from apportion.prefill.schedule import SCHEDULES, get_schedule


def run(pace: Pace, sinks: int = 0, most: int = 100_000) -> tuple[list[int], list[int]]:
    """Chunks, and what a layer holds after each."""
    chunks, held = [], [0]
    while pace.read < (pace.tokens if pace.tokens is not None else most):
        size = pace.next([held[-1]])
        chunks.append(size)
        held.append(min(held[-1] + size, sinks + pace.budgets(size)[0]))
    return chunks, held[1:]


def within(bound: int):
    """A bound on chunk and memory before it, in entries."""
    return lambda size, held, kept: size + max(held) <= bound


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_chunk_is_the_longest_that_fits(schedule):
    pace = Pace(get_schedule(schedule), "bytes", 200, 100, 1, 5000, fits=within(300))
    chunks, held = run(pace)
    assert sum(chunks) == 5000
    assert max(held) <= 200
    for size, before in zip(chunks[:-1], [0, *held], strict=False):
        assert size == 300 - before


def test_what_will_be_kept_counts_too():
    asked: list[tuple[int, int]] = []

    def fits(size, held, kept):
        asked.append((size, kept[0]))
        return size <= 150

    pace = Pace(get_schedule("linear"), "bytes", 500, 100, 1, 1000, fits=fits)
    assert pace.next([0]) == 150
    # What the linear schedule keeps of a text that is read so far, of a reference chunk at least.
    assert len(asked) > 5
    assert all(kept == max(50, min(500, size // 2)) for size, kept in asked)


def test_no_chunk_is_below_the_floor_while_there_is_room():
    pace = Pace(get_schedule("fixed"), "bytes", 60, 40, 1, 900, fits=within(75))
    chunks, _ = run(pace)
    assert floor_of(40) == 10
    assert min(chunks[:-1]) == 75 - 60
    assert chunks[0] == 75


def test_a_bound_is_kept_below_the_floor():
    pace = Pace(get_schedule("fixed"), "bytes", 60, 40, 1, 900, fits=within(64))
    chunks, held = run(pace)
    assert sum(chunks) == 900
    assert all(s + m <= 64 for s, m in zip(chunks, [0, *held], strict=False))
    assert 4 in chunks  # and the floor is 10
    # Where nothing fits there is still progress, for the caller to refuse.
    assert Pace(get_schedule("fixed"), "bytes", 9, 40, 1, 90, fits=within(0)).next([0]) == 1


def test_the_rest_of_a_text_is_one_chunk_if_it_fits():
    pace = Pace(get_schedule("linear"), "bytes", 10, 100, 1, 130, fits=within(1000))
    assert run(pace)[0] == [130]
    pace = Pace(get_schedule("linear"), "bytes", 10, 100, 1, 3, fits=within(1000))
    assert run(pace)[0] == [3]


def test_streams_are_paced_as_if_they_were_long():
    pace = Pace(get_schedule("linear"), "bytes", 100, 50, 1, None, fits=within(180))
    chunks, held = run(pace, most=2 * STREAM * 100)
    assert held[-1] == 100
    assert chunks[0] == 180
    assert min(chunks) >= 80
    assert held == sorted(held)


def test_what_was_kept_once_stays():
    pace = Pace(get_schedule("linear"), "bytes", 100, 50, 1, 400, fits=within(180), full=True)
    assert pace.next([100]) == 80
    assert pace.budgets(80) == [100]


@pytest.mark.parametrize("rule", ["fixed", "decremental"])
def test_other_rules_ask_for_no_bound(rule):
    def fits(size, held, kept):
        raise AssertionError("asked")

    chunks, _ = run(Pace(get_schedule("linear"), rule, 100, 50, 1, 430, fits=fits))
    assert sum(chunks) == 430


def test_another_rule_is_refused():
    with pytest.raises(InputError, match="expected chunks of fixed, decremental, bytes"):
        Pace(get_schedule("linear"), "largest", 100, 50, 1, 430)
