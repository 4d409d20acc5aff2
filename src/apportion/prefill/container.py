"""A safetensors file with a header of ours, checked before anything of it is used.

The header is JSON in the file's only metadata entry, with a sum before it; it holds the sum of all
tensors. A file that was cut or altered anywhere is told from a whole one. Refused: pickles, which
run code, and a folder of files, which come apart.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apportion.errors import InputError, require
from apportion.files import atomic_path

FORMAT = "apportion.prefill.context"
VERSION = 1

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them."""

# Of a tensor that is there: its dtype by safetensors' name, and its shape.
Spec = tuple[str, tuple[int, ...]]


def damaged(path: Path, what: str) -> InputError:
    """The error of a file that can't be what was written."""
    return InputError(
        f"{path}: expected a saved context as it was written, got a damaged one: {what}; "
        "save the context again"
    )


def looks_saved(path: str | Path) -> bool:
    """Whether a file is, or by its name should be, one of these."""
    if Path(path).suffix == ".safetensors":
        return True
    try:
        with Path(path).open("rb") as handle:
            return FORMAT.encode() in handle.read(100)
    except OSError:
        return False


def write(path: str | Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file whole or not at all.

    Args:
        path: of it; replaced if it is there.
        header: plain JSON.
        tensors: by name; dtypes as in `DTYPES`.

    Raises:
        InputError: it can't be written.
        MissingExtraError: safetensors is not installed.
    """
    safetensors = require("safetensors", "prefill")
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(
        {**header, "version": VERSION, "data": _sum(held)}, allow_nan=False, sort_keys=True
    )
    metadata = {FORMAT: f"{hashlib.sha256(text.encode()).hexdigest()} {text}"}
    with atomic_path(path) as temporary:
        try:
            require("safetensors.torch", "prefill").save_file(held, temporary, metadata=metadata)
        except safetensors.SafetensorError as error:
            raise InputError(f"cannot write {path}: {error}") from error


@dataclass(frozen=True)
class Opened:
    """A file whose header is whole.

    Attributes:
        path: of it.
        header: as it was given.
        specs: dtype and shape of every tensor; none has been read.
    """

    path: Path
    header: dict[str, Any]
    specs: dict[str, Spec]
    _file: Any

    def tensors(self) -> dict[str, Tensor]:
        """All tensors on the CPU, each in a storage of its own.

        Raises:
            InputError: they are not those that were written.
        """
        # Cloned: what is given is a view of the file, which may change under it.
        found = {name: self._file.get_tensor(name).clone() for name in sorted(self.specs)}
        if _sum(found) != self.header.get("data"):
            raise damaged(self.path, "its numbers are not those that were written")
        return found


@contextmanager
def opened(path: str | Path) -> Generator[Opened]:
    """Open a file and check its header; no tensor is read.

    Args:
        path: of it.

    Raises:
        InputError: no such file, one of something else, of another version, or damaged.
        MissingExtraError: safetensors is not installed.
    """
    file = Path(path)
    _check_file(file)
    safetensors = require("safetensors", "prefill")
    try:
        handle = safetensors.safe_open(str(file), framework="pt")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, RuntimeError) as error:
        raise damaged(file, f"it is no safetensors file ({error})") from error
    with handle as held:
        header = _header(file, held.metadata() or {})
        names: list[str] = held.keys()
        parts = {name: held.get_slice(name) for name in names}
        specs = {name: (p.get_dtype(), tuple(p.get_shape())) for name, p in parts.items()}
        yield Opened(file, header, specs, held)


def _check_file(path: Path) -> None:
    wanted = "expected a saved context (.safetensors)"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InputError(f"{wanted}, there is no {path}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
        raise InputError(f"{wanted}, got {kind}: {path}")


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if FORMAT not in metadata:
        raise InputError(
            f"{path}: expected a context that `save` has written, got a safetensors file of "
            "something else"
        )
    sum_, _, text = metadata[FORMAT].partition(" ")
    if hashlib.sha256(text.encode()).hexdigest() != sum_:
        raise damaged(path, "its header is not the one that was written")
    try:
        header = json.loads(text)
        version = header["version"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise damaged(path, "its header is no JSON object with a version") from error
    if version != VERSION:
        raise InputError(
            f"{path}: expected a saved context of version {VERSION}, got {version!r}; read the "
            "text again, or use the apportion that saved it"
        )
    return header


def _sum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and numbers of tensors on the CPU."""
    sum_ = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sum_.update(f"{name} {DTYPES[tensor.dtype]} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            sum_.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sum_.hexdigest()
