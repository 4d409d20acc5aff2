"""Which runs are held out: by a condition on columns, by size, by mixture, or in random folds.

A condition is read by a grammar of two levels (`column op value`, joined by `and`, which binds
tighter, and `or`) and by nothing else: text from a command line or a web form never runs as code.
Runs that differ in their seed alone stay together, otherwise a fold would be predicted from its own
repetitions.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from apportion.budget import counted, parse_count
from apportion.errors import InputError, option
from apportion.mixture.runs import RunTable

DEFAULT = "folds:5"
# Share of the mixtures that "unseen-mixtures" holds out.
_SHARE = 0.2
_FORMS = (
    '"params>=1e9", "tokens>=50B and ratio_romance<0.1", "folds:5", "largest-params", '
    '"largest-tokens" or "unseen-mixtures:0.2"'
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_TERM = re.compile(
    r"\s*(?P<column>[^<>=!]+?)\s*(?P<op>>=|<=|==|!=|>|<|=)\s*(?P<value>[^<>=!]+?)\s*"
)


@dataclass(frozen=True)
class Split:
    """One division of a table: rows to fit and rows to predict, which never overlap."""

    fitted: Int[np.ndarray, " fitted"]
    held_out: Int[np.ndarray, " held_out"]


def splits(runs: RunTable, holdout: str, seed: int = 0) -> list[Split]:
    """The divisions of the table that a holdout stands for: one, or one a fold.

    Args:
        runs: the table.
        holdout: a condition (`"params>=1e9"`: the runs for which it is true are held out; columns
            are `run`, `params`, `tokens`, `seed`, `ratio_<family>` and further columns of the file;
            numbers may end in k, M, B, T), `"largest-params"`, `"largest-tokens"`, `"folds:<k>"`
            or `"unseen-mixtures[:<share>]"`.
        seed: of the random folds and of the choice of mixtures.

    Raises:
        InputError: a form that is none of these, an unknown column, a value that does not fit the
            column, or a division with nothing to fit or nothing to predict.
    """
    text = holdout.strip()
    name, _, argument = text.partition(":")
    if text == "largest-params":
        return [_split(runs, runs.params == runs.params.max(), text)]
    if text == "largest-tokens":
        return [_split(runs, runs.tokens == runs.tokens.max(), text)]
    if name == "folds":
        return _folds(runs, argument, seed)
    if name == "unseen-mixtures":
        return [_split(runs, _unseen(runs, argument, seed), text)]
    return [_split(runs, matches(runs, text), text)]


def divide(
    runs: RunTable, holdout: str | None, test: RunTable | None, seed: int
) -> tuple[list[tuple[RunTable, RunTable]], str]:
    """Pairs of tables, one to fit and one to predict, and what is held out in words.

    Args:
        runs: the table.
        holdout: as in `splits`; `DEFAULT` when neither is given.
        test: a table to predict with all of `runs` fitted, instead of a holdout.
        seed: of random divisions.

    Raises:
        InputError: both are given; `test` has other families or targets, or fitted runs in it; and
            everything that `splits` raises.
    """
    if test is None:
        what = DEFAULT if holdout is None else holdout
        found = splits(runs, what, seed)
        return [(runs.take(each.fitted), runs.take(each.held_out)) for each in found], what
    if holdout is not None:
        raise InputError(
            f"expected {option('holdout')} or {option('test')}, not both; got {holdout!r} and "
            f"{len(test)} test runs; leave one of them out"
        )
    return [(runs, _aligned(test, runs))], counted(len(test), "given run")


def _aligned(test: RunTable, runs: RunTable) -> RunTable:
    """The test runs with families and targets in the order of the fitted runs."""
    for what in ("families", "targets"):
        mine, other = getattr(runs, what), getattr(test, what)
        if set(mine) != set(other):
            raise InputError(
                f"expected test runs with the same {what} as the fitted runs "
                f"({', '.join(mine)}); got {', '.join(other)}"
            )
    families = [test.families.index(name) for name in runs.families]
    targets = [test.targets.index(name) for name in runs.targets]
    test = replace(
        test,
        families=runs.families,
        ratios=test.ratios[:, families],
        targets=runs.targets,
        losses=test.losses[:, targets],
        bytes_per_token=None if test.bytes_per_token is None else test.bytes_per_token[:, targets],
        unique_tokens=None if test.unique_tokens is None else test.unique_tokens[families],
    )
    seen = set(_fingerprints(runs))
    again = [name for name, row in zip(test.run, _fingerprints(test), strict=True) if row in seen]
    if again:
        raise InputError(
            f"expected test runs that were not fitted; {len(again)} of them are in the fitted "
            f"table too, N, D, ratios and losses alike: {', '.join(again[:5])}; remove them there"
        )
    return test


def _fingerprints(runs: RunTable) -> list[bytes]:
    columns = (runs.params[:, None], runs.tokens[:, None], runs.ratios, runs.losses)
    return [row.tobytes() for row in np.concatenate(columns, axis=1)]


def matches(runs: RunTable, condition: str) -> Bool[np.ndarray, " runs"]:
    """For which runs a condition such as `"params>=1e9 and seed==0"` is true."""
    found = np.zeros(len(runs), dtype=bool)
    for alternative in re.split(r"\s+or(?:\s+|$)", condition):
        together = np.ones(len(runs), dtype=bool)
        for term in re.split(r"\s+and(?:\s+|$)", alternative):
            together &= _term(runs, term, condition)
        found |= together
    return found


def _term(runs: RunTable, term: str, condition: str) -> Bool[np.ndarray, " runs"]:
    parts = _TERM.fullmatch(term)
    if parts is None:
        raise InputError(
            f"holdout {condition!r}: expected <column> <op> <value> with one of "
            f"{' '.join(_COMPARE)}, joined by and / or; got {term.strip()!r}; for example {_FORMS}"
        )
    frame = runs.to_frame().drop(columns=[f"loss_{target}" for target in runs.targets])
    column, op, value = parts["column"], parts["op"], parts["value"]
    if column not in frame.columns:
        raise InputError(
            f"holdout {condition!r}: expected a column out of {', '.join(map(str, frame.columns))}"
            f"; got {column!r}"
        )
    cells = pd.Series(frame[column])
    if pd.api.types.is_bool_dtype(cells):
        cells = cells.astype(str)
    if pd.api.types.is_numeric_dtype(cells):
        return _COMPARE[op](cells.to_numpy(float), _number(value, column, condition))
    if op not in ("==", "!=", "="):
        raise InputError(
            f"holdout {condition!r}: column {column} holds words, which only == and != can "
            f"compare; got {op!r}"
        )
    return _COMPARE[op](cells.astype(str).to_numpy(str), value.strip("\"'"))


def _number(value: str, column: str, condition: str) -> float:
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parse_count(value)
    except InputError as error:
        raise InputError(
            f"holdout {condition!r}: expected a number to compare {column} with, such as 1e9, 1B "
            f"or 0.25; got {value!r}"
        ) from error


def _folds(runs: RunTable, argument: str, seed: int) -> list[Split]:
    groups = _repetitions(runs)
    count = int(groups.max()) + 1
    if count < 2:
        raise InputError(
            f"expected two runs at least that differ in more than their seed, got {count}: one to "
            "fit and one to predict"
        )
    if not argument.isdecimal() or not 2 <= int(argument) <= count:
        raise InputError(
            f"expected folds:<k> with k from 2 to {count} (the number of runs, not counting "
            f"seeds), such as 'folds:{min(5, count)}'; got {'folds:' + argument!r}"
        )
    fold = np.random.default_rng(seed).permutation(count) % int(argument)
    mine = fold[groups]
    return [_split(runs, mine == k, f"folds:{argument}") for k in range(int(argument))]


def _unseen(runs: RunTable, argument: str, seed: int) -> Bool[np.ndarray, " runs"]:
    try:
        share = float(argument) if argument else _SHARE
    except ValueError:
        share = np.nan
    if not 0 < share < 1:
        raise InputError(
            f"expected unseen-mixtures:<share> with a share between 0 and 1, such as "
            f"'unseen-mixtures:0.2'; got {'unseen-mixtures:' + argument!r}"
        )
    groups = runs.mixtures()
    count = int(groups.max()) + 1
    chosen = np.random.default_rng(seed).permutation(count)[: max(1, round(share * count))]
    return np.isin(groups, chosen)


def _repetitions(runs: RunTable) -> Int[np.ndarray, " runs"]:
    """A number for every distinct (N, D, mixture)."""
    pairs = np.stack([runs.cells(), runs.mixtures()], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


def _split(runs: RunTable, held_out: Bool[np.ndarray, " runs"], holdout: str) -> Split:
    count = int(held_out.sum())
    if count in (0, len(runs)):
        what = "no run" if count == 0 else f"all {count} runs"
        raise InputError(
            f"holdout {holdout!r}: expected some runs to hold out and some to fit; it holds out "
            f"{what} of: {runs}; change the condition, for example {_FORMS}"
        )
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out))
