"""Run tables of other projects: two files, ratios and losses, joined on the run's id.

RegMix (Liu et al., ICLR 2025, arXiv 2407.01492) publishes a mixture file with columns `index` and
`train_the_pile_<domain>`, and a loss file with `index` and `metric/the_pile_<domain>_val_loss`.
Ratios are rounded to three decimals. Size and tokens are the same for all runs of a file and are
not in it; the paper's are 1M parameters and 1B tokens (512 runs to fit, 256 to test), 60M and 1B
(256 runs), 1B and 25B (64 runs).

olmix (Chen et al., 2026) reads `ratios.csv` and `metrics.csv`, joined on `run` or `run_id`, with
any names of domains and metrics, and optional columns `name` and `index`. Its metrics are mostly of
tasks, in bits per byte; a metric becomes the loss of a family when it carries the family's name or
when the user pairs them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion.budget import counted
from apportion.errors import InputError, option
from apportion.mixture.table.cells import numbers
from apportion.mixture.table.tablefile import Column, RawTable, read_table, refuse
from apportion.mixture.table.validate import BYTES, LOSS, RATIO

_TRAIN = "train_"
_METRIC = re.compile(r"metric/(.+)_val_loss")
_PREFIX = "the_pile_"
_OLMIX_KEYS = ("run", "run_id")
_OLMIX_LABELS = ("name", "index")

# Seventeen ratios rounded to three decimals are off by 0.0085 at most; olmix itself accepts 0.01.
TOLERANCE = 1e-2


def recognise(tables: list[RawTable]) -> str:
    """Which layout these tables have: `"own"`, `"regmix"` or `"olmix"`."""
    if len(tables) != 2 or any(name.startswith(RATIO) for t in tables for name in t.columns):
        return "own"
    if any(_is_regmix_ratios(t) for t in tables) and any(_is_regmix_losses(t) for t in tables):
        return "regmix"
    if all(_olmix_key(table) for table in tables):
        return "olmix"
    return "own"


def read_pair(paths: tuple[str | Path, ...], layout: str) -> list[RawTable]:
    """The two files of a layout; a folder stands for its `ratios.csv` and `metrics.csv`.

    Raises:
        InputError: not two files, or one that cannot be read.
    """
    if len(paths) == 1 and Path(paths[0]).is_dir():
        paths = (Path(paths[0]) / "ratios.csv", Path(paths[0]) / "metrics.csv")
    if len(paths) != 2:
        example = (
            "train_mixture_1m.csv and train_pile_loss_1m.csv"
            if layout == "regmix"
            else "ratios.csv and metrics.csv"
        )
        raise InputError(
            f"the {layout} layout is two files, ratios and losses, such as {example}, with "
            f"{option('format', layout)}; got {len(paths)}"
        )
    return [read_table(path) for path in paths]


def from_regmix(tables: list[RawTable], notes: list[str]) -> RawTable:
    """RegMix's two tables as one in the package's own layout, without params and tokens.

    Runs are named `<mixture file>:<index>`, so that tables of several files can be put together.

    Raises:
        InputError: a file is not of that layout; indices repeat or do not meet.
    """
    ratios = next((table for table in tables if _is_regmix_ratios(table)), None)
    losses = next((table for table in tables if _is_regmix_losses(table)), None)
    if ratios is None or losses is None or ratios is losses:
        raise InputError(
            "expected one RegMix file with columns index and train_<domain>…, and one with index "
            "and metric/<domain>_val_loss…; found "
            + "; ".join(
                f"{table.source}: {', '.join(list(table.columns)[:3])}…" for table in tables
            )
        )
    left, right = _join(ratios, "index", losses, "index", notes)
    stem = Path(ratios.source).stem
    key = left["index"]
    columns = {"run": Column(key.label, [f"{stem}:{cell}" for cell in key.cells], key.places)}
    for name, column in left.items():
        if name.startswith(_TRAIN):
            columns[RATIO + name.removeprefix(_TRAIN).removeprefix(_PREFIX)] = column
    for name, column in right.items():
        match = _METRIC.fullmatch(name)
        if match is not None:
            columns[LOSS + match[1].removeprefix(_PREFIX)] = column
    return RawTable(f"{ratios.source} and {losses.source}", columns)


def from_olmix(
    tables: list[RawTable], metrics: Mapping[str, str] | None, notes: list[str]
) -> RawTable:
    """olmix's two tables as one in the package's own layout, without params and tokens.

    Metrics in bits per byte (their name has `bpb`) become nats per byte, and a byte counts as the
    token, so that losses shown as bits per byte are the file's numbers again.

    Args:
        tables: ratios and metrics, in that order.
        metrics: the metric column that is the loss of a family; without it, metrics that carry a
            family's name (`wikipedia`, `wikipedia_bpb`, `wikipedia_loss`).

    Raises:
        InputError: no id column; ids repeat or do not meet; no metric for any family; two units.
    """
    ratios, measured = tables
    keys = [_olmix_key(table) for table in tables]
    for table, key in zip(tables, keys, strict=True):
        if key is None:
            raise InputError(
                f"{table.source}: expected an id column run or run_id, "
                f"found {', '.join(list(table.columns)[:6])}"
            )
    left, right = _join(ratios, str(keys[0]), measured, str(keys[1]), notes)
    columns = {"run": left.pop(str(keys[0]))}
    del right[str(keys[1])]
    labels = {name: left.pop(name, None) for name in _OLMIX_LABELS}
    for name in _OLMIX_LABELS:
        right.pop(name, None)
    columns |= {RATIO + name: column for name, column in left.items()}
    chosen = _choose_metrics(list(left), right, metrics, measured.source)
    columns |= _losses({family: right.pop(name) for family, name in chosen.items()})
    columns |= {name: column for name, column in labels.items() if column is not None}
    columns |= {f"metric_{name}": column for name, column in right.items()}
    return RawTable(f"{ratios.source} and {measured.source}", columns)


def _choose_metrics(
    families: list[str],
    available: Mapping[str, Column],
    given: Mapping[str, str] | None,
    source: str,
) -> dict[str, str]:
    example = {family: next(iter(available), "…") for family in families[:1]}
    form = option("metrics", example)
    if given is not None:
        unknown = [f"no family {family!r}" for family in given if family not in families]
        unknown += [f"no metric {name!r}" for name in given.values() if name not in available]
        if len(set(given.values())) < len(given):
            unknown.append("one metric for two families")
        if unknown or not given:
            raise InputError(
                f"{source}: metrics must pair families with metric columns, such as {form}; "
                f"found {'; '.join(unknown) or 'no pair'}. Families: {', '.join(families)}; "
                f"metrics: {', '.join(list(available)[:12])}"
            )
        return dict(given)
    found: dict[str, str] = {}
    for family in families:
        for name in (family, f"{family}_bpb", f"{family}_loss", f"loss_{family}"):
            if name in available and name not in found.values():
                found.setdefault(family, name)
    if not found:
        raise InputError(
            f"{source}: no metric carries the name of a family ({', '.join(families[:8])}); "
            f"pair them, such as {form}; metrics: {', '.join(list(available)[:12])}"
        )
    return found


def _losses(chosen: dict[str, Column]) -> dict[str, Column]:
    per_byte = {family: "bpb" in column.label.lower() for family, column in chosen.items()}
    if len(set(per_byte.values())) > 1:
        raise InputError(
            "expected metrics of one unit; found bits per byte (bpb) beside others: "
            + ", ".join(column.label for column in chosen.values())
            + f"; pair families with metrics of one unit through {option('metrics')}"
        )
    if not all(per_byte.values()):
        return {LOSS + family: column for family, column in chosen.items()}
    made: dict[str, Column] = {}
    for family, column in chosen.items():
        bits = numbers(column, "a positive number of bits per byte", strict=True)
        made[LOSS + family] = _like(column, [float(value) * math.log(2.0) for value in bits])
        made[BYTES + family] = _like(column, [1.0] * len(bits))
    return made


def _like(column: Column, cells: list[Any]) -> Column:
    return Column(column.label, cells, column.places)


def _join(
    left: RawTable, left_key: str, right: RawTable, right_key: str, notes: list[str]
) -> tuple[dict[str, Column], dict[str, Column]]:
    """Rows that both tables have, in the order of the left one."""
    rows = [_rows_by_key(table, key) for table, key in ((left, left_key), (right, right_key))]
    common = [name for name in rows[0] if name in rows[1]]
    if not common:
        raise InputError(
            f"{left.source} and {right.source} have no run in common; expected the same ids in "
            f"{left_key} ({_few(list(rows[0]))}) and {right_key} ({_few(list(rows[1]))})"
        )
    for table, mine, other in ((left, *rows), (right, *rows[::-1])):
        alone = [name for name in mine if name not in other]
        if alone:
            notes.append(
                f"{table.source}: {counted(len(alone), 'run')} in this file only, left out: "
                f"{_few(alone)}"
            )
    picked = [
        {name: column.take([of[key] for key in common]) for name, column in table.columns.items()}
        for table, of in zip((left, right), rows, strict=True)
    ]
    return picked[0], picked[1]


def _rows_by_key(table: RawTable, key: str) -> dict[str, int]:
    column = table.columns[key]
    rows: dict[str, int] = {}
    twice: list[str] = []
    for row, cell in enumerate(column.cells):
        name = "" if cell is None else str(cell).strip()
        if rows.setdefault(name, row) != row:
            twice.append(f"{column.at(row)}: {name!r} again, first at {column.places[rows[name]]}")
    if twice:
        refuse("every run once in each file", twice, "remove the repeated rows")
    return rows


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _is_regmix_ratios(table: RawTable) -> bool:
    return "index" in table.columns and any(name.startswith(_TRAIN) for name in table.columns)


def _is_regmix_losses(table: RawTable) -> bool:
    return "index" in table.columns and any(_METRIC.fullmatch(name) for name in table.columns)


def _olmix_key(table: RawTable) -> str | None:
    return next((key for key in _OLMIX_KEYS if key in table.columns), None)
