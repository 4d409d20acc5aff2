"""`apportion ask --documents`: many texts, a file of questions, a file of answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apportion.cli import contexts
from apportion.cli.extras import brought_by
from apportion.cli.output import STOPPED, Output, note, number
from apportion.cli.overwrite import KINDS, check_overwrite

MANY = "Many documents"


def _option(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=MANY, metavar=metavar)


Documents = Annotated[
    list[str] | None,
    _option("Instead of --context: files, also 'DIR/*.txt' in quotes (repeat).", metavar="FILES"),
]
Questions = Annotated[
    Path | None,
    _option('Lines of {"question": …}, with "document": … for one document alone.',
            metavar="JSONL"),
]  # fmt: skip
Out = Annotated[
    Path | None,
    _option("The answers, a line each; the same command goes on after a kill.", "--out", "-o",
            metavar="JSONL"),
]  # fmt: skip
Executor = Annotated[
    Literal["here", "local", "ray"],
    _option("This process, several of this machine, or actors on Ray, each with the model."),
]
Workers = Annotated[
    int | None, _option("Copies of the model [default: 1; on Ray what there is room for].")
]
Threads = Annotated[int | None, _option("Of each copy [default: all that there are].")]
Address = Annotated[str | None, _option("The Ray cluster: auto, or host:port.")]


def ask_many(
    model: str,
    documents: Sequence[str],
    asked: Sequence[str],
    questions: Path | None,
    out: Path | None,
    given: Mapping[str, Any],
    how: Mapping[str, Any],
    dtype: str,
    errors: str,
    pool: tuple[str, str | None, int | None, int | None],
    json: bool,
) -> None:
    """Answer the questions over all documents.

    Args:
        asked: questions of the command line, for every document.
        given: options of reading.
        how: options of answering.
        pool: executor, address, workers, threads.
    """
    from apportion.errors import InputError

    with brought_by("prefill"):
        from apportion.prefill.asked import find_documents, questions_of, read_questions
        from apportion.prefill.many import How, answer_documents
    if out is None:
        raise InputError("expected --out with --documents, such as -o answers.jsonl")
    if out.is_file():
        check_overwrite(out, KINDS["ask"], [model, questions, *documents])
    show = Output(json, out)
    wanted = [(question, None) for question in contexts.checked(asked)]
    wanted += [] if questions is None else read_questions(questions)
    if not wanted:
        raise InputError("expected --questions FILE or --question TEXT with --documents, got none")
    names = find_documents(documents)
    if any(Path(name).resolve() == out.resolve() for name in names):
        raise InputError(f"cannot write {out}: it is among the documents; name another output path")
    options = {name: value for name, value in given.items() if value is not None}
    shared = How(_whole(model), dtype, options, dict(how), errors)
    told = _Told(len(names))
    try:
        rows = answer_documents(
            shared, questions_of(names, wanted), out, executor=_executor(*pool), each=told.each,
            lost=lambda name: note(f"the worker with {name} died; it is read again"),
        )  # fmt: skip
    except KeyboardInterrupt:
        note("stopped; the same command goes on where it was")
        raise typer.Exit(STOPPED) from None
    bad = [row for row in rows if "error" in row]
    show.text(f"{len(rows) - len(bad)} answers, {len(bad)} documents that could not be read")
    show.wrote(out, "the answers")
    show.result({"model": model, "answers": rows})
    if bad:
        raise typer.Exit(1)


def _whole(model: str) -> str:
    """A path from the root, for workers that stand elsewhere; a name of the hub as it is."""
    path = Path(model)
    return str(path.resolve()) if path.exists() else model


def _executor(kind: str, address: str | None, workers: int | None, threads: int | None) -> Any:
    import os

    from apportion.errors import InputError
    from apportion.execution import LocalExecutor, RayExecutor

    if kind != "ray" and address is not None:
        raise InputError("expected --executor ray with --address; add it, or leave --address out")
    if kind == "here":
        if workers not in (None, 1):
            raise InputError("expected --executor local or ray with --workers; add one of them")
        return None
    if kind == "ray":
        return RayExecutor(address, workers, threads or 1, stay=True)
    count = workers or 1
    return LocalExecutor(count, threads or max(1, (os.cpu_count() or 1) // count))


class _Told:
    """A line a document on stderr."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def each(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.done += 1
        first = rows[0]
        said = (
            f"error: {first['error']}"
            if "error" in first
            else f"{first['tokens']:,} tokens in {number(first['read_seconds'])} s"
        )
        print(f"{self.done} of {self.total}  {name}: {said}", file=sys.stderr, flush=True)
