"""Many documents, each asked its questions: in order, resumable, on one machine or on Ray.

Answers go into a journal beside the output as they come, in whatever order; when all are there,
they become the output, in the order of the documents. A kill loses the documents in flight. A
document that can't be read is a row with its error, and the others go on; while there is such a row
the journal stays, so that the same call, once it is mended, reads that document alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apportion.errors import InputError
from apportion.execution import Executor
from apportion.files import atomic_write, check_writable, only_writer
from apportion.prefill.documents import read_document
from apportion.prefill.journal import Journal, beside, line_of
from apportion.prefill.loading import load_reader
from apportion.prefill.reader import Reader

Row = dict[str, Any]


@dataclass(frozen=True)
class How:
    """What all documents have in common.

    Attributes:
        model: folder or file, which every worker loads.
        dtype: of the weights.
        reader: options of `Reader`.
        answer: options of `Context.ask`.
        errors: `"strict"` or `"replace"`, for bytes that are no text.
    """

    model: str
    dtype: str = "auto"
    reader: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=dict)
    errors: str = "strict"


@dataclass(frozen=True)
class Job:
    """One document.

    Attributes:
        number: its place in the output.
        name: as the user gave it.
        path: the same from the root, for workers that stand elsewhere.
        questions: that it is asked.
        how: it is read.
    """

    number: int
    name: str
    path: str
    questions: tuple[str, ...]
    how: How


@dataclass(frozen=True)
class _Done:
    """What came of a document: rows; `whole` unless it could not be read."""

    rows: list[Row]
    whole: bool


def answer_documents(
    how: How,
    asked: Mapping[str, Sequence[str]],
    out: str | Path,
    *,
    executor: Executor | None = None,
    each: Callable[[str, list[Row], int], None] | None = None,
    lost: Callable[[str], None] | None = None,
) -> list[Row]:
    """Ask every document its questions and write the answers to `out`, JSON line by line.

    A row has `document`, `question`, `answer` and what it took; or `document` and `error`. The same
    call after a kill goes on where it was.

    Args:
        how: the model, and the options of reading and answering.
        asked: questions by document, in the order of the output.
        out: the file of answers.
        executor: where documents are read; None: in this process, one after the other.
        each: called with every document as it is done, its rows, and how many are left.
        lost: called with a document whose worker died, before it is tried again.

    Returns:
        All rows.

    Raises:
        InputError: nothing to ask, an output that can't be written or is being written by another
            process, or the journal of another call.
    """
    if not any(asked.values()):
        raise InputError("expected documents and a question of one at least, got none")
    target = Path(out)
    check_writable(target)
    jobs = [
        Job(number, name, str(Path(name).resolve()), tuple(questions), how)
        for number, (name, questions) in enumerate(asked.items())
        if questions
    ]
    with only_writer(target):
        journal = Journal(beside(target), {"how": asdict(how), "asked": dict(asked)})
        found = {job.number: done for job in jobs if (done := _before(journal, job)) is not None}
        left = [job for job in jobs if job.number not in found]
        for job, done in _carried_out(left, executor, lost):
            found[job.number] = done
            if done.whole:
                journal.add({"number": job.number, "sha256": _digest(job.path), "rows": done.rows})
            if each is not None:
                each(job.name, done.rows, len(jobs) - len(found))
        rows = [row for job in jobs for row in found[job.number].rows]
        with atomic_write(target, "wb") as handle:
            handle.writelines(map(line_of, rows))
        if all(done.whole for done in found.values()):
            journal.close()
    return rows


def _before(journal: Journal, job: Job) -> _Done | None:
    """What an earlier call found of a document that has not changed since."""
    entry = journal.entries.get(job.number, {})
    same = entry.get("sha256") == _digest(job.path) and isinstance(entry.get("rows"), list)
    return _Done(entry["rows"], True) if same else None


def _carried_out(
    jobs: Sequence[Job], executor: Executor | None, lost: Callable[[str], None] | None
) -> Iterator[tuple[Job, _Done]]:
    if executor is None:
        for job in jobs:
            yield job, _done(job, carry_out(job, lambda _: None))
        return
    told = None if lost is None else lambda job, code: lost(job.name)
    for outcome in executor.run(carry_out, jobs, lost=told):
        if outcome.error is None:
            yield outcome.job, _done(outcome.job, outcome.result)
        else:
            yield outcome.job, _done(outcome.job, outcome.error.splitlines()[0])


def _done(job: Job, found: list[Row] | str) -> _Done:
    if isinstance(found, str):
        return _Done([{"document": job.name, "error": found}], False)
    return _Done([{"document": job.name, **row} for row in found], True)


def carry_out(job: Job, report: Callable[[Any], None]) -> list[Row] | str:
    """Read a document and ask it; its rows, or what is wrong with it in words."""
    reader = _reader(job.how)
    try:
        text = read_document(job.path, "replace" if job.how.errors == "replace" else "strict")
        context = reader.read(text, questions=list(job.questions))
        return [_row(context, question, job.how) for question in job.questions]
    except InputError as error:
        return str(error)


def _row(context: Any, question: str, how: How) -> Row:
    answer = context.ask(question, **how.answer)
    return {
        "question": question,
        "answer": answer.text,
        "tokens": context.tokens,
        "kept_share": answer.kept_share,
        "read_seconds": context.seconds,
        "first_token_seconds": answer.first_s,
        "seconds": answer.seconds,
        "peak_bytes": max(context.peak_bytes, answer.peak_bytes),
    }


_LOADED: dict[str, Reader] = {}
"""The reader of this process: a worker loads a model once."""


def _reader(how: How) -> Reader:
    key = json.dumps([how.model, how.dtype, how.reader], sort_keys=True, default=str)
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = load_reader(how.model, how.dtype, **how.reader)
    return _LOADED[key]


def _digest(path: str) -> str:
    """Of a document's bytes; empty where there are none to be read."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError:
        return ""
