"""From raw columns to a `RunTable`: every check of a run table, in the order of repair.

First the header (missing columns, families without a pair), then each cell (a number, finite, of
the right sign), then rows (sums, units), then runs (several steps, duplicates). Problems of one
kind are listed together, so that a file is repaired in few rounds.

Refused: repairing silently. What is changed (ratios renormalised, rows left out) is returned as a
note, and the reader turns notes into warnings.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from apportion.budget import FEWEST_TOKENS, MOST_PARAMS, MOST_TOKENS, counted
from apportion.errors import option
from apportion.mixture.runs import RunTable
from apportion.mixture.table.cells import check, integers, numbers, refine, typed
from apportion.mixture.table.tablefile import RawTable, refuse

RATIO, LOSS, BYTES = "ratio_", "loss_", "bytes_per_token_"

# Below 1e-6 a sum is off by rounding in the last digits only, which nobody needs to hear about.
_SILENT = 1e-6
_FEWEST_PARAMS, _LARGEST_LOSS = 1e3, 20.0
# Columns that a note names before it counts.
_NAMED = 5


@dataclass(frozen=True)
class Rules:
    """What a layout allows; the defaults are those of the package's own layout.

    Attributes:
        tolerance: how far a row's ratios may be from 1 (they are then renormalised).
        allow_unmeasured: families may have a ratio and no loss.
        last_step: of several steps of a run keep the last.
        notes: what was changed or deserves a warning, filled by the checks.
    """

    tolerance: float = 1e-3
    allow_unmeasured: bool = False
    last_step: bool = False
    notes: list[str] = field(default_factory=list)


def validate(raw: RawTable, rules: Rules) -> RunTable:
    """Check raw columns in the package's own layout and make a `RunTable` of them.

    Raises:
        InputError: see the module; with file, line, column and the corrected form.
    """
    families, targets = header_families(raw, rules)
    params, tokens = _sizes(raw)
    ratios = _ratios(raw, families, rules)
    awkward = [name for name in families if "," in name or "=" in name]
    if awkward:
        rules.notes.append(
            f"{raw.source}: family names with a comma or an equals sign cannot be written as "
            f"FAMILY=SHARE on a command line ({', '.join(map(repr, awkward[:_NAMED]))}); rename "
            "the columns, or give ratios as a JSON file"
        )
    losses = _block(raw, LOSS, targets, "a positive loss in nats per token", strict=True)
    _check_losses(raw, targets, losses, rules)
    names, kept = _names(raw, rules)
    seed = integers(raw.columns["seed"], "seed") if "seed" in raw.columns else None
    per_token = None
    if any(name.startswith(BYTES) for name in raw.columns):
        per_token = _block(raw, BYTES, targets, "a positive number of bytes per token", strict=True)
    return RunTable(
        run=tuple(names),
        params=params[kept],
        tokens=tokens[kept],
        families=families,
        ratios=ratios[kept],
        targets=targets,
        losses=losses[kept],
        seed=None if seed is None else seed[kept],
        bytes_per_token=None if per_token is None else per_token[kept],
        extra=_extra(raw, kept),
    )


def header_families(raw: RawTable, rules: Rules) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Families (ratio columns) and targets (loss columns, in the order of the families).

    Raises:
        InputError: a required column is missing, or a family lacks its ratio or loss column.
    """
    missing = [name for name in ("run", "params", "tokens") if name not in raw.columns]
    families = _with_prefix(raw, RATIO)
    measured = _with_prefix(raw, LOSS)
    missing += [
        f"{prefix}<family>" for prefix, found in ((RATIO, families), (LOSS, measured)) if not found
    ]
    if missing:
        refuse(
            "the columns run, params, tokens, ratio_<family>… and loss_<family>…",
            [f"{raw.source}: no column {name}{hint(name, raw)}" for name in missing],
            f"add or rename it; the columns are: {_listed(raw)}",
        )
    orphans = [name for name in measured if name not in families]
    lonely = [name for name in families if name not in measured]
    if orphans:
        refuse(
            "a ratio column for every loss column",
            [
                f"{raw.source}: {LOSS}{name} has no {RATIO}{name}{_near(LOSS, name, lonely)}"
                for name in orphans
            ],
            "add the ratio column (0 where the family was not sampled), or rename the loss column "
            "so that it does not begin with loss_ to keep it aside",
        )
    if lonely and not rules.allow_unmeasured:
        refuse(
            "a loss column for every ratio column",
            [
                f"{raw.source}: {RATIO}{name} has no {LOSS}{name}{hint(LOSS + name, raw, 0.8)}"
                for name in lonely
            ],
            "add the loss column, or, if these families were trained on but never evaluated, "
            f"pass {option('allow_unmeasured', True)}",
        )
    _check_bytes_columns(raw, measured)
    return tuple(families), tuple(name for name in families if name in measured)


