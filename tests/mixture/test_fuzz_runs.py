"""Damaged run tables: each is a clear InputError or a valid table, never anything else."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InputError, InputWarning
from apportion.mixture.read import ModelShape, read_runs
from apportion.mixture.runs import RunTable
from fuzzing import examples

HEADER = ["run", "params", "tokens", "seed", "step", "note"]
HEADER += [f"{p}_{f}" for p in ("ratio", "loss", "bytes_per_token") for f in ("romance", "indic")]
RATIOS = [(0.1 * k + 0.1, 0.9 - 0.1 * k) for k in range(8)]
ROWS = [
    [f"r{k}", 85e6 * (1 + k // 4), 4e9, k, 1000, f"n{k}", p, q, 3 - p, 4 - q, 4.0, 7.5]
    for k, (p, q) in enumerate(RATIOS)
]
STRANGE: list[Any] = [
    "", " ", "nan", "NaN", "inf", "-inf", "-1", "0", "1", "-0.0", "1e400", "1e-400", "5e-324",
    "1_000", "1,000", "0,5", "50%", "85M", "١٢", "½", "0x10", "1e3", "TRUE", "None", "é", "\u202e",
    "\ufeff", '"', '""', "'", "a,b", "a\nb", "\r", "\x0b", "=1+1", "9" * 400, "r0", "x" * 200,
    "1000", "2.5", "0.1", "100", "1e18", "-5e9", "3.0", "9223372036854775808", "#", ";", "\t",
]  # fmt: skip
NAMES = [
    *HEADER, "", " ", "ratio_", "loss_", "Run", "RUN ", "ratio_slavic", "loss_slavic", "ratios",
    "bytes_per_token_slavic", "run;params", "a,b", "\ufeffrun", "x\ny", "index", "run_id",
    "train_x", "metric/x_val_loss", "__index_level_0__", "params_file", "total_params", "é",
]  # fmt: skip
TYPED: list[Any] = [
    None, True, 0, -1, 1, 2**62, 2**63 - 1, 0.5, -0.0, float("nan"), float("inf"), 1e308, 5e-324,
    "abc", "", "0.5", b"\xff", [1], {"a": 1},
]  # fmt: skip

Grid = list[list[Any]]


def check_invariants(table: RunTable) -> None:
    runs, families, targets = len(table), len(table.families), len(table.targets)
    assert runs > 0
    assert families > 0
    assert 0 < targets <= families
    assert set(table.targets) <= set(table.families)
    assert len(set(table.run)) == runs
    assert all(name and name.isprintable() for name in (*table.run, *table.families))
    for block, shape in (
        (table.params, (runs,)),
        (table.tokens, (runs,)),
        (table.losses, (runs, targets)),
        (table.ratios, (runs, families)),
    ):
        assert block.shape == shape
        assert np.isfinite(block).all()
        assert (block >= 0).all()
    assert (table.params > 0).all()
    assert (table.tokens >= table.params / 10).all()
    assert (table.losses > 0).all()
    np.testing.assert_allclose(table.ratios.sum(axis=1), 1, rtol=0, atol=1e-12)
    if table.bytes_per_token is not None:
        assert (np.isfinite(table.bytes_per_token) & (table.bytes_per_token > 0)).all()
    if table.seed is not None:
        assert table.seed.shape == (runs,)
    assert table.extra is None or len(table.extra) == runs
    # What was read can be shown and handled.
    assert str(runs) in str(table)
    frame = table.to_frame()
    assert frame.columns.is_unique
    table.take([0]).conditions(table.targets[0])


def outcome(*paths: Path, **options: Any) -> str:
    """Read; the result is a valid table, or an InputError that says something."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", InputWarning)
            table = read_runs(*paths, **options)
    except InputError as error:
        message = str(error)
        assert len(message) > 20
        assert "Traceback" not in message
        return message
    check_invariants(table)
    return "valid"


