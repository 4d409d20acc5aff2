"""Total to non-embedding parameters, from the model's shape.

Laws count N without embeddings: in small models the embeddings are most of the parameters and do
not scale as the rest does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from apportion.errors import InputError, option
from apportion.mixture.table.cells import check, numbers
from apportion.mixture.table.tablefile import RawTable
from apportion.mixture.table.validate import hint


@dataclass(frozen=True)
class ModelShape:
    """What turns total into non-embedding parameters.

    Attributes:
        vocabulary: rows of the embedding matrix, or the name of the column that has them.
        width: hidden width, or the name of the column that has it (sizes differ between runs).
        tied: input and output embeddings are one matrix; otherwise two are subtracted.
    """

    vocabulary: int | str
    width: int | str
    tied: bool = True


def without_embeddings(
    raw: RawTable, shape: ModelShape, params_column: str | None, notes: list[str]
) -> RawTable:
    """The table with non-embedding parameters in `params`; the totals stay in another column.

    Raises:
        InputError: no such column; sizes that are not positive; embeddings larger than the model.
    """
    if "params" not in raw.columns:
        return raw
    column = raw.columns["params"]
    total = numbers(column, "a positive count of parameters", strict=True)
    sizes: list[np.ndarray] = []
    for what, value in (("vocabulary", shape.vocabulary), ("width", shape.width)):
        if isinstance(value, str):
            if value not in raw.columns:
                raise InputError(
                    f"{raw.source}: no column {value}{hint(value, raw)}; {option(what)} must be "
                    "a number or the name of a column"
                )
            sizes.append(numbers(raw.columns[value], f"a positive {what}", strict=True))
        elif value < 1:
            raise InputError(f"expected a positive {what}, got {value}")
        else:
            sizes.append(np.full(len(total), float(value)))
    if not isinstance(shape.width, str) and len(np.unique(total)) > 1:
        notes.append(
            f"{raw.source}: runs of {len(np.unique(total))} sizes were given one hidden width "
            f"({shape.width}); if wider models are among them, name the column that has the width: "
            f"{option('width', 'hidden_size')}"
        )
    embedding = sizes[0] * sizes[1] * (1 if shape.tied else 2)
    check(
        column,
        total <= embedding,
        total,
        "more parameters in total than in the embeddings (vocabulary × width"
        + (")" if shape.tied else " × 2, untied)"),
        "check vocabulary, width and whether the embeddings are tied, or leave the shape out if "
        "the parameters are non-embedding already",
    )
    columns = dict(raw.columns)
    kept = params_column if params_column not in (None, "params") else "total_params"
    columns[str(kept)] = column
    columns["params"] = replace(column, cells=[float(value) for value in total - embedding])
    return RawTable(raw.source, columns)
