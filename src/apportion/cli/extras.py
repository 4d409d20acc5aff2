"""What an optional part of the package lacks, in words."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from apportion.errors import MissingExtraError


@contextmanager
def brought_by(extra: str) -> Generator[None]:
    """Imports of a part of this package whose own imports come with an extra.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("apportion"):
            raise
        raise MissingExtraError(
            f"this needs the package {error.name!r}, which is not installed; "
            f"install it with: pip install 'apportion[{extra}]'"
        ) from error
