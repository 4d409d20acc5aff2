"""What can go wrong in the user's input, and how it is said.

Every message names three things: what was expected, what came, and the corrected form. The command
line prints an `InputError` without a traceback and leaves with exit code 1.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class InputError(ValueError):
    """The user's data, file or request is wrong; the message says how to put it right."""


class MissingExtraError(InputError):
    """An optional package is needed for what was asked."""


class WeakFitError(InputError):
    """The fit does not support what was asked of it; `force=True` overrides."""


class InputWarning(UserWarning):
    """The input can be used, but the user should know something about it."""


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
