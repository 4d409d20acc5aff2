"""A fit as one JSON file: the law, the parameters, the bootstrap and the runs they came from.

Loading checks the layout field by field, and then that the parameters still reach the stored
objective on the stored runs: a file edited by hand is noticed, not trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

import apportion
from apportion.errors import InputError
from apportion.files import read_json, write_json
from apportion.mixture.laws import get_law
from apportion.mixture.runs import RunTable
from apportion.mixture.solver import huber

if TYPE_CHECKING:
    from apportion.mixture.result import Fit

_FORMAT = 1
Matrix = list[list[float]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Runs(_Strict):
    run: list[str]
    params: list[float]
    tokens: list[float]
    families: list[str]
    ratios: Matrix
    targets: list[str]
    losses: Matrix
    seed: list[int] | None
    bytes_per_token: Matrix | None
    unique_tokens: list[float | None] | None
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
    level: float
    seed: int
    theta: Matrix
    objective: list[float]
    samples: list[Matrix] | None
    status: _Status
    runs: _Runs


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
    write_json(path, content.model_dump())


def load(path: str | Path) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Raises:
        InputError: not such a file, another format, a wrong field (named), or parameters that do
            not belong to the stored runs.
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
        raise InputError(
            f"{path}, field {where}: {first['msg']}; restore the file or fit the runs again"
        ) from error
    runs = _table(path, content.runs)
    law = get_law(content.law)
    used = np.stack([law.usable(runs.conditions(target)) for target in runs.targets])
    theta = _array(path, "theta", content.theta, (len(runs.targets), _width(law.name, runs)))
    samples = None
    if content.samples is not None:
        shape = (len(content.samples), *theta.shape)
        samples = _array(path, "samples", content.samples, shape)
    objective = _array(path, "objective", content.objective, (len(runs.targets),))
    stated = content.status
    status = Status(stated.ok, stated.text, tuple(stated.notes), tuple(stated.undetermined))
    fit = Fit(law, runs, theta, objective, used, samples, status, content.level, content.seed)
    _check_belongs(path, fit)
    return fit


def _width(law: str, runs: RunTable) -> int:
    return len(get_law(law).parameters(len(runs.families)))


def _check_belongs(path: str | Path, fit: Fit) -> None:
    reached = np.nansum(huber(np.nan_to_num(fit.residuals())), axis=0)
    wrong = np.abs(reached - fit.objective) > 1e-6 * np.abs(fit.objective) + 1e-12
    if wrong.any():
        target = fit.targets[int(np.flatnonzero(wrong)[0])]
        raise InputError(
            f"{path}: the parameters of {target} do not reach the stored objective on the stored "
            "runs, so the file was changed after it was saved; fit the runs again"
        )


def _table(path: str | Path, stored: _Runs) -> RunTable:
    count, families, targets = len(stored.run), len(stored.families), len(stored.targets)
    unique = stored.unique_tokens
    return RunTable(
        run=tuple(stored.run),
        params=_array(path, "runs.params", stored.params, (count,)),
        tokens=_array(path, "runs.tokens", stored.tokens, (count,)),
        families=tuple(stored.families),
        ratios=_array(path, "runs.ratios", stored.ratios, (count, families)),
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


def _array(path: str | Path, name: str, value: object, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.array(value, dtype=float)
    except ValueError:
        array = np.empty(0)
    if array.shape != shape:
        raise InputError(
            f"{path}, field {name}: expected shape {shape}, got rows of another length; "
            "restore the file or fit the runs again"
        )
    return array


def _plain(value: object) -> str | float | int | bool | None:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return None
    return value if isinstance(value, str | float | int | bool) else str(value)