def _check_bytes_columns(raw: RawTable, measured: Sequence[str]) -> None:
    given = _with_prefix(raw, BYTES)
    if not given:
        return
    wrong = [f"{BYTES}{name} has no {LOSS}{name}" for name in given if name not in measured]
    wrong += [f"no column {BYTES}{name}" for name in measured if name not in given]
    if wrong:
        refuse(
            "bytes_per_token_<family> for every family with a loss, or for none",
            [f"{raw.source}: {problem}" for problem in wrong],
            "add, rename or remove the columns",
        )


def _with_prefix(raw: RawTable, prefix: str) -> list[str]:
    names = [name.removeprefix(prefix) for name in raw.columns if name.startswith(prefix)]
    if "" in names:
        label = raw.columns[prefix].label
        refuse(
            f"{prefix}<family>",
            [f"{raw.source}: column {label} names no family"],
            f"rename it, for example {prefix}romance",
        )
    return names


def _listed(raw: RawTable) -> str:
    labels = [column.label for column in raw.columns.values()]
    return ", ".join(labels[:12]) + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")


def hint(name: str, raw: RawTable, cutoff: float = 0.65) -> str:
    """Did you mean one of the columns that have no meaning yet?"""
    known = {"run", "params", "tokens", "seed", "step"}
    free = {
        column.lower(): raw.columns[column].label
        for column in raw.columns
        if column not in known and not column.startswith((RATIO, LOSS, BYTES))
    }
    near = difflib.get_close_matches(name.lower(), list(free), n=1, cutoff=cutoff)
    near += [column for column in free if name.lower() in column]
    return f" (did you mean {free[near[0]]}?)" if near else ""


def _near(prefix: str, family: str, families: Sequence[str]) -> str:
    near = difflib.get_close_matches(family, families, n=1)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""


def _sizes(raw: RawTable) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " runs"]]:
    params_column, tokens_column = raw.columns["params"], raw.columns["tokens"]
    params = numbers(params_column, "a positive count of parameters", strict=True)
    tokens = numbers(tokens_column, "a positive count of tokens", strict=True)
    check(
        params_column,
        (params < _FEWEST_PARAMS) | (params > MOST_PARAMS),
        params,
        f"between {_FEWEST_PARAMS:g} and {MOST_PARAMS:g} non-embedding parameters",
        "write plain counts, such as 85000000 or 85e6 for 85 million",
    )
    check(
        tokens_column,
        (tokens < FEWEST_TOKENS * params) | (tokens > MOST_TOKENS),
        tokens,
        f"at least a tenth as many training tokens as parameters, and at most {MOST_TOKENS:g}",
        "write plain counts, such as 50000000000 or 50e9 for 50 billion",
    )
    return params, tokens


def _block(
    raw: RawTable, prefix: str, names: Sequence[str], what: str, strict: bool
) -> Float[np.ndarray, "rows names"]:
    """The columns of one prefix as numbers; `strict` refuses zero as well as negative values."""
    problems: list[str] = []
    columns = [raw.columns[prefix + name] for name in names]
    values = [refine(column, strict, problems) for column in columns]
    if problems:
        refuse(f"{what} in every cell", problems, "correct the cells, or remove the runs")
    return np.stack(values, axis=1)


def _ratios(
    raw: RawTable, families: Sequence[str], rules: Rules
) -> Float[np.ndarray, "rows families"]:
    ratios = _block(raw, RATIO, families, "a sampling ratio between 0 and 1", strict=False)
    sums = ratios.sum(axis=1)
    off = np.abs(sums - 1)
    places = raw.columns[RATIO + families[0]].places
    bad = np.flatnonzero(off > rules.tolerance)
    if len(bad):
        problems = [f"{places[row]}: the ratios sum to {sums[row]:.6g}" for row in bad]
        percent = bool(np.all(np.abs(sums[bad] - 100) < 1))
        refuse(
            f"ratios that sum to 1 (within {rules.tolerance:g}) in every row",
            problems,
            "ratios are shares, not percent: divide them by 100"
            if percent
            else "divide the ratios of each row by their sum, or add the family that is missing",
        )
    loose = np.flatnonzero(off > _SILENT)
    if len(loose):
        rules.notes.append(
            f"{places[loose[0]]}{f' and {len(loose) - 1} more' if len(loose) > 1 else ''}: the "
            f"ratios sum to {_range(sums[loose])}; they were divided by their sum"
        )
    # + 0.0 turns a negative zero into zero.
    return ratios / sums[:, None] + 0.0


