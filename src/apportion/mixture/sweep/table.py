"""The growing run table of a sweep and the manifest beside it.

One finished run is one whole line, written in one call and synced before the next
begins. After kill -9 the last line may be torn: it is recognised by its missing line
end, cut off on resume, and its run done again. The manifest holds what must not
change between the first row and the last; a sweep with another text, tokenizer or
recipe is refused instead of mixed in.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.errors import InputError
from apportion.files import append_whole, read_json, write_json, write_text


def manifest_path(out: Path) -> Path:
    """The manifest's place: ``runs.csv`` -> ``runs.manifest.json``."""
    return out.with_suffix(".manifest.json")


def agree(out: Path, manifest: Mapping[str, Any], fixed: Sequence[str]) -> None:
    """Write the manifest, or refuse if the one there differs in any of the ``fixed`` keys.

    Without rows there is nothing to keep to: the manifest of a sweep that trained nothing goes.
    """
    path = manifest_path(out)
    rows = out.exists() and out.stat().st_size > 0
    if not path.exists() or not rows:
        if rows:
            raise InputError(
                f"{out} has rows but no manifest {path.name}: it was not written by this sweep; "
                "name another output file"
            )
        write_json(path, dict(manifest))
        return
    before = read_json(path)
    for key in fixed:
        if before.get(key) != manifest[key]:
            raise InputError(
                f"{out}: cannot resume, {key} differs from {path.name}: expected "
                f"{before.get(key)!r}, got {manifest[key]!r}; name another output file, or "
                f"put the {key} back"
            )


def repair(out: Path) -> str | None:
    """Cut off a torn last line; returns what was cut, or None."""
    if not out.exists():
        return None
    data = out.read_bytes()
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return None
    write_text(out, data[:end].decode("utf-8"))
    return data[end:].decode("utf-8", "replace")


def finished(out: Path, columns: Sequence[str]) -> set[str]:
    """Runs that have a row. Raises InputError if the columns are not the sweep's."""
    if not out.exists() or not out.stat().st_size:
        return set()
    with out.open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        if list(reader.fieldnames or ()) != list(columns):
            raise InputError(
                f"{out}: columns differ from this sweep's; expected {','.join(columns)}; "
                f"got {','.join(reader.fieldnames or ())}; name another output file"
            )
        return {row["run"] for row in reader}


def append(out: Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    """Add one row (and the header before the first), whole and synced."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    if not out.exists() or not out.stat().st_size:
        writer.writeheader()
    writer.writerow(dict(row))
    append_whole(out, text.getvalue().encode("utf-8"))
