"""Writing files so that nothing is lost: a temporary name beside the target, then a rename.

A reader therefore sees the old content or the new, never half of it, also after a kill or on a full
disk.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from apportion.errors import InputError


def check_writable(path: str | Path) -> None:
    """Refuse a path that `atomic_write` would refuse, before the work whose result goes there.

    What only shows when it is written (a disk that fills up meanwhile) is left to `atomic_write`.

    Raises:
        InputError: as `atomic_write`.
    """
    target = Path(path)
    try:
        _require_file(target)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(descriptor)
        os.unlink(temporary)
    except OSError as error:
        raise _unwritable(target, error) from error


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Generator[IO[Any]]:
    """Open a temporary file beside `path` and move it over `path` when the block ends well.

    Args:
        path: the target; its folder must exist.
        mode: `"w"` for UTF-8 text, `"wb"` for bytes.

    Raises:
        InputError: the folder is missing or cannot be written, the disk is full, or `path` is
            something other than a file.
    """
    with (
        _beside(path) as (descriptor, _),
        os.fdopen(
            descriptor,
            mode,
            encoding=None if "b" in mode else "utf-8",
            newline=None if "b" in mode else "",
        ) as handle,
    ):
        yield handle
        handle.flush()
        os.fsync(handle.fileno())


@contextmanager
def atomic_path(path: str | Path) -> Generator[Path]:
    """As `atomic_write`, for what opens files by their names: gives that of the temporary file.

    Raises:
        InputError: as `atomic_write`.
    """
    with _beside(path) as (descriptor, temporary):
        os.close(descriptor)
        yield temporary
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())


@contextmanager
def _beside(path: str | Path) -> Generator[tuple[int, Path]]:
    """An open temporary file, to be closed inside the block; then it is moved over `path`."""
    target = Path(path)
    temporary: str | None = None
    try:
        _require_file(target)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        yield descriptor, Path(temporary)
        # mkstemp makes files private; give the result the mode an ordinary open() would have.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _require_file(target: Path) -> None:
    # A rename over a device would replace it, and over a folder would fail with a riddle.
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a device, pipe or socket"
        raise InputError(f"cannot write {target}: expected the name of a file, got {kind}")


def _unwritable(target: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write {target}: {error.strerror or error}; "
        "expected an existing folder with write permission and free space, "
        "so name another output path"
    )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path) as handle:
        handle.write(text)


def write_json(path: str | Path, value: Any) -> None:
    """Write strict JSON atomically (NaN and infinity are refused)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read strict JSON.

    Raises:
        InputError: the file is missing, is not UTF-8, or is not JSON (with line and column).
    """
    source = Path(path)
    try:
        return json.loads(
            # utf-8-sig: some editors put a byte order mark before the text.
            source.read_text(encoding="utf-8-sig"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: expected UTF-8 JSON, found a byte that is not UTF-8 at offset {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source}, line {error.lineno}, column {error.colno}: "
            f"expected JSON, but {error.msg[:1].lower()}{error.msg[1:]}"
        ) from error
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{source}: expected plain JSON, found it nested too deeply") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected finite numbers, found {name}")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)
