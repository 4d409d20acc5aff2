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

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from apportion.budget import FEWEST_TOKENS, MOST_TOKENS, parse_tokens
from apportion.errors import InputError
from apportion.files import read_json
from apportion.mixture.sweep.model import SHAPES, ModelShape
from apportion.mixture.table.cells import integers, refine
from apportion.mixture.table.tablefile import Column, RawTable, read_table, refuse

RATIO = "ratio_"
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
    parts = text.split("x")
    if len(parts) != 4 or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise InputError(
            f"model shape {text!r}: expected one of {', '.join(SHAPES)}, or "
            "WIDTHxLAYERSxHEADSxHIDDEN such as 128x3x4x352"
        )
    width, layers, heads, hidden = map(int, parts)
    try:
        return ModelShape(width, layers, heads, hidden)
    except ValueError as error:
        raise InputError(f"model shape {text!r}: {error}; such as 128x3x4x352") from error


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
    """Plan from CSV or Parquet (run, shape, tokens, seed, part, ratio_FAMILY…) or a JSON list.

    In JSON a run is an object with the same names and its ratios as one object,
    ``"ratios": {"romance": 0.2, …}``. Tokens may be written as ``500k``. ``run``, ``seed`` and
    ``part`` may be left out, and other columns are passed over.

    Raises:
        InputError: anything missing or out of range, with file, line (in JSON the run) and column.
    """
    raw = _from_json(path) if path.suffix == ".json" else read_table(path)
    columns = {name: raw.columns[name] for name in raw.columns if name.startswith(RATIO)}
    ratios = {name.removeprefix(RATIO): column for name, column in columns.items()}
    missing = [name for name in ("shape", "tokens") if name not in raw.columns]
    missing += [] if ratios else [f"{RATIO}<family>"]
    if missing:
        refuse(
            "a plan with the columns shape, tokens and ratio_<family>…, and run, seed and part",
            [f"{raw.source}: no column {name}" for name in missing],
            "add it, or let `apportion mixture design --shape …` write the plan",
        )
    tokens = _tokens(raw.columns["tokens"])
    seeds = integers(raw.columns["seed"], "seed").tolist() if "seed" in raw.columns else None
    shares = _shares(ratios)
    names, parts = (_words(raw, name) for name in ("run", "part"))
    runs: list[PlannedRun] = []
    for row, shape in enumerate(_words(raw, "shape")):
        name = names[row] or f"{shape}-{tokens[row]}-{row + 1}"
        seed = 0 if seeds is None else seeds[row]
        mixture = {family: float(values[row]) for family, values in shares.items()}
        runs.append(PlannedRun(name, shape, tokens[row], seed, mixture, parts[row]))
    check_plan(runs, raw.columns["shape"].places)
    return runs


def _from_json(path: Path) -> RawTable:
    """The runs of a JSON list as columns; what a run leaves out is a missing cell."""
    rows = read_json(path)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            f"{path}: expected a list of runs such as "
            '[{"shape": "0.2M", "tokens": "500k", "ratios": {"romance": 0.4, "slavic": 0.6}}]'
        )
    places = [f"{path}, run {number}" for number in range(1, len(rows) + 1)]
    flat: list[dict[str, Any]] = []
    for row, place in zip(rows, places, strict=True):
        ratios = row.get("ratios")
        if not isinstance(ratios, dict):
            raise InputError(
                f'{place}: expected "ratios" as an object such as {{"romance": 0.4, "slavic": '
                f"0.6}}; got {ratios!r}"
            )
        rest = {name: value for name, value in row.items() if name != "ratios"}
        flat.append(
            {"seed": 0} | rest | {RATIO + family: share for family, share in ratios.items()}
        )
    names = dict.fromkeys(name for row in flat for name in row)
    columns = {name: Column(name, [row.get(name) for row in flat], places) for name in names}
    return RawTable(str(path), columns)


def _words(raw: RawTable, name: str) -> list[str]:
    """Cells of a column that is text, empty where there is none."""
    if name not in raw.columns:
        return [""] * len(raw)
    return ["" if cell is None else str(cell).strip() for cell in raw.columns[name].cells]


def _tokens(column: Column) -> list[int]:
    amounts: list[int] = []
    problems: list[str] = []
    for row, cell in enumerate(column.cells):
        try:
            amounts.append(round(parse_tokens("" if cell is None else str(cell))))
        except InputError:
            found = "the cell is empty" if cell in (None, "") else f"found {str(cell)[:40]!r}"
            problems.append(f"{column.at(row)}: {found}")
    if problems:
        refuse("a number of tokens in every run", problems, "write it as 500000 or 500k")
    return amounts


def _shares(columns: Mapping[str, Column]) -> dict[str, Float[np.ndarray, " runs"]]:
    problems: list[str] = []
    shares = {family: refine(column, False, problems) for family, column in columns.items()}
    if problems:
        refuse("a sampling ratio between 0 and 1 in every cell", problems, "correct the cells")
    return shares


def check_plan(runs: Sequence[PlannedRun], places: Sequence[str] | None = None) -> None:
    """Refuse an empty plan, a run twice, and a bad shape, tokens, seed or ratio.

    Args:
        runs: the plan.
        places: where each run is written, for messages.

    Raises:
        InputError: any of these, with the run's name and place.
    """
    if not runs:
        raise InputError("the plan has no runs; give at least one")
    seen: dict[str, str] = {}
    for number, run in enumerate(runs):
        where = f"run {run.run!r}" if places is None else f"{places[number]} (run {run.run!r})"
        if run.run in seen:
            raise InputError(f"{where} has the name of {seen[run.run]}; name every run once")
        seen[run.run] = where
        _check_run(run, where)
        if set(run.ratios) != set(runs[0].ratios):
            raise InputError(
                f"{where}: the families {', '.join(sorted(run.ratios))} differ from those of run "
                f"{runs[0].run!r}, {', '.join(sorted(runs[0].ratios))}; give every run the same "
                "(ratio 0 where a family is not sampled)"
            )


def _check_run(run: PlannedRun, where: str) -> None:
    try:
        shape = parse_shape(run.shape)
    except InputError as error:
        raise InputError(f"{where}, column shape: {error}") from error
    # What the reader of the table would refuse after the training.
    least = math.ceil(FEWEST_TOKENS * shape.params)
    if not least <= run.tokens <= MOST_TOKENS:
        raise InputError(
            f"{where}, column tokens: expected between {least} (a tenth of the parameters of "
            f"{run.shape}) and {MOST_TOKENS:g} tokens such as 500k, got {run.tokens}"
        )
    if run.seed < 0:
        raise InputError(f"{where}, column seed: expected a seed from 0 up, got {run.seed}")
    values = np.array(list(run.ratios.values()))
    total = float(values.sum())
    if not np.all(np.isfinite(values)) or np.any(values < 0) or abs(total - 1) > TOLERANCE:
        listed = ", ".join(f"{family}={share:g}" for family, share in run.ratios.items())
        raise InputError(
            f"{where}: expected ratios that are finite, not negative and sum to 1; "
            f"{listed} sum to {total:.6g}"
        )
