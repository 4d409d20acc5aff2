"""Every schedule against the paper's formula, in exact fractions and by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import pytest

from apportion.errors import InputError
from apportion.prefill.schedule import SCHEDULES, At, Schedule, get_schedule
from apportion.prefill.schedule.fixed import Fixed


def sizes(name: str, steps: int, memory: int, layer: int = 0, layers: int = 1) -> list[int]:
    schedule = get_schedule(name)
    return [schedule.size(At(t, steps, layer, layers), memory) for t in range(steps)]


def least_one(exact: Fraction, memory: int) -> int:
    return min(memory, max(1, math.floor(exact)))


def formula(name: str, t: int, n: int, m: int) -> Fraction:
    """m_t before the last step, without rounding."""
    a = Fraction(m, n)
    return {
        "fixed": lambda: Fraction(m),
        "linear": lambda: a * (t + 1),
        "square": lambda: Fraction(t**2, (n - 1) ** 2) * (m - a) + a,
        "inverse-convex": lambda: Fraction(m, n - t),
        "inverse-concave": lambda: m + a - Fraction(m, t + 1),
    }[name]()


def square_root(t: int, n: int, m: int) -> int:
    """floor of t^(1/2) (M - a) / (N - 1)^(1/2) + a in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        a = Decimal(m) / n
        value = (Decimal(t) / (n - 1)).sqrt() * (m - a) + a
        # A whole number may come out as 9.99…: 50 digits are more than it can differ by otherwise.
        return int((value + Decimal(10) ** -50).to_integral_value(ROUND_FLOOR))


GRID = [(n, m) for n in (2, 3, 4, 7, 16, 49, 257) for m in (1, 2, 5, 49, 100, 1024, 8192, 100_003)]


@pytest.mark.parametrize("name", ["fixed", "linear", "square", "inverse-convex", "inverse-concave"])
def test_formula(name):
    for n, m in GRID:
        expected = [least_one(formula(name, t, n, m), m) for t in range(n - 1)]
        assert sizes(name, n, m) == [*expected, m], (n, m)


def test_square_root():
    for n, m in GRID:
        expected = [min(m, max(1, square_root(t, n, m))) for t in range(n - 1)]
        assert sizes("sqrt", n, m) == [*expected, m], (n, m)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # N = 5, M = 100, so a = 20.
        ("fixed", [100, 100, 100, 100, 100]),
        ("linear", [20, 40, 60, 80, 100]),
        ("square", [20, 25, 40, 65, 100]),  # 80 t^2 / 16 + 20
        ("sqrt", [20, 60, 76, 89, 100]),  # 40 sqrt(t) + 20
        ("inverse-convex", [20, 25, 33, 50, 100]),
        ("inverse-concave", [20, 70, 86, 95, 100]),
    ],
)
def test_by_hand(name, expected):
    assert sizes(name, 5, 100) == expected


def test_more_chunks_than_entries():
    # The released code has a = 4 // 9 = 0 here, and nothing kept until the last step.
    assert sizes("linear", 9, 4) == [1, 1, 1, 1, 2, 2, 3, 3, 4]
    assert sizes("inverse-convex", 9, 4) == [1, 1, 1, 1, 1, 1, 1, 2, 4]


def test_floats_cost_no_entry():
    # (t + 1) / N * M is whole at every step.
    for n in range(2, 300):
        assert sizes("linear", n, 7 * n) == [7 * (t + 1) for t in range(n)]


def test_one_chunk_keeps_the_final_memory():
    for name in SCHEDULES:
        assert sizes(name, 1, 64) == [64]


@pytest.mark.parametrize(
    ("name", "below", "above"),
    [
        ("layerwise-power", "square", "sqrt"),
        ("layerwise-inverse", "inverse-convex", "inverse-concave"),
    ],
)
def test_layerwise(name, below, above):
    for layer in range(6):
        half = below if layer < 3 else above
        assert sizes(name, 12, 500, layer, 6) == sizes(half, 12, 500)
    assert [sizes(name, 12, 500, k, 3) == sizes(below, 12, 500) for k in range(3)] == [
        True, True, False,
    ]  # fmt: skip


def test_adaptive():
    retention, n, m = (0.9, 0.5, 0.1, 0.5), 10, 1000
    schedule = get_schedule("adaptive")
    for layer, own in enumerate(retention):
        softmax = math.exp(own) / sum(math.exp(r) for r in retention)
        for t in range(n):
            expected = min(1000, math.floor((t + 1) * 100 * 4 * softmax))
            if t < 2:
                expected = 100 * (t + 1)
            if t == n - 1:
                expected = 1000
            assert schedule.size(At(t, n, layer, 4, retention), m) == expected
    # By hand: layer 0 has exp(.4) / (exp(.4) + exp(-.4) + 2) = .358; 400 · 4 · .358 = 573.
    assert schedule.size(At(3, n, 0, 4, retention), m) == 573
    assert schedule.size(At(7, n, 0, 4, retention), m) == 1000


def test_adaptive_is_linear_where_the_layers_are_alike():
    schedule = get_schedule("adaptive")
    for t in range(8):
        assert schedule.size(At(t, 8, 1, 3, (0.4, 0.4, 0.4)), 80) == 10 * (t + 1)
        assert schedule.size(At(t, 8), 80) == 10 * (t + 1)


def test_a_step_between_two():
    # Three and a half chunks of five are read.
    assert get_schedule("linear").size(At(2.5, 5), 100) == 70
    assert not At(3.9, 5).last
    assert At(4, 5).last


def test_a_schedule_by_name_by_object_and_of_ones_own():
    class Half(Schedule):
        name = "half"

        def share(self, at: At) -> float:
            return 0.5

    own = Half()
    assert get_schedule(own) is own
    assert [own.size(At(t, 3), 101) for t in range(3)] == [50, 50, 101]
    assert isinstance(get_schedule("fixed"), Fixed)
    with pytest.raises(InputError, match=r"expected a schedule of 'fixed', 'linear'.*got 'cubic'"):
        get_schedule("cubic")


def test_import_loads_no_torch():
    code = "import sys, apportion.prefill.schedule; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
