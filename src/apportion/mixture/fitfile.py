"""A fit as one JSON file: the law, the parameters, the bootstrap and the runs they came from.

Loading checks every field by itself (`_File`), then against the others (their lengths, names and
bounds), then that the parameters still reach the stored objective on the stored runs, and last the
checksum of all of it: a file edited by hand is noticed, not trusted.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import apportion
from apportion.budget import MOST_PARAMS, MOST_TOKENS
from apportion.errors import InputError
from apportion.files import read_json, write_json
from apportion.mixture.laws import Law, get_law
from apportion.mixture.runs import RunTable
from apportion.mixture.solver import huber

if TYPE_CHECKING:
    from apportion.mixture.result import Fit

_FORMAT = 1
Matrix = list[list[float]]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]
Name = Annotated[str, Field(min_length=1)]
# What rounding may do to a sum of ratios, and to a parameter at its bound.
_ROUNDING = 1e-6


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Runs(_Strict):
    run: Annotated[list[Name], Field(min_length=1)]
    params: list[Annotated[float, Field(gt=0, le=MOST_PARAMS)]]
    tokens: list[Annotated[float, Field(gt=0, le=MOST_TOKENS)]]
    families: Annotated[list[Name], Field(min_length=1)]
    ratios: list[list[Share]]
    targets: Annotated[list[Name], Field(min_length=1)]
    losses: list[list[Positive]]
    seed: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] | None
    bytes_per_token: list[list[Positive]] | None
    unique_tokens: list[Positive | None] | None
    extra: dict[str, list[str | float | int | bool | None]] | None


class _Status(_Strict):
    ok: bool
    text: str
    notes: list[str]
    undetermined: list[tuple[str, str]]


class _File(_Strict):
    format: Literal[1]
    apportion: str
    law: str
    level: Annotated[float, Field(gt=0, lt=1)]
    seed: Annotated[int, Field(ge=0)]
    theta: Matrix
    objective: list[Annotated[float, Field(ge=0)]]
    samples: Annotated[list[Matrix], Field(min_length=1)] | None
    status: _Status
    runs: _Runs
    sha256: str = ""


def save_fit(fit: Fit, path: str | Path) -> None:
    """Write a fit atomically as JSON.

    Raises:
        InputError: the path cannot be written.
    """
    runs = fit.runs
    unique = runs.unique_tokens
    extra = None
    if runs.extra is not None:
        extra = {
            str(name): [_plain(value) for value in runs.extra[name].tolist()]
            for name in runs.extra.columns
        }
    content = _File(
        format=_FORMAT,
        apportion=apportion.__version__,
        law=fit.law.name,
        level=fit.level,
        seed=fit.seed,
        theta=fit.theta.tolist(),
        objective=fit.objective.tolist(),
        samples=None if fit.samples is None else fit.samples.tolist(),
        status=_Status(
            ok=fit.status.ok,
            text=fit.status.text,
            notes=list(fit.status.notes),
            undetermined=list(fit.status.undetermined),
        ),
        runs=_Runs(
            run=list(runs.run),
            params=runs.params.tolist(),
            tokens=runs.tokens.tolist(),
            families=list(runs.families),
            ratios=runs.ratios.tolist(),
            targets=list(runs.targets),
            losses=runs.losses.tolist(),
            seed=None if runs.seed is None else runs.seed.tolist(),
            bytes_per_token=(
                None if runs.bytes_per_token is None else runs.bytes_per_token.tolist()
            ),
            # JSON has no infinity: unlimited supply is written as null.
            unique_tokens=(
                None if unique is None else [v if np.isfinite(v) else None for v in unique.tolist()]
            ),
            extra=extra,
        ),
    )
    fields = content.model_dump()
    write_json(path, fields | {"sha256": _checksum(fields)})


def load(path: str | Path) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Raises:
        InputError: not such a file, another format, a wrong field (named), parameters that do
            not belong to the stored runs, or anything changed since the file was saved.
    """
    from apportion.mixture.result import Fit, Status

    raw = read_json(path)
    if not isinstance(raw, dict) or "format" not in raw or "law" not in raw:
        raise InputError(
            f"{path}: expected a fit written by `apportion mixture fit … -o FIT.json`; "
            "this JSON is something else"
        )
    if raw["format"] != _FORMAT:
        raise InputError(
            f"{path}: expected format {_FORMAT}, got {raw['format']!r} (written by apportion "
            f"{raw.get('apportion', 'unknown')}, this is {apportion.__version__}); "
            "fit the runs again with this version"
        )
    try:
        content = _File.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        _refuse(path, where, f"{message}, got {str(first['input'])[:60]!r}")
    runs = _table(path, content.runs)
    try:
        law = get_law(content.law)
    except InputError as error:
        _refuse(path, "law", str(error))
    used = np.stack([law.usable(runs.conditions(target)) for target in runs.targets])
    theta = _array(path, "theta", content.theta, (len(runs.targets), _width(law.name, runs)))
    samples = None
    if content.samples is not None:
        shape = (len(content.samples), *theta.shape)
        samples = _array(path, "samples", content.samples, shape)
    objective = _array(path, "objective", content.objective, (len(runs.targets),))
    for field, values in (("theta", theta), ("samples", samples)):
        if values is not None:
            _check_bounds(path, field, law, runs, values)
    stated = content.status
    _check_undetermined(path, law, runs, stated.undetermined)
    status = Status(stated.ok, stated.text, tuple(stated.notes), tuple(stated.undetermined))
    fit = Fit(law, runs, theta, objective, used, samples, status, content.level, content.seed)
    _check_belongs(path, fit)
    if content.sha256 != _checksum(raw):
        _refuse(
            path,
            "sha256",
            "the checksum is not that of the other fields, so the file was changed after it was "
            "saved (or an earlier version saved it, without one)",
        )
    return fit


