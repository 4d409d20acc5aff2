"""What a run table must be before anything is fitted to it."""

from __future__ import annotations

import numpy as np

from apportion.errors import InputError
from apportion.mixture.runs import RunTable


def require_table(runs: object) -> None:
    """Refuse anything that is not a run table, a path above all.

    Raises:
        InputError: says how to read it.
    """
    if not isinstance(runs, RunTable):
        raise InputError(
            f"expected a run table, got {type(runs).__name__} {str(runs)[:60]!r}; read the file "
            'first: read_runs("runs.csv")'
        )


def require_varied(table: RunTable) -> None:
    """Refuse losses that are one number in all runs: no law can be told from any other on them.

    Raises:
        InputError: a family has the same loss in every one of several runs.
    """
    spread = np.ptp(table.losses, axis=0) / table.losses.max(axis=0)
    same = [target for target, value in zip(table.targets, spread, strict=True) if value < 1e-9]
    if same and len(table) > 1:
        value = float(table.losses[0, table.targets.index(same[0])])
        raise InputError(
            f"expected losses that differ between runs, got one loss in all {len(table)} for "
            f"{', '.join(same)} ({value:g} for {same[0]}): there is nothing to fit; correct the "
            "column, or leave that family's loss out"
        )


def require_rows(table: RunTable, count: int, law_name: str) -> None:
    """Refuse a table with fewer runs than a law has parameters.

    Args:
        table: the runs to fit.
        count: parameters of the law for one family.
        law_name: for the message.

    Raises:
        InputError: the table has fewer runs.
    """
    if len(table) < count:
        raise InputError(
            f"expected at least {count} runs, because the law {law_name!r} has {count} parameters "
            f"per family; the table has {len(table)}: add runs, or choose a law with fewer "
            "parameters"
        )
