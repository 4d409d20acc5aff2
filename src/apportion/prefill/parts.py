"""A layer's memory as tensors by name, and back: plain rows, or rows in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from apportion.prefill.memory import LayerMemory
from apportion.prefill.rows import Eight, Rows

_SUMS = "carried."


def parts_of(held: LayerMemory) -> dict[str, Tensor]:
    """All tensors of a memory."""
    found = {**_rows("keys", held.keys), **_rows("values", held.values), "order": held.order}
    if held.real is not None:
        found["real"] = held.real
    return found | {f"{_SUMS}{name}": sums for name, sums in held.carried.items()}


def memory_of(parts: Mapping[str, Tensor], like: LayerMemory) -> LayerMemory:
    """The memory that `parts_of` took apart.

    Args:
        parts: all of its tensors.
        like: a memory of the same layer; says how rows are held.
    """
    keys: Any = _joined("keys", parts, like.keys)
    values: Any = _joined("values", parts, like.values)
    return LayerMemory(
        keys,
        values,
        parts["order"],
        parts.get("real"),
        {name.removeprefix(_SUMS): x for name, x in parts.items() if name.startswith(_SUMS)},
    )


def shape_of(name: str, part: Tensor, batch: int, entries: int) -> tuple[int, ...]:
    """The shape that a part has in a memory of so many samples and entries."""
    if name.endswith(".factor"):  # of a head's channels, whatever is held
        return tuple(part.shape)
    if name == "real":
        return batch, entries
    return batch, part.shape[1], entries, *part.shape[3:]


def _rows(name: str, rows: Rows) -> dict[str, Tensor]:
    if not isinstance(rows, Eight):
        return {name: rows}
    found = {f"{name}.codes": rows.codes, f"{name}.scale": rows.scale}
    return found if rows.factor is None else found | {f"{name}.factor": rows.factor}


def _joined(name: str, parts: Mapping[str, Tensor], like: Rows) -> Rows:
    if not isinstance(like, Eight):
        return parts[name]
    factor = parts.get(f"{name}.factor")
    return Eight(parts[f"{name}.codes"], parts[f"{name}.scale"], factor, like.dtype)
