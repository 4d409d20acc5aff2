"""The layout keeps the effects apart; written plans are checked."""

import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError
from apportion.mixture.design import design
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
    for bad in ("9.9M", "7B", "16x1x2", "ax1x2x8", "-1x1x1x1"):
        with pytest.raises(InputError, match=r"expected one of 0.05M.* such as 128x3x4x352$"):
            parse_shape(bad)
    for bad, words in (("15x1x2x8", "heads times an even"), ("0x1x1x1", "positive sizes")):
        with pytest.raises(InputError, match=words):
            parse_shape(bad)


ROW = {"run": "x", "shape": "0.05M", "tokens": 1e5, "seed": 0, "ratio_a": 0.25, "ratio_b": 0.75}


def write_plan(path: Path, rows: list[dict[str, object]]) -> Path:
    if path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
        return path
    nested = [
        {k: v for k, v in row.items() if not k.startswith("ratio_")}
        | {"ratios": {k.removeprefix("ratio_"): v for k, v in row.items() if "ratio_" in k}}
        for row in rows
    ]
    path.write_text(json.dumps(nested))
    return path


@pytest.mark.parametrize("name", ["plan.csv", "plan.json"])
def test_csv_and_json_plans_read_alike(tmp_path: Path, name: str) -> None:
    rows = [ROW | {"run": "one", "seed": 3}, ROW | {"tokens": "20k", "note": "passed over"}]
    ratios = {"a": 0.25, "b": 0.75}
    assert read_plan(write_plan(tmp_path / name, rows)) == [
        PlannedRun("one", "0.05M", 100_000, 3, ratios),
        PlannedRun("x", "0.05M", 20_000, 0, ratios),
    ]
    bare = {key: ROW[key] for key in ("shape", "tokens", "ratio_a", "ratio_b")}
    found = read_plan(write_plan(tmp_path / name, [bare, bare | {"tokens": "1.5M"}]))
    assert [(run.run, run.tokens, run.seed) for run in found] == [
        ("0.05M-100000-1", 100_000, 0),
        ("0.05M-1500000-2", 1_500_000, 0),
    ]


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"ratio_a": 0.5}, " (run 'x')", "a=0.5, b=0.75 sum to 1.25"),
        ({"ratio_a": -0.25, "ratio_b": 1.25}, ", column ratio_a", "the negative value -0.25"),
        ({"ratio_a": None}, ", column ratio_a", "the cell is empty"),
        ({"ratio_b": "much"}, ", column ratio_b", "found 'much'"),
        ({"shape": "huge"}, " (run 'x'), column shape", "model shape 'huge'"),
        ({"tokens": "0"}, ", column tokens", "found '0'"),
        ({"tokens": "many"}, ", column tokens", "found 'many'"),
        ({"tokens": None}, ", column tokens", "the cell is empty"),
        ({"tokens": "3e18"}, ", column tokens", "found '3e18'"),
        ({"tokens": 4000}, " (run 'x'), column tokens", "(a tenth of the parameters of 0.05M)"),
        ({"seed": -1}, " (run 'x'), column seed", "from 0 up, got -1"),
        ({"seed": 0.5}, ", column seed", "found '0.5'"),
        ({"run": "one"}, " (run 'one')", "has the name of"),
    ],
)
def test_a_bad_run_is_named_by_line_and_column(
    tmp_path: Path, change: dict[str, object], place: str, words: str
) -> None:
    rows = [ROW | {"run": "one"}, ROW | change]
    for name, where in (("plan.csv", "line 3"), ("plan.json", "run 2")):
        path = write_plan(tmp_path / name, rows)
        with pytest.raises(InputError) as caught:
            read_plan(path)
        assert f"{path}, {where}{place}" in str(caught.value)
        assert words in str(caught.value)


def test_a_design_is_a_plan(tmp_path: Path) -> None:
    sizes = {name: float(parse_shape(name).params) for name in ("0.05M", "0.2M")}
    plan = design(1e13, sizes, [250_000, 500_000], families=["a", "b"], max_runs=6)
    plan.to_csv(tmp_path / "plan.csv", index=False)
    runs = read_plan(tmp_path / "plan.csv")
    assert [run.run for run in runs] == plan["run"].tolist()
    assert [(run.shape, run.tokens) for run in runs] == list(
        zip(plan["shape"], plan["tokens"], strict=True)
    )


def test_empty_missing_and_doubled_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no runs"):
        check_plan([])
    with pytest.raises(InputError, match=r"cannot read .*missing\.csv"):
        read_plan(tmp_path / "missing.csv")
    (tmp_path / "empty.csv").write_text("run,shape,tokens,ratio_a\n")
    with pytest.raises(InputError, match=r"empty\.csv has a header but no rows"):
        read_plan(tmp_path / "empty.csv")
    (tmp_path / "short.csv").write_text("run,tokens\nx,5k\n")
    with pytest.raises(InputError, match=r"no column shape.*\n.*no column ratio_<family>"):
        read_plan(tmp_path / "short.csv")
    (tmp_path / "short.json").write_text('[{"tokens": 5}]')
    with pytest.raises(InputError, match=r'short\.json, run 1: expected "ratios" as an object'):
        read_plan(tmp_path / "short.json")
    for content in ("[]", "{}", "[3]"):
        (tmp_path / "none.json").write_text(content)
        with pytest.raises(InputError, match=r"none\.json: expected a list of runs"):
            read_plan(tmp_path / "none.json")
    run = PlannedRun("x", "0.05M", 100_000, 0, {"a": 1.0})
    with pytest.raises(InputError, match="run 'x' has the name of run 'x'"):
        check_plan([run, run])
    with pytest.raises(InputError, match="run 'y': the families b differ from those of run 'x'"):
        check_plan([run, PlannedRun("y", "0.05M", 100_000, 0, {"b": 1.0})])
