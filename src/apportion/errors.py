"""What can go wrong in the user's input, and how it is said.

Every message names three things: what was expected, what came, and the corrected form. The command
line prints an `InputError` without a traceback and leaves with exit code 1.

A message that names an option writes it with `option`, which knows whether the reader typed Python
or a command line. Refused: rewriting finished messages in the command line; names of the user's
families and files would be rewritten too.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import EllipsisType, ModuleType

# Options that the command line calls otherwise; None while the caller writes Python.
_COMMAND_LINE: ContextVar[Mapping[str, str] | None] = ContextVar("command line", default=None)


class InputError(ValueError):
    """The user's data, file or request is wrong; the message says how to put it right."""


class MissingExtraError(InputError):
    """An optional package is needed for what was asked."""


class WeakFitError(InputError):
    """The fit does not support what was asked of it; `force=True` overrides."""


class InputWarning(UserWarning):
    """The input can be used, but the user should know something about it."""


@contextmanager
def command_line(names: Mapping[str, str]) -> Generator[None]:
    """Messages made inside name the options of the command line.

    Args:
        names: keywords whose option has another name, such as `{"floors": "floor"}`.
    """
    token = _COMMAND_LINE.set(names)
    try:
        yield
    finally:
        _COMMAND_LINE.reset(token)


def option(name: str, value: object = None) -> str:
    """How the reader of a message gives an option: `max_epochs=4`, or `--max-epochs 4`.

    Args:
        name: the keyword in Python.
        value: what to give, `...` for something; a mapping is shown as the beginning of one.
            Without it only the name is said.
    """
    names = _COMMAND_LINE.get()
    if names is None:
        return name if value is None else f"{name}={_in_python(value)}"
    flag = "--" + names.get(name, name).replace("_", "-")
    return flag if value is None or value is True else f"{flag} {_in_shell(value)}"


def _in_python(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{k}": {_in_python(v)}' for k, v in value.items()) + ", …}"
    return f'"{value}"' if isinstance(value, str) else _plain(value)


def _in_shell(value: object) -> str:
    if isinstance(value, Mapping):
        shown = ",".join(f"{name}={_in_shell(each)}" for name, each in value.items())
        # `slavic=…` is the form of one entry, `slavic=3e9,…` an example of several.
        return shown if all(each is ... for each in value.values()) else f"{shown},…"
    return _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, EllipsisType):
        return "…"
    # 3e9, as one writes it, not 3e+09.
    return re.sub(r"e\+0*", "e", f"{value:g}") if isinstance(value, float) else str(value)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    Args:
        module: dotted module name, for example `"matplotlib.pyplot"`.
        extra: the extra of this package that installs it, for example `"plot"`.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtraError(
            f"this needs the package {error.name!r}, which is not installed; "
            f"install it with: pip install 'apportion[{extra}]'"
        ) from error
