"""What `--out` may replace: no file that the command reads, and no result of another kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from apportion.errors import InputError
from apportion.files import read_json

# What each command writes; another file of the user's is replaced, as everywhere.
KINDS = {
    "fit": "a fit",
    "optimize": "ratios",
    "count": "a supply",
    "design": "a plan",
    "sweep": "a table",
    "report": "a page",
    "export": "a configuration",
    "prefill": "a context",
    "ask": "answers",
}
_TABLES = (".csv", ".parquet", ".pq")
_TEXTS = (".txt", ".jsonl", ".parquet")


def guarded(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """A command that refuses an `--out` which would destroy something, before it reads anything."""

    @wraps(command)
    def wrapper(**given: Any) -> None:
        out = given.get("out")
        if out is not None and Path(out).is_file():
            read = [value for key, value in given.items() if key != "out"]
            check_overwrite(Path(out), KINDS[name], read)
        command(**given)

    return wrapper


def check_overwrite(out: Path, kind: str, given: Iterable[object]) -> None:
    """Refuse to replace an existing file that is an input, or a result of another kind.

    Args:
        out: the file, which exists.
        kind: what would be written, one of `KINDS`.
        given: every other value of the command line; those that name files or folders are inputs.

    Raises:
        InputError: it would be replaced.
    """
    for path in _paths(given):
        text_of_it = path.is_dir() and out.suffix in _TEXTS and _inside(out, path)
        if text_of_it or (path.is_file() and path.samefile(out)):
            raise InputError(f"cannot write {out}: this command reads it; name another output path")
    found = _kind(out)
    if found not in (None, kind):
        raise InputError(
            f"cannot write {out}: it holds {found}, and this command writes {kind}; name another "
            "output path, or remove that file first"
        )


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _paths(given: Iterable[object]) -> Iterator[Path]:
    for value in given:
        if isinstance(value, Path):
            yield value
        elif isinstance(value, list | tuple):
            yield from _paths(value)
        elif isinstance(value, str):
            # NAME:FILE and FAMILY=FILE too; a bare word, such as a law's name, is no file.
            ends = [match.end() for match in re.finditer("[:=]", value)]
            parts = [value[start:] for start in (0, *ends)]
            yield from (Path(part) for part in parts if re.search(r"[./\\]", part))


def _kind(path: Path) -> str | None:
    """What a file holds, if it is a table or one of our results."""
    try:
        with path.open("rb") as handle:
            start = handle.read(100)
            handle.seek(0)
            line = handle.readline(100_000)
    except OSError:
        return None
    # Safetensors: the length of a header, then it. No weights may be written over.
    if start[7:9] == b"\x00{":
        return "a context" if b'"apportion.prefill.' in start else "the weights of a model"
    head = line.decode("utf-8", errors="replace").strip()
    if path.suffix.lower() in _TABLES and head:
        planned = "flops" in head.split(",") and ",loss_" not in head
        return "a plan" if planned else "a table"
    if head.lower().startswith("<!doctype html"):
        return "a page"
    if not head.startswith("{"):
        return None
    if head.startswith('{"document": '):
        return "answers"
    try:
        value = read_json(path)
    except InputError:
        return None
    marks = {"a fit": {"law", "theta"}, "ratios": {"ratios"}, "a supply": {"kind", "tokens"}}
    return next((kind for kind, keys in marks.items() if keys <= value.keys()), None)
