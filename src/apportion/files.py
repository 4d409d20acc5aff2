"""Writing files so that nothing is lost: a temporary name beside the target, then a rename.

A reader therefore sees the old content or the new, never half of it, also after a kill or on a full
disk.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import tempfile
from collections.abc import Generator, Iterator
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


@contextmanager
def only_writer(path: str | Path) -> Generator[None]:
    """Hold a lock beside `path`, so that no two processes add to one file.

    Raises:
        InputError: another one holds it, or its folder can't be written.
    """
    target = Path(path)
    try:
        handle = target.with_name(f".{target.name}.lock").open("w")
    except OSError as error:
        raise _unwritable(target, error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{target}: another process is writing it; wait for it") from error
        yield


def append_whole(path: str | Path, data: bytes) -> None:
    """Add bytes to the end of a file, all or none of them, synced.

    Raises:
        InputError: they can't be written; what is there is kept.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, data) != len(data):
                os.ftruncate(descriptor, size)
                raise OSError(28, "the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"cannot add to {path}: {error.strerror or error}; what is there is kept"
        ) from error


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


def json_lines(path: str | Path, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file that has one a line; empty lines are passed over.

    Args:
        path: UTF-8, with or without a byte order mark.
        wanted: what an object should have, for messages.

    Yields:
        Where it stands ("data.jsonl, line 3"), and the object.

    Raises:
        InputError: unreadable, not UTF-8, or a line that is no JSON object, by its number.
    """
    try:
        with open(path, "rb") as handle:
            offset = 0
            for number, raw in enumerate(handle, start=1):
                where = f"{path}, line {number}"
                text = utf8(raw, where, offset)
                offset += len(raw)
                text = text.removeprefix("\ufeff") if number == 1 else text
                if text.strip():
                    yield where, _json_object(text, where, wanted)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def utf8(raw: bytes, where: str, offset: int = 0) -> str:
    """Bytes as text.

    Args:
        raw: part of a file.
        where: the part, for messages.
        offset: of the part in the file.

    Raises:
        InputError: they are not UTF-8; says where.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: expected UTF-8, found the byte 0x{raw[error.start]:02x} at byte offset "
            f"{offset + error.start} of the file; convert it, for example with "
            "iconv -f latin1 -t utf-8"
        ) from error


def _json_object(text: str, where: str, wanted: str) -> dict[str, Any]:
    shown = text.strip()[:60]
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        hint = ""
        if shown in ("[", "{") or (shown.startswith("[") and "line 1" in where):
            hint = "; a file that is one JSON value is written one record a line: jq -c '.[]'"
        raise InputError(
            f"{where}, column {error.colno}: expected one JSON object with {wanted}, but "
            f"{error.msg[:1].lower()}{error.msg[1:]}; got {shown!r}{hint}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected one plain JSON object, but {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object with {wanted}, got {shown!r}")
    return value
