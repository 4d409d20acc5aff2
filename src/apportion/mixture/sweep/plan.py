"""The runs of a sweep: written down by the user, or laid out by ``default_plan``.

The default layout is built from Latin squares. Its ratios are one geometric ladder
(for five families about .03, .06, .13, .26, .52) dealt out to the families:
mixture (k, r) gives family c the rung (r + k c) mod n. One square k (all r) shows
every family once on every rung; over all squares with k coprime to n, each rung of
a family meets every other rung of each other family equally often, so the effect of a
family's own ratio and that of every other family on it, related or not, are apart.
Every cell of (model size, tokens) gets one square and the uniform mixture, the middle
cell all squares and one mixture per family that it dominates; some are repeated with
another seed, for the noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from apportion.errors import InputError
from apportion.mixture.sweep.model import SHAPES, ModelShape

TOLERANCE = 1e-3


@dataclass(frozen=True)
class PlannedRun:
    """One run: ``shape`` as ``parse_shape`` takes it, ``part`` a label for the table."""

    run: str
    shape: str
    tokens: int
    seed: int
    ratios: Mapping[str, float]
    part: str = ""

    def cost(self, vocab: int, length: int) -> float:
        """FLOPs of the training, forward and backward."""
        shape = parse_shape(self.shape)
        matrices = shape.params + vocab * shape.width
        return 6.0 * self.tokens * (matrices + shape.layers * shape.width * length)


def parse_shape(text: str) -> ModelShape:
    """Model shape from its name or from ``WIDTHxLAYERSxHEADSxHIDDEN``."""
    if text in SHAPES:
        return SHAPES[text]
    try:
        width, layers, heads, hidden = (int(part) for part in text.split("x"))
        return ModelShape(width, layers, heads, hidden)
    except ValueError as error:
        raise InputError(
            f"model shape {text!r}: expected one of {', '.join(SHAPES)}, or "
            f"WIDTHxLAYERSxHEADSxHIDDEN such as 128x3x4x352; {error}"
        ) from error


def ladder(families: int, span: float) -> Float[np.ndarray, " families"]:
    """Geometric ratios that sum to 1, the largest ``span`` times the smallest."""
    rungs = span ** np.linspace(0, 1, families) if families > 1 else np.ones(1)
    return rungs / rungs.sum()


def square(families: int, step: int, span: float) -> Float[np.ndarray, "families families"]:
    """Mixtures of one Latin square: row r gives family c the rung (r + step c) mod families."""
    if math.gcd(families, step) != 1:
        raise InputError(f"square: step {step} must be coprime to the {families} families")
    places = np.arange(families)
    return ladder(families, span)[(places[:, None] + step * places[None, :]) % families]


def default_plan(
    families: Sequence[str],
    shapes: Sequence[str] = ("0.05M", "0.2M", "0.6M"),
    tokens: Sequence[int] = (250_000, 500_000, 1_000_000),
    *,
    seed: int = 0,
    repeats: int = 6,
    span: float = 17.0,
    dominant: float = 0.7,
    part: str = "fit",
) -> list[PlannedRun]:
    """The default layout: (families + 1) runs a cell, more in the middle one (see above).

    Raises InputError for fewer than two families.
    """
    n = len(families)
    if n < 2:
        raise InputError(f"a mixture needs at least two families; got {list(families)}")
    steps = [k for k in range(1, n) if math.gcd(n, k) == 1] or [1]
    cells = [(shape, budget) for shape in shapes for budget in tokens]
    middle = (len(shapes) // 2, len(tokens) // 2)
    runs: list[PlannedRun] = []

    def add(cell: tuple[str, int], name: str, ratios: Any, run_seed: int = seed) -> None:
        shape, budget = cell
        shares = dict(zip(families, (float(x) for x in ratios), strict=True))
        run = f"{part}-{shape}-{budget // 1000}k-{name}-s{run_seed}"
        runs.append(PlannedRun(run, shape, budget, run_seed, shares, part))

    for number, cell in enumerate(cells):
        is_middle = number == middle[0] * len(tokens) + middle[1]
        own = (2 * (number // len(tokens)) + number % len(tokens)) % len(steps)
        add(cell, "uniform", np.full(n, 1 / n))
        for k in steps if is_middle else [steps[own]]:
            for r, ratios in enumerate(square(n, k, span)):
                add(cell, f"q{k}r{r}", ratios)
        if is_middle:
            for i, family in enumerate(families):
                ratios = np.full(n, (1 - dominant) / (n - 1))
                ratios[i] = dominant
                add(cell, f"most-{family}", ratios)
            # uniform and one rung of every square once more: noise in the cell of the pairs
            again = [("uniform", np.full(n, 1 / n))]
            again += [(f"q{k}r{r}", square(n, k, span)[r]) for r in range(n) for k in steps]
            for name, ratios in again[:repeats]:
                add(cell, name, ratios, seed + 1)
    return runs


def read_plan(path: Path) -> list[PlannedRun]:
    """Plan from CSV (run, shape, tokens, seed, part, ratio_FAMILY…) or a JSON list of the same.

    In JSON the ratios are one object, ``"ratios": {"romance": 0.2, …}``. Raises InputError
    with file and row for anything missing or out of range.
    """
    try:
        if path.suffix == ".json":
            rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
        else:
            rows = [_unflatten(row) for row in _records(path)]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected a plan, CSV with columns run, shape, tokens, seed, ratio_FAMILY…, "
            f"or a JSON list of runs; {error}"
        ) from error
    runs = [_planned(row, f"{path}, run {number}") for number, row in enumerate(rows, start=1)]
    check_plan(runs)
    return runs


def _records(path: Path) -> list[dict[str, Any]]:
    return pd.read_csv(path).to_dict("records")  # pyright: ignore[reportReturnType]


def _unflatten(row: dict[str, Any]) -> dict[str, Any]:
    ratios = {k.removeprefix("ratio_"): v for k, v in row.items() if k.startswith("ratio_")}
    return {k: v for k, v in row.items() if not k.startswith("ratio_")} | {"ratios": ratios}


def _planned(row: dict[str, Any], where: str) -> PlannedRun:
    missing = {"shape", "tokens", "ratios"} - row.keys()
    if missing:
        raise InputError(f"{where}: missing {', '.join(sorted(missing))}; got {sorted(row)}")
    try:
        ratios = {str(k): float(v) for k, v in dict(row["ratios"]).items()}
        tokens, seed = int(float(row["tokens"])), int(row.get("seed", 0))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}: expected numbers for tokens, seed and ratios; {error}"
        ) from error
    shape, part = str(row["shape"]), row.get("part")
    name = str(row.get("run") or f"{shape}-{tokens}-{where.rsplit(' ', 1)[-1]}")
    return PlannedRun(name, shape, tokens, seed, ratios, part if isinstance(part, str) else "")


def check_plan(runs: Sequence[PlannedRun]) -> None:
    """Raise InputError for an empty plan, a run twice, a bad shape, tokens, seed or ratio."""
    if not runs:
        raise InputError("the plan has no runs; give at least one")
    seen: set[str] = set()
    for run in runs:
        parse_shape(run.shape)
        if run.run in seen:
            raise InputError(f"run {run.run!r} is in the plan twice; name every run once")
        seen.add(run.run)
        if run.tokens < 1 or run.seed < 0:
            raise InputError(f"run {run.run}: expected tokens of at least 1 and a seed from 0 up")
        values = np.array(list(run.ratios.values()))
        total = float(values.sum())
        if not np.all(np.isfinite(values)) or np.any(values < 0) or abs(total - 1) > TOLERANCE:
            raise InputError(
                f"run {run.run}: ratios must be finite, not negative and sum to 1; they are "
                f"{dict(run.ratios)} and sum to {total:.6g}"
            )
        if set(run.ratios) != set(runs[0].ratios):
            raise InputError(
                f"run {run.run}: families {sorted(run.ratios)} differ from those of run "
                f"{runs[0].run}, {sorted(runs[0].ratios)}"
            )
