"""Reading and writing run tables: files to a validated `RunTable` and back."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from apportion.budget import parse_count
from apportion.errors import InputError, InputWarning, option
from apportion.files import atomic_write, write_text
from apportion.mixture.runs import RunTable
from apportion.mixture.table import layouts
from apportion.mixture.table.shape import ModelShape as ModelShape
from apportion.mixture.table.shape import without_embeddings
from apportion.mixture.table.tablefile import Column, RawTable, read_table, refuse
from apportion.mixture.table.validate import (
    BYTES,
    LOSS,
    RATIO,
    Rules,
    header_families,
    hint,
    validate,
)

Format = Literal["auto", "own", "regmix", "olmix"]
_FORMATS = ("auto", "own", "regmix", "olmix")


def read_runs(
    *paths: str | Path,
    format: Format = "auto",
    params: float | str | None = None,
    tokens: float | str | None = None,
    params_column: str | None = None,
    shape: ModelShape | None = None,
    last_step: bool = False,
    allow_unmeasured: bool = False,
    metrics: Mapping[str, str] | None = None,
    unique_tokens: Mapping[str, float] | None = None,
) -> RunTable:
    """Read training runs, one row a run.

    The package's own layout has the columns `run`, `params` (non-embedding), `tokens`,
    `ratio_<family>`… and `loss_<family>`… (nats per token); optional `seed`, `step` and
    `bytes_per_token_<family>`…; all other columns are kept in `RunTable.extra`. Ratios that sum to
    1 within 1e-3 are divided by their sum (within 1e-2 in the other layouts, whose files are
    rounded).

    Args:
        *paths: CSV or Parquet files. Several files in the own layout are put together and must have
            the same families; `regmix` and `olmix` take the file of ratios and the file of losses.
        format: the layout; `"auto"` tells it by the columns.
        params: non-embedding parameters of every run, for files that do not have them (RegMix: 1M,
            60M or 1B).
        tokens: training tokens of every run, likewise (RegMix: 1B, 1B or 25B).
        params_column: the column to use as parameters instead of `params`.
        shape: the parameters in the file are totals; the embeddings are subtracted.
        last_step: of several steps of one run keep the last.
        allow_unmeasured: families may have a ratio column and no loss column.
        metrics: olmix only: the metric column that is the loss of a family.
        unique_tokens: tokens that each family has, for the laws that count repetition.

    Warns:
        InputWarning: ratios were renormalised; several steps of one run; rows left out; a loss that
            looks like a perplexity; optional columns that only some files have.

    Raises:
        InputError: anything wrong in a file, with file, line, column and the corrected form.
    """
    if format not in _FORMATS:
        raise InputError(f"expected format out of {', '.join(_FORMATS)}; got {format!r}")
    if not paths:
        raise InputError('expected at least one file: read_runs("runs.csv")')
    _check_paths(paths)
    notes: list[str] = []
    raw_tables, layout = _load(paths, format, metrics, notes)
    foreign = layout != "own"
    prepared = [_with_sizes(table, params, tokens, params_column, layout) for table in raw_tables]
    rules = Rules(
        tolerance=layouts.TOLERANCE if foreign else 1e-3,
        allow_unmeasured=allow_unmeasured or foreign,
        last_step=last_step,
        notes=notes,
    )
    raw = _merge(prepared, rules)
    if shape is not None:
        raw = without_embeddings(raw, shape, params_column, notes)
    table = validate(raw, rules)
    if unique_tokens is not None:
        table = replace(table, unique_tokens=_unique(unique_tokens, table.families))
    for note in notes:
        warnings.warn(note, InputWarning, stacklevel=2)
    return table


def _check_paths(paths: Sequence[object]) -> None:
    for path in paths:
        if not isinstance(path, str | Path):
            raise InputError(
                "expected paths, one argument a file, such as read_runs(*files); got "
                f"{type(path).__name__} {str(path)[:60]!r}"
            )


def _load(
    paths: Sequence[str | Path],
    format: Format,
    metrics: Mapping[str, str] | None,
    notes: list[str],
) -> tuple[list[RawTable], str]:
    folder = len(paths) == 1 and (Path(paths[0]) / "ratios.csv").is_file()
    if format in ("regmix", "olmix") or (format == "auto" and folder):
        layout = "olmix" if format == "auto" else format
        tables = layouts.read_pair(tuple(paths), layout)
    else:
        tables = [read_table(path) for path in paths]
        layout = layouts.recognise(tables) if format == "auto" else format
    if metrics is not None and layout != "olmix":
        raise InputError(
            f"{option('metrics')} pairs the columns of the olmix layout; these files have the "
            f"{layout} layout: leave it out, or pass {option('format', 'olmix')}"
        )
    if layout == "regmix":
        return [layouts.from_regmix(tables, notes)], layout
    if layout == "olmix":
        return [layouts.from_olmix(tables, metrics, notes)], layout
    return tables, layout


def _with_sizes(
    raw: RawTable,
    params: float | str | None,
    tokens: float | str | None,
    params_column: str | None,
    layout: str,
) -> RawTable:
    """The table with columns `params` and `tokens`, wherever they come from."""
    columns = dict(raw.columns)
    if params_column is not None and params_column != "params":
        if params_column not in columns:
            raise InputError(
                f"{raw.source}: no column {params_column}{hint(params_column, raw)}; "
                f"{option('params_column')} must name the column of parameters"
            )
        aside = columns.pop("params", None)
        columns["params"] = columns.pop(params_column)
        if aside is not None:
            columns["params_file"] = aside
    for name, value in (("params", params), ("tokens", tokens)):
        if value is None:
            if name not in columns and layout != "own":
                raise InputError(
                    f"{raw.source}: the {layout} layout has no {name}; pass both, the same for all "
                    f"runs of the file, such as {option('params', 1e6)} and "
                    f"{option('tokens', 1e9)} (the RegMix paper: 1M with 1B, 60M with 1B, 1B with "
                    "25B)"
                )
            continue
        if name in columns:
            raise InputError(
                f"{raw.source} has a column {columns[name].label}, and {name}={value!r} was "
                "passed too: leave one out"
            )
        places = next(iter(columns.values())).places
        columns[name] = Column(f"{name}=", [parse_count(value, name)] * len(places), places)
    return RawTable(raw.source, columns)


def _merge(tables: list[RawTable], rules: Rules) -> RawTable:
    """Rows of several files under each other; columns may stand in another order."""
    if len(tables) == 1:
        return tables[0]
    first, found = tables[0], [header_families(table, rules) for table in tables]
    for table, pair in zip(tables[1:], found[1:], strict=True):
        for prefix, mine, other in zip((RATIO, LOSS), pair, found[0], strict=True):
            wrong = [f"no column {prefix}{name}" for name in other if name not in mine]
            wrong += [f"also has {prefix}{name}" for name in mine if name not in other]
            if wrong:
                refuse(
                    f"the same families as in {first.source}",
                    [f"{table.source}: {problem}" for problem in wrong],
                    "give all files the same ratio and loss columns (ratio 0 where not sampled)",
                )
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    merged: dict[str, Column] = {}
    for name in names:
        lacking = [table.source for table in tables if name not in table.columns]
        if lacking and (name == "seed" or name.startswith(BYTES)):
            rules.notes.append(f"{lacking[0]} has no column {name}: it was left out of all files")
            continue
        label = next(table.columns[name].label for table in tables if name in table.columns)
        cells: list[Any] = []
        places: list[str] = []
        for table in tables:
            column = table.columns.get(name)
            cells += column.cells if column else [None] * len(table)
            places += column.places if column else next(iter(table.columns.values())).places
        merged[name] = Column(label, cells, places)
    return RawTable(", ".join(table.source for table in tables), merged)


def _unique(given: Mapping[str, float], families: Sequence[str]) -> np.ndarray:
    missing = [name for name in families if name not in given]
    unknown = [name for name in given if name not in families]
    if missing or unknown:
        raise InputError(
            f"expected {option('unique_tokens')} for each of {', '.join(families)}; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    return np.array([parse_count(given[name], f"tokens of {name}") for name in families])


def concat_runs(*tables: RunTable) -> RunTable:
    """Tables under each other; families and targets must be the same, in any order.

    Seeds, bytes per token and unique tokens stay when all tables have them (and, for unique tokens,
    agree).

    Raises:
        InputError: no tables; other families or targets; a run name occurs twice.
    """
    if not tables:
        raise InputError("expected at least one run table")
    first = tables[0]
    for table in tables[1:]:
        for what in ("families", "targets"):
            mine, other = getattr(first, what), getattr(table, what)
            if set(mine) != set(other):
                raise InputError(
                    f"expected the same {what} in all tables: {', '.join(mine)}; "
                    f"got {', '.join(other)}"
                )
    names = [name for table in tables for name in table.run]
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]
    if twice:
        refuse("every run once", [f"run {name!r} is in two tables" for name in twice], "rename it")
    by_family = [[table.families.index(name) for name in first.families] for table in tables]
    by_target = [[table.targets.index(name) for name in first.targets] for table in tables]
    seeds = [table.seed for table in tables if table.seed is not None]
    per_token = [
        table.bytes_per_token[:, order]
        for table, order in zip(tables, by_target, strict=True)
        if table.bytes_per_token is not None
    ]
    unique = [
        table.unique_tokens[order]
        for table, order in zip(tables, by_family, strict=True)
        if table.unique_tokens is not None
    ]
    agree = len(unique) == len(tables) and all(np.array_equal(unique[0], u) for u in unique)
    extras = [
        table.extra if table.extra is not None else pd.DataFrame(index=range(len(table)))
        for table in tables
    ]
    extra = pd.concat(extras, ignore_index=True)
    return RunTable(
        run=tuple(names),
        params=np.concatenate([table.params for table in tables]),
        tokens=np.concatenate([table.tokens for table in tables]),
        families=first.families,
        ratios=np.concatenate([t.ratios[:, k] for t, k in zip(tables, by_family, strict=True)]),
        targets=first.targets,
        losses=np.concatenate([t.losses[:, k] for t, k in zip(tables, by_target, strict=True)]),
        seed=np.concatenate(seeds) if len(seeds) == len(tables) else None,
        bytes_per_token=np.concatenate(per_token) if len(per_token) == len(tables) else None,
        unique_tokens=unique[0] if agree else None,
        extra=extra if len(extra.columns) else None,
    )


def write_runs(table: RunTable, path: str | Path) -> None:
    """Write a table in the package's own layout, whole or not at all; `read_runs` gives it back.

    Args:
        table: the runs.
        path: the target, ending in `.csv` or `.parquet`.

    Raises:
        InputError: another suffix; the target cannot be written.
    """
    frame = table.to_frame()
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        write_text(path, frame.to_csv(index=False, lineterminator="\n"))
    elif suffix in (".parquet", ".pq"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        try:
            whole = pa.Table.from_pandas(frame, preserve_index=False)
            pq.write_table(whole, buffer, write_page_checksum=True)
        except pa.ArrowException as error:
            raise InputError(
                f"cannot write {path} as Parquet ({error}); write it as .csv, or give each column "
                "of RunTable.extra one type"
            ) from error
        with atomic_write(path, "wb") as handle:
            handle.write(buffer.getvalue())
    else:
        raise InputError(f"expected a path ending in .csv or .parquet, got {path}")