def csv_bytes(grid: Grid, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(grid)
    return buffer.getvalue().encode("utf-8", errors="surrogatepass")


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """The sound table with one to three edits of cells, rows, columns or the header."""
    grid: Grid = [list(HEADER), *[list(row) for row in ROWS]]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        row = draw(st.integers(0, len(grid) - 1))
        column = draw(st.integers(0, len(grid[0]) - 1)) if grid[0] else 0
        edit = draw(st.sampled_from(EDITS))
        edit(draw, grid, row, column)
        if len(grid) < 2 or not grid[0]:
            break
    return grid


def _edit_cell(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    value = draw(
        st.one_of(st.sampled_from(STRANGE), st.floats(width=64), st.text(max_size=6), st.integers())
    )
    if column < len(grid[row]):
        grid[row][column] = value


def _rename(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    grid[0][column] = draw(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)))


def _drop_column(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    for cells in grid:
        del cells[column : column + 1]


def _repeat_column(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    for cells in grid:
        cells += cells[column : column + 1]


def _swap_columns(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    for cells in grid:
        if len(cells) > column:
            cells[0], cells[column] = cells[column], cells[0]


def _drop_row(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    del grid[row]


def _repeat_row(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    grid.append(list(grid[row]))
    if draw(st.booleans()) and len(grid[-1]) > 4:
        grid[-1][4] = draw(st.integers(0, 2000))


def _shorten(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    del grid[row][column:]


def _scale(draw: st.DrawFn, grid: Grid, row: int, column: int) -> None:
    factor = draw(st.sampled_from([1e-9, 1e-6, 0.5, 1.0005, 1.01, 100.0, -1.0, 1e9]))
    for cells in grid[1:]:
        if column < len(cells) and isinstance(cells[column], float):
            cells[column] *= factor


EDITS: list[Callable[[st.DrawFn, Grid, int, int], None]] = [
    _edit_cell, _edit_cell, _edit_cell, _rename, _drop_column, _repeat_column, _swap_columns,
    _drop_row, _repeat_row, _shorten, _scale,
]  # fmt: skip

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "format": st.sampled_from(["auto", "own", "regmix", "olmix"]),
        "last_step": st.booleans(),
        "allow_unmeasured": st.booleans(),
        "params_column": st.sampled_from(["params", "tokens", "note", "absent"]),
        "params": st.sampled_from([1e6, "1M"]),
        "shape": st.sampled_from(
            [ModelShape(1000, 64), ModelShape("step", "seed", False), ModelShape(1, "absent")]
        ),
    },
)


def test_the_sound_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(csv_bytes([HEADER, *ROWS]))
    table = read_runs(path)
    check_invariants(table)
    assert table.families == ("romance", "indic")
    assert table.bytes_per_token is not None


@st.composite
def edited_cells(draw: st.DrawFn) -> Grid:
    """The sound table with one or two numbers replaced or nudged, and all else in order."""
    grid: Grid = [list(HEADER), *[list(row) for row in ROWS]]
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        row = grid[draw(st.integers(1, len(ROWS)))]
        column = draw(st.integers(0, len(HEADER) - 1))
        kind = draw(st.sampled_from(["strange", "strange", "number", "nudge ratios"]))
        if kind == "strange":
            row[column] = draw(st.sampled_from(STRANGE))
        elif kind == "number":
            row[column] = draw(st.one_of(st.floats(), st.integers()))
        else:
            factor = draw(st.floats(0.9985, 1.0015))
            row[6:8] = [float(cell) * factor if _is_float(cell) else cell for cell in row[6:8]]
    return grid


def _is_float(cell: Any) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.fuzz
@settings(max_examples=examples(200))
@given(grid=edited_cells())
def test_damaged_cells(tmp_path_factory: pytest.TempPathFactory, grid: Grid) -> None:
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    path.write_bytes(csv_bytes(grid))
    outcome(path)


@pytest.mark.fuzz
@settings(max_examples=examples(100))
@given(
    grid=grids(),
    options=st.one_of(st.just({}), OPTIONS),
    delimiter=st.sampled_from([*[","] * 9, ";", "\t", "|"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_damaged_columns_rows_and_headers(
    tmp_path_factory: pytest.TempPathFactory,
    grid: Grid,
    options: dict[str, Any],
    delimiter: str,
    quoting: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    path.write_bytes(csv_bytes(grid, delimiter, quoting))
    outcome(path, **options)


@st.composite
def damaged_bytes(draw: st.DrawFn, sound: bytes) -> bytes:
    data = bytearray(sound)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        at = draw(st.integers(0, len(data)))
        kind = draw(
            st.sampled_from(["set", "set", "set", "set", "insert", "delete", "cut", "repeat"])
        )
        if kind == "set" and at < len(data):
            # Bytes that mean something to the format do more than others.
            data[at] = draw(st.one_of(st.sampled_from(b'",;\n\r\t.-e0\0\xff'), st.integers(0, 255)))
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "cut":
            del data[at:]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
    return bytes(data)


def parquet_bytes() -> bytes:
    columns = {name: [row[k] for row in ROWS] for k, name in enumerate(HEADER)}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@pytest.mark.fuzz
@settings(max_examples=examples(100))
@given(data=damaged_bytes(csv_bytes([HEADER, *ROWS])))
def test_damaged_bytes_of_csv(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.csv"
    path.write_bytes(data)
    outcome(path)


@pytest.mark.fuzz
@settings(max_examples=examples(50))
@given(data=damaged_bytes(parquet_bytes()))
def test_damaged_bytes_of_parquet(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.parquet"
    path.write_bytes(data)
    outcome(path)


@pytest.mark.fuzz
@settings(max_examples=examples(50))
@given(grid=grids(), values=st.lists(st.sampled_from(TYPED), min_size=1, max_size=3))
def test_parquet_of_any_types(
    tmp_path_factory: pytest.TempPathFactory, grid: Grid, values: list[Any]
) -> None:
    """Columns of a wrong type as a whole, and cells that are missing or not numbers."""
    rows = [row + [None] * (len(grid[0]) - len(row)) for row in grid[1:]]
    arrays, names = [], []
    for k, name in enumerate(grid[0]):
        cells = [row[k] for row in rows]
        if k < len(values) and cells:
            cells = [values[k]] * len(cells) if k % 2 else [values[k], *cells[1:]]
        try:
            arrays.append(pa.array(cells))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            arrays.append(pa.array([repr(cell) for cell in cells]))
        names.append(str(name).encode("utf-8", "replace").decode())
    path = tmp_path_factory.getbasetemp() / "types.parquet"
    pq.write_table(pa.table(arrays, names=names), path)
    outcome(path)


@pytest.mark.fuzz
@settings(max_examples=examples(50))
@given(first=grids(), second=grids(), options=OPTIONS)
def test_two_damaged_files(
    tmp_path_factory: pytest.TempPathFactory, first: Grid, second: Grid, options: dict[str, Any]
) -> None:
    for row in second[1:]:
        row[:1] = [f"second {cell}" for cell in row[:1]]
    base = tmp_path_factory.getbasetemp()
    (base / "first.csv").write_bytes(csv_bytes(first))
    (base / "second.csv").write_bytes(csv_bytes(second))
    outcome(base / "first.csv", base / "second.csv", **options)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Grid, Grid, str]:
    layout = draw(st.sampled_from(["regmix", "olmix", "auto"]))
    key = draw(st.sampled_from(["index", "run", "run_id"]))
    regmix = key == "index"
    a, b = ("train_the_pile_a", "train_the_pile_b") if regmix else ("a", "b")
    x, y = ("metric/the_pile_a_val_loss", "metric/c_val_loss") if regmix else ("a_bpb", "other")
    ratios: Grid = [[key, a, b], *[[k, 0.125 * k, 1 - 0.125 * k] for k in range(6)]]
    losses: Grid = [[key, x, y], *[[k, 3.5 - k / 8, 2.5] for k in range(6)]]
    for grid in (ratios, losses):
        for _ in range(draw(st.integers(0, 2))):
            if len(grid) < 2 or not grid[0]:
                break
            row, column = (draw(st.integers(0, n - 1)) for n in (len(grid), len(grid[0])))
            draw(st.sampled_from(EDITS))(draw, grid, row, column)
    return ratios, losses, layout


@pytest.mark.fuzz
@settings(max_examples=examples(50))
@given(pair=pairs(), sized=st.booleans())
def test_damaged_files_of_other_layouts(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[Grid, Grid, str], sized: bool
) -> None:
    base = tmp_path_factory.getbasetemp()
    ratios, losses, layout = pair
    (base / "ratios.csv").write_bytes(csv_bytes(ratios))
    (base / "metrics.csv").write_bytes(csv_bytes(losses))
    sizes: dict[str, Any] = {"params": 1e6, "tokens": "1B"} if sized else {}
    outcome(base / "ratios.csv", base / "metrics.csv", format=layout, **sizes)