def _checksum(fields: dict[str, Any]) -> str:
    """SHA-256 of all fields but the checksum, independent of their order and of white space."""
    rest = {name: value for name, value in fields.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse(path: str | Path, field: str, what: str) -> NoReturn:
    raise InputError(f"{path}, field {field}: {what}; restore the file or fit the runs again")


def _width(law: str, runs: RunTable) -> int:
    return len(get_law(law).parameters(len(runs.families)))


def _check_bounds(
    path: str | Path, field: str, law: Law, runs: RunTable, values: np.ndarray
) -> None:
    """Every parameter within the bounds of the law."""
    stated = law.parameters(len(runs.families))
    lower, upper = (np.array([getattr(p, end) for p in stated]) for end in ("lower", "upper"))
    bad = np.argwhere((values < lower - _ROUNDING) | (values > upper + _ROUNDING))
    if len(bad):
        *before, q = (int(index) for index in bad[0])
        place = ".".join(str(index) for index in (field, *before, q))
        _refuse(
            path,
            place,
            f"expected {stated[q].symbol} of {runs.targets[before[-1]]} between {lower[q]:g} and "
            f"{upper[q]:g}, got {values[(*before, q)]:g}",
        )


def _check_undetermined(
    path: str | Path, law: Law, runs: RunTable, pairs: list[tuple[str, str]]
) -> None:
    """Every parameter that is called undetermined is one of the fit's."""
    symbols = [p.symbol for p in law.parameters(len(runs.families))]
    for number, (target, symbol) in enumerate(pairs):
        for place, name, known in ((0, target, runs.targets), (1, symbol, symbols)):
            if name not in known:
                _refuse(
                    path,
                    f"status.undetermined.{number}.{place}",
                    f"expected one of {', '.join(known)}, got {name!r}",
                )


def _check_belongs(path: str | Path, fit: Fit) -> None:
    reached = np.nansum(huber(np.nan_to_num(fit.residuals())), axis=0)
    wrong = np.abs(reached - fit.objective) > 1e-6 * np.abs(fit.objective) + 1e-12
    if wrong.any():
        target = fit.targets[int(np.flatnonzero(wrong)[0])]
        raise InputError(
            f"{path}: the parameters of {target} (field theta) do not reach the stored objective "
            "(field objective) on the stored runs (field runs), so the file was changed after it "
            "was saved, or an earlier version had another form of the law; restore it or fit the "
            "runs again"
        )


def _table(path: str | Path, stored: _Runs) -> RunTable:
    count, families, targets = len(stored.run), len(stored.families), len(stored.targets)
    unique = stored.unique_tokens
    _check_names(path, stored)
    for field, values, expected in (
        ("seed", stored.seed, count),
        ("unique_tokens", unique, families),
        *((f"extra.{name}", column, count) for name, column in (stored.extra or {}).items()),
    ):
        if values is not None and len(values) != expected:
            _refuse(path, f"runs.{field}", f"expected {expected} values, got {len(values)}")
    ratios = _array(path, "runs.ratios", stored.ratios, (count, families))
    off = np.flatnonzero(np.abs(ratios.sum(axis=1) - 1) > _ROUNDING)
    if len(off):
        _refuse(
            path,
            f"runs.ratios.{off[0]}",
            f"expected ratios that sum to 1, got a sum of {ratios[off[0]].sum():.6g}",
        )
    return RunTable(
        run=tuple(stored.run),
        params=_array(path, "runs.params", stored.params, (count,)),
        tokens=_array(path, "runs.tokens", stored.tokens, (count,)),
        families=tuple(stored.families),
        ratios=ratios,
        targets=tuple(stored.targets),
        losses=_array(path, "runs.losses", stored.losses, (count, targets)),
        seed=None if stored.seed is None else np.array(stored.seed, dtype=np.int64),
        bytes_per_token=(
            None
            if stored.bytes_per_token is None
            else _array(path, "runs.bytes_per_token", stored.bytes_per_token, (count, targets))
        ),
        unique_tokens=(
            None
            if unique is None
            else np.array([np.inf if v is None else v for v in unique], dtype=float)
        ),
        extra=None if stored.extra is None else pd.DataFrame(stored.extra),
    )


def _check_names(path: str | Path, stored: _Runs) -> None:
    """Runs, families and targets once each, and targets that are families."""
    for field in ("run", "families", "targets"):
        names: list[str] = getattr(stored, field)
        first = {name: number for number, name in reversed(list(enumerate(names)))}
        twice = [number for number, name in enumerate(names) if first[name] != number]
        if twice:
            _refuse(
                path,
                f"runs.{field}.{twice[0]}",
                f"expected every name once, got {names[twice[0]]!r} again",
            )
    for number, target in enumerate(stored.targets):
        if target not in stored.families:
            _refuse(
                path,
                f"runs.targets.{number}",
                f"expected a family out of {', '.join(stored.families)}, got {target!r}",
            )


def _array(path: str | Path, name: str, value: object, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.array(value, dtype=float)
    except ValueError:
        array = np.empty(0)
    if array.shape != shape:
        _refuse(path, name, f"expected shape {shape}, got rows of another length")
    return array


def _plain(value: object) -> str | float | int | bool | None:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return None
    return value if isinstance(value, str | float | int | bool) else str(value)
