"""What users write on the command line: shares and weights per family, groups, paths, runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apportion.budget import parse_count, parse_params, parse_tokens
from apportion.errors import InputError
from apportion.files import read_json

_RATIO = "ratio_"
_FORM = "romance=0.3,slavic=0.7 or the name of a JSON or CSV file"


def pairs(text: str, what: str, example: str) -> dict[str, str]:
    """`"a=1,b=2"` as a dictionary.

    Raises:
        InputError: a part without `=`, an empty name, or a name that is given twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and name and value):
            raise InputError(f"expected {what} as NAME=VALUE,… such as {example}; got {part!r}")
        if name in found:
            raise InputError(f"expected every name once in {what}; {name!r} is given twice")
        found[name] = value
    return found


def shares(text: str | None, what: str = "ratios") -> dict[str, float]:
    """Numbers per family: `romance=.3,slavic=.7`, or a JSON or CSV file that has them.

    A file is a JSON object of numbers, what `optimize -o` writes, or a CSV: two columns family and
    ratio, or one row with columns `ratio_<family>`.

    Raises:
        InputError: anything else, with the form that is expected.
    """
    if text is None:
        return {}
    if not text.strip():
        raise InputError(f"expected {what} as {_FORM}; got nothing")
    if "=" not in text:
        found = _from_file(Path(text), what)
    else:
        found = pairs(text, what, "romance=0.3,slavic=0.7 (or a JSON or CSV file)")
    return {name: _number(value, f"{what} of {name}") for name, value in found.items()}


def objective_of(text: str) -> str | dict[str, float]:
    """The name of an objective, or the weights of one."""
    return shares(text, "weights") if "=" in text else text


def optimum_file(text: str) -> dict[str, Any]:
    """`tokens`, `supply` and `max_epochs` of a file that `optimize -o` wrote; else nothing."""
    if "=" in text or not text.endswith(".json") or not Path(text).is_file():
        return {}
    value = read_json(text)
    names = ("tokens", "supply", "max_epochs")
    return {name: value.get(name) for name in names} if isinstance(value, dict) else {}


def paths(items: Sequence[str]) -> dict[str, list[str]]:
    """`FAMILY=PATH`, one each; a family may have several paths.

    Raises:
        InputError: an item of another form.
    """
    found: dict[str, list[str]] = {}
    for item in items:
        family, equals, path = item.partition("=")
        if not (family and equals and path):
            raise InputError(f"expected --path FAMILY=PATH such as romance=/data/fr; got {item!r}")
        found.setdefault(family, []).append(path)
    return found


def repeated(items: Sequence[str] | None, what: str, example: str) -> dict[str, str]:
    """An option that may be given several times, each as `NAME=VALUE` or several with commas."""
    found: dict[str, str] = {}
    for item in items or ():
        for name, value in pairs(item, what, example).items():
            if name in found:
                raise InputError(f"expected every name once in {what}; {name!r} is given twice")
            found[name] = value
    return found


def request(text: str) -> tuple[float, float, dict[str, float]]:
    """`"1.2B:50B:romance=.3,slavic=.7"` as (N, D, ratios).

    Raises:
        InputError: not of that form.
    """
    parts = text.split(":", 2)
    if len(parts) != 3:
        raise InputError(
            "expected a request as PARAMS:TOKENS:RATIOS such as 1.2B:50B:romance=.3,slavic=.7; "
            f"got {text!r}"
        )
    return parse_params(parts[0]), parse_tokens(parts[1]), shares(parts[2])


def number_or_name(text: str | None) -> int | str | None:
    """A whole number (also as `32k`), or else the name of a column."""
    if text is None:
        return None
    try:
        return round(parse_count(text))
    except InputError:
        return text


def _from_file(path: Path, what: str) -> dict[str, object]:
    if not path.exists():
        raise InputError(f"expected {what} as {_FORM}; there is no file {path}")
    if path.suffix.lower() == ".csv":
        return _from_csv(path, what)
    value = read_json(path)
    if isinstance(value, dict) and isinstance(value.get("ratios"), dict):
        value = value["ratios"]
    _refuse_other_files(path, value, what)
    if not isinstance(value, dict) or not value:
        raise InputError(f'{path}: expected {what} as a JSON object such as {{"romance": 0.3, …}}')
    return {str(name): each for name, each in value.items()}


def _refuse_other_files(path: Path, value: object, what: str) -> None:
    """Say what came, and the command that makes the right file, for other files of this program."""
    if not isinstance(value, dict):
        return
    if "theta" in value and "law" in value:
        raise InputError(
            f"{path}: expected {what}, and this is a fit; make ratios from it with "
            f"`apportion mixture optimize {path} --params 1.2B --tokens 50B -o ratios.json`"
        )
    if isinstance(value.get("kind"), str) and isinstance(value.get("tokens"), dict):
        raise InputError(
            f"{path}: expected {what}, and this is a supply, which counts tokens; "
            "it goes with --supply"
        )


def _from_csv(path: Path, what: str) -> dict[str, object]:
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected {what} as CSV in UTF-8, found a byte that is not UTF-8 at offset "
            f"{error.start}; save it as CSV (UTF-8)"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path}: expected {what} as CSV, but {error}") from error
    rows = [row for row in rows if row]
    head = [name.strip() for name in rows[0]] if rows else []
    named = [k for k, name in enumerate(head) if name.startswith(_RATIO)]
    if named and len(rows) == 2 and len(rows[1]) == len(head):
        return {head[k].removeprefix(_RATIO): rows[1][k] for k in named}
    if len(head) == 2 and len(rows) > 1 and all(len(row) == 2 for row in rows):
        return {name.strip(): value for name, value in rows[1:]}
    raise InputError(
        f"{path}: expected {what} as two columns (family,ratio) with one row a family, or one row "
        f"with columns ratio_<family>; found {len(head)} columns and {max(0, len(rows) - 1)} rows"
    )


def _number(value: object, what: str) -> float:
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found):
        hint = _without_percent(value)
        raise InputError(f"expected a number as {what}, got {value!r}{hint}")
    return found


def _without_percent(value: object) -> str:
    if not (isinstance(value, str) and value.endswith("%")):
        return ""
    try:
        return f"; write {float(value[:-1]) / 100:g}"
    except ValueError:
        return ""
