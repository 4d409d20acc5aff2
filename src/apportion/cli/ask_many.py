"""`apportion ask --documents`: many texts, a file of questions, a file of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

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
    executor: Any,
    json: bool,
) -> None:
    """Answer the questions over all documents.

    Args:
        asked: questions of the command line, for every document.
        given: options of reading.
        how: options of answering.
        executor: see `pools.executor_of`.
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
    try:
        rows = answer_documents(
            shared, questions_of(names, wanted), out, executor=executor, each=_told,
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


def _told(name: str, rows: Sequence[Mapping[str, Any]], left: int) -> None:
    """A line a document on stderr."""
    first = rows[0]
    said = (
        f"error: {first['error']}"
        if "error" in first
        else f"{first['tokens']:,} tokens in {number(first['read_seconds'])} s"
    )
    note(f"{name}: {said}; {left} left")
