"""One set of properties over every memory schedule, those to come included."""

from __future__ import annotations

import pytest

from apportion.prefill.schedule import SCHEDULES, At

NAMES = sorted(SCHEDULES)
READS = [(1, 5), (2, 1), (2, 1000), (3, 2), (7, 100), (50, 4), (64, 2048), (1000, 8192)]


def sizes(name: str, steps: int, memory: int, layer: int, layers: int) -> list[int]:
    alike = (0.5,) * layers
    points = [At(t, steps, layer, layers, alike) for t in range(steps)]
    return [SCHEDULES[name]().size(at, memory) for at in points]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("steps", "memory"), READS)
def test_from_one_up_to_the_final_memory_and_never_down(name, steps, memory):
    for layer in range(4):
        found = sizes(name, steps, memory, layer, 4)
        assert found[-1] == memory
        assert min(found) >= 1
        assert found == sorted(found)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fixed"])
@pytest.mark.parametrize(("steps", "memory"), READS)
def test_incremental_ones_begin_with_an_equal_share(name, steps, memory):
    for layer in range(4):
        assert sizes(name, steps, memory, layer, 4)[0] == (
            memory if steps == 1 else max(1, memory // steps)
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("steps", "memory"), [(7, 100), (50, 4), (64, 2048)])
def test_steps_between_lie_between(name, steps, memory):
    schedule = SCHEDULES[name]()
    for layer in range(4):
        whole = sizes(name, steps, memory, layer, 4)
        for t in range(steps - 1):
            between = schedule.size(At(t + 0.5, steps, layer, 4, (0.5,) * 4), memory)
            assert whole[t] <= between <= whole[t + 1]


@pytest.mark.parametrize("name", NAMES)
def test_twice_the_memory_is_twice_as_much_at_every_step(name):
    for layer in range(4):
        once, twice = sizes(name, 40, 1000, layer, 4), sizes(name, 40, 2000, layer, 4)
        assert all(2 * a <= b <= 2 * a + 1 for a, b in zip(once, twice, strict=True))


@pytest.mark.parametrize("name", [name for name in NAMES if SCHEDULES[name].looks_back])
def test_layers_that_hold_on_get_more(name):
    schedule, retention = SCHEDULES[name](), (0.1, 0.3, 0.8)
    for t in range(2, 9):
        found = [schedule.size(At(t, 10, k, 3, retention), 3000) for k in range(3)]
        assert found == sorted(found)
        assert all(1 <= size <= 3000 for size in found)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_named_and_has_a_source(name):
    assert SCHEDULES[name].name == name
    assert SCHEDULES[name].paper
    assert SCHEDULES[name].__doc__
