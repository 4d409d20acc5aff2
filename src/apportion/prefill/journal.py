"""What a long call has done so far, a JSON line at a time, so that a kill loses nothing of it.

The first line says which call it is; another one does not go on with it. A line that was torn by
the kill is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion.errors import InputError
from apportion.files import append_whole


def beside(out: Path) -> Path:
    """The journal of an output."""
    return out.with_name(out.name + ".part")


class Journal:
    """Entries of a call, by number.

    Attributes:
        path: of the file.
        entries: so far.
    """

    def __init__(self, path: Path, call: Mapping[str, Any]) -> None:
        """The journal at a path, begun if there is none.

        Args:
            path: of the file.
            call: what must be the same to go on.

        Raises:
            InputError: the journal of another call, or a file that can't be read or written.
        """
        self.path = path
        plain = json.dumps(call, sort_keys=True, default=str)
        head = {"journal": 1, "call": hashlib.sha256(plain.encode()).hexdigest()}
        whole = self._whole_lines(head)
        if whole and whole[0] != head:
            raise InputError(
                f"expected {path} to belong to this call, it was begun by one with another model, "
                "other documents, questions or options; repeat that call, or remove the file"
            )
        self.entries = {line["number"]: line for line in whole[1:]}
        # Written with the first entry: a call that fails before binds no other.
        self._head = [] if whole else [head]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write one down; `number` says which."""
        append_whole(self.path, b"".join(map(line_of, [*self._head, entry])))
        self._head = []
        self.entries[entry["number"]] = dict(entry)

    def close(self) -> None:
        """Remove it: all is done."""
        self.path.unlink(missing_ok=True)

    def _whole_lines(self, head: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The lines that are whole; what comes behind them is cut off."""
        if not self.path.exists():
            return []
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error
        if not data.startswith(line_of(head)[:_MARK]) and not line_of(head).startswith(data):
            raise InputError(f"expected a journal, got another file: {self.path}; remove it")
        kept, lines = 0, []
        for line in data.splitlines(keepends=True):
            value = _entry(line, "call" if not lines else "number")
            if value is None:
                break
            lines.append(value)
            kept += len(line)
        if kept < len(data):
            os.truncate(self.path, kept)
        return lines


_MARK = len('{"journal": 1, ')


def line_of(value: Mapping[str, Any]) -> bytes:
    """As JSON; what no UTF-8 can hold, such as bytes of a file's name, as its escape."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _entry(line: bytes, key: str) -> dict[str, Any] | None:
    """A line that is whole and has a key; None for any other."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(value, dict) and key in value
    if not whole or (key == "number" and type(value[key]) is not int):
        return None
    return value