def _range(values: Float[np.ndarray, " some"]) -> str:
    low, high = f"{values.min():.6g}", f"{values.max():.6g}"
    return low if low == high else f"{low} to {high}"


def _check_losses(
    raw: RawTable, targets: Sequence[str], losses: Float[np.ndarray, "rows targets"], rules: Rules
) -> None:
    high = losses > _LARGEST_LOSS
    if not high.any():
        return
    rows, columns = np.flatnonzero(high.any(axis=1)), np.flatnonzero(high.any(axis=0))
    row, k = int(rows[0]), int(np.flatnonzero(high[rows[0]])[0])
    labels = [raw.columns[LOSS + targets[int(column)]].label for column in columns]
    named = ", ".join(labels[:_NAMED])
    if len(columns) > _NAMED:
        named += f" and {len(columns) - _NAMED} more"
    rules.notes.append(
        f"{raw.columns[LOSS + targets[k]].at(row)}: a loss of {losses[row, k]:g} nats per token is "
        "above that of a uniform guess over any usual vocabulary, and so in "
        f"{len(rows)} of {counted(len(losses), 'row')} (columns {named}); "
        "if they are perplexities, take their logarithms"
    )


def _names(raw: RawTable, rules: Rules) -> tuple[list[str], Int[np.ndarray, " kept"]]:
    """Unique run names and the rows that stay."""
    column = raw.columns["run"]
    names = ["" if cell is None else str(cell).strip() for cell in column.cells]
    wrong = [
        f"{column.at(row)}: found {name[:60]!r}"
        for row, name in enumerate(names)
        if not name or not name.isprintable()
    ]
    if wrong:
        refuse("a name for every run", wrong, "give the run a name of printable characters")
    kept = np.arange(len(names))
    if "step" in raw.columns:
        names, kept = _steps(raw, names, rules)
    elif rules.last_step:
        refuse(
            f"a column step, because {option('last_step', True)} was asked",
            [f"{raw.source}: no column step{hint('step', raw)}"],
            f"add the column, or leave out {option('last_step')}",
        )
    first: dict[str, int] = {}
    twice = [
        f"{column.at(int(row))}: {name!r} again, first at {column.places[first[name]]}"
        for name, row in zip(names, kept, strict=True)
        if first.setdefault(name, int(row)) != row
    ]
    if twice:
        refuse(
            "every run once",
            twice,
            "rename or remove the repeated rows (checkpoints of one run need a column step)",
        )
    return names, kept


def _steps(
    raw: RawTable, names: list[str], rules: Rules
) -> tuple[list[str], Int[np.ndarray, " kept"]]:
    column = raw.columns["step"]
    # A file without steps that was read together with one that has them leaves missing cells.
    present = [row for row, cell in enumerate(column.cells) if cell is not None]
    steps = np.full(len(names), -1.0)
    steps[present] = numbers(column.take(present), "a step of zero or more", strict=False)
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(name, []).append(row)
    several = {name: rows for name, rows in rows_of.items() if len(rows) > 1}
    if rules.last_step:
        last = [
            row
            for name, rows in rows_of.items()
            for row in rows
            if name not in several or steps[row] == steps[rows].max()
        ]
        kept = np.array(sorted(last), dtype=np.int64)
        return [names[row] for row in kept], kept
    if several:
        name, rows = next(iter(several.items()))
        rules.notes.append(
            f"{column.places[rows[0]]}: several steps of {counted(len(several), 'run')} "
            f"({name!r} has {len(rows)}); intermediate checkpoints are not final losses, because "
            f"the learning rate has not decayed: keep the last with {option('last_step', True)}"
        )
    renamed = [
        f"{name}@{steps[row]:.12g}" if name in several and steps[row] >= 0 else name
        for row, name in enumerate(names)
    ]
    return renamed, np.arange(len(names))


def _extra(raw: RawTable, kept: Int[np.ndarray, " kept"]) -> pd.DataFrame | None:
    """The columns that have no meaning here, as numbers where all their cells are numbers."""
    known = {"run", "params", "tokens", "seed"}
    rows = [int(row) for row in kept]
    rest = {
        name: typed(column.take(rows).cells)
        for name, column in raw.columns.items()
        if name not in known and not name.startswith((RATIO, LOSS, BYTES))
    }
    return pd.DataFrame(rest) if rest else None
