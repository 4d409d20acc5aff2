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
        self.entries: dict[int, dict[str, Any]] = {}
        whole = self._whole_lines()
        if whole and whole[0] != head:
            raise InputError(
                f"expected {path} to belong to this call, it was begun by one with another model, "
                "other documents, questions or options; repeat that call, or remove the file"
            )
        self.entries = {int(line["number"]): line for line in whole[1:]}
        # Written with the first entry: a call that fails before binds no other.
        self._head = [] if whole else [head]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write one down; `number` says which."""
        self._append([*self._head, entry])
        self._head = []
        self.entries[int(entry["number"])] = dict(entry)

    def close(self) -> None:
        """Remove it: all is done."""
        self.path.unlink(missing_ok=True)

    def _whole_lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error
        kept, lines = 0, []
        for line in data.splitlines(keepends=True):
            try:
                value = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n") or not isinstance(value, dict):
                break
            lines.append(value)
            kept += len(line)
        if kept < len(data):
            if lines and "journal" not in lines[0]:
                lines = []
            if not lines:
                raise InputError(f"expected a journal, got another file: {self.path}; remove it")
            os.truncate(self.path, kept)
        return lines

    def _append(self, lines: list[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            with self.path.open("ab") as handle:
                handle.write(text.encode())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror or error}; expected an existing folder "
                "with write permission and free space"
            ) from error
