"""The layout keeps the effects apart; written plans are checked."""

import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError
from apportion.mixture.sweep.plan import (
    PlannedRun,
    check_plan,
    default_plan,
    ladder,
    parse_shape,
    read_plan,
    square,
)

FAMILIES = ["a", "b", "c", "d", "e"]


def test_the_ladder_spans_what_it_says() -> None:
    rungs = ladder(5, 17)
    assert rungs.sum() == pytest.approx(1)
    assert rungs[-1] / rungs[0] == pytest.approx(17)


def test_squares_pair_every_rung_with_every_other_rung_once() -> None:
    mixtures = np.concatenate([square(5, k, 17) for k in range(1, 5)])
    for i, j in itertools.permutations(range(5), 2):
        pairs = Counter((round(row[i], 6), round(row[j], 6)) for row in mixtures)
        assert len(pairs) == 20
        assert set(pairs.values()) == {1}
    with pytest.raises(InputError, match="coprime"):
        square(4, 2, 17)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_every_cell_has_every_family_on_every_rung(count: int) -> None:
    families = FAMILIES[:count] if count < 6 else [*FAMILIES, "f"]
    runs = default_plan(families)
    check_plan(runs)
    cells: dict[tuple[str, int], list[PlannedRun]] = defaultdict(list)
    for run in runs:
        cells[run.shape, run.tokens].append(run)
    assert len(cells) == 9
    for cell in cells.values():
        for family in families:
            assert {round(x, 6) for x in ladder(count, 17)} <= {
                round(run.ratios[family], 6) for run in cell
            }


def test_five_families_get_sixty_runs_and_six_repeats_and_a_wide_span() -> None:
    runs = default_plan(FAMILIES)
    mixtures = Counter((run.shape, run.tokens, tuple(run.ratios.values())) for run in runs)
    assert len(mixtures) >= 60
    assert sum(times - 1 for times in mixtures.values()) == 6
    ratios = np.array([list(run.ratios.values()) for run in runs])
    assert ratios.min() > 0.03
    assert ratios.max() == pytest.approx(0.7)


def test_one_family_is_no_mixture() -> None:
    with pytest.raises(InputError, match="at least two"):
        default_plan(["a"])


def test_shapes_are_named_or_spelt_out() -> None:
    assert parse_shape("16x1x2x24").params == 16 * (4 * 16 + 3 * 24 + 2) + 16
    for bad in ("9.9M", "16x1x2", "15x1x2x8", "ax1x2x8"):
        with pytest.raises(InputError, match=r"expected one of 0.05M"):
            parse_shape(bad)


def test_csv_and_json_plans_read_alike(tmp_path: Path) -> None:
    rows = [
        {"run": "one", "shape": "0.05M", "tokens": 1e5, "seed": 3, "ratio_a": 0.25, "ratio_b": 0.75}
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "plan.csv", index=False)
    ratios = {"a": 0.25, "b": 0.75}
    json_row = {"run": "one", "shape": "0.05M", "tokens": 1e5, "seed": 3, "ratios": ratios}
    (tmp_path / "plan.json").write_text(json.dumps([json_row]))
    expected = [PlannedRun("one", "0.05M", 100_000, 3, ratios)]
    assert read_plan(tmp_path / "plan.csv") == expected
    assert read_plan(tmp_path / "plan.json") == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ratio_a": 0.5}, "sum to 1.25"),
        ({"ratio_a": -0.25, "ratio_b": 1.25}, "not negative"),
        ({"ratio_a": float("nan")}, "finite"),
        ({"shape": "huge"}, "model shape 'huge'"),
        ({"tokens": 0}, "tokens of at least 1"),
        ({"tokens": "many"}, "expected numbers"),
        ({"seed": -1}, "seed from 0 up"),
    ],
)
def test_bad_plans_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    row = {"run": "x", "shape": "0.05M", "tokens": 1e5, "seed": 0, "ratio_a": 0.25, "ratio_b": 0.75}
    pd.DataFrame([row | change]).to_csv(tmp_path / "plan.csv", index=False)
    with pytest.raises(InputError, match=words):
        read_plan(tmp_path / "plan.csv")


def test_empty_missing_and_doubled_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no runs"):
        check_plan([])
    with pytest.raises(InputError, match="expected a plan"):
        read_plan(tmp_path / "missing.csv")
    (tmp_path / "short.json").write_text('[{"tokens": 5}]')
    with pytest.raises(InputError, match="run 1: missing ratios, shape"):
        read_plan(tmp_path / "short.json")
    run = PlannedRun("x", "0.05M", 100, 0, {"a": 1.0})
    with pytest.raises(InputError, match="in the plan twice"):
        check_plan([run, run])
    with pytest.raises(InputError, match="differ from those of run x"):
        check_plan([run, PlannedRun("y", "0.05M", 100, 0, {"b": 1.0})])
