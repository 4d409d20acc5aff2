"""Checkpoints that are whole or not there, and whose run is known.

A checkpoint is written under another name and gets its own by a rename, after all its bytes are on
the disk. A kill or a full disk in between leaves the one before.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

STAGING = ".saving"
_NAME = re.compile(r"checkpoint-(\d+)")


@contextmanager
def staged(folder: Path) -> Generator[Path]:
    """A folder to write into; what it holds moves to `folder` when the block ends well.

    Raises:
        OSError: it can't be written, or moved.
    """
    work = folder / STAGING
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield work
        for path in sorted(work.rglob("*"), reverse=True):
            _sync(path)
        # What tells readers that a folder holds a model comes last.
        for path in sorted(work.iterdir(), key=lambda path: (path.suffix == ".json", path.name)):
            target = folder / path.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(path, target)
        _sync(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def could_not_write(error: Exception) -> bool:
    """Whether an error is that of a disk, or what torch and safetensors make of one."""
    from safetensors import SafetensorError

    return isinstance(error, OSError | SafetensorError) or (
        isinstance(error, RuntimeError) and "write" in str(error)
    )


def unwritten(folder: Path, error: Exception) -> str:
    """What is said then, and what is left."""
    left = checkpoints(folder)
    kept = f"the last good one is {left[-1]}" if left else "there is none before it"
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return (
        f"cannot write a checkpoint to {folder}: {reason}; {kept}; make room on the disk, and the "
        "same command goes on from there"
    )


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, the oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("checkpoint-*") if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def rotate(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the last `keep`."""
    for path in checkpoints(folder)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
