"""`apportion ask`: a model, a text of any length and questions in, answers out as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apportion.cli import ask_many, contexts, pools
from apportion.cli.output import Output, note, number, percent
from apportion.cli.overwrite import KINDS, check_overwrite

EXAMPLES = (
    "apportion ask model/ --context manual.html --question 'How is the filter cleaned?'",
    "apportion ask model/ --context book.txt --memory 1k --temperature 0.7 --top-p 0.9",
    "apportion ask model/ --context book.safetensors --question 'Who wrote it?' --reread",
    "apportion ask model/ --context - --question 'What failed?' --json < log.txt",
    "apportion ask model/ --documents 'papers/*.txt' --questions q.jsonl -o answers.jsonl",
)

ANSWERING = "How it is answered"

_Context = Annotated[
    str | None,
    typer.Option("--context", "-c", metavar="FILE",
                 help="Text, HTML or PDF, or what `apportion prefill` kept; - for standard input."),
]  # fmt: skip
_SaveTo = Annotated[
    Path | None,
    typer.Option(help="Keep the context there, also what was read when Ctrl-C stops it.",
                 metavar="FILE"),
]  # fmt: skip


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=ANSWERING)


_MaxNewTokens = Annotated[int, _option("The most tokens of an answer.")]
_Temperature = Annotated[float, _option("0: always the likeliest token.")]
_TopP = Annotated[
    float, _option("Draw from the likeliest tokens that together have this probability.")
]
_Seed = Annotated[int, _option("Of what is drawn: tokens, and by scorers that draw.")]
_Reread = Annotated[
    bool,
    _option("Read again for a question that was not known while reading.", "--reread"),
]


def ask(
    model: contexts.Model,
    context: _Context = None,
    question: contexts.Question = None,
    documents: ask_many.Documents = None,
    questions: ask_many.Questions = None,
    out: ask_many.Out = None,
    executor: pools.Kind = "local",
    address: pools.Address = None,
    workers: pools.Workers = None,
    threads: pools.Threads = None,
    save_to: _SaveTo = None,
    budget: contexts.Budget = None,
    memory: contexts.Memory = None,
    chunk: contexts.Chunk = None,
    schedule: contexts.Schedule = None,
    chunks: contexts.Chunks = None,
    scorer: contexts.Scorer = None,
    positions: contexts.Positions = None,
    store: contexts.Store = None,
    errors: contexts.Errors = "strict",
    max_new_tokens: _MaxNewTokens = 64,
    temperature: _Temperature = 0.0,
    top_p: _TopP = 1.0,
    seed: _Seed = 0,
    reread: _Reread = False,
    dtype: contexts.Dtype = "auto",
    json: contexts.Json = False,
) -> None:
    """Answer questions about a text of any length in bounded memory; without any, ask for them."""

    given = {
        "budget": budget, "memory": memory, "chunk": chunk, "schedule": schedule,
        "chunks": chunks, "scorer": scorer, "positions": positions,
        "store": store,
    }  # fmt: skip
    how = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p,
        "seed": seed, "reread": reread,
    }  # fmt: skip
    if documents:
        _check_many(context, save_to, reread)
        ask_many.ask_many(
            model, documents, question or [], questions, out, {**given, "seed": seed}, how, dtype,
            errors, pools.executor_of(executor, address, workers, threads, stay=True), json,
        )  # fmt: skip
        return
    many = {"questions": questions, "out": out, "address": address, "workers": workers,
            "threads": threads, "executor": None if executor == "local" else executor}  # fmt: skip
    _ask_one(
        model, _one(context, many), contexts.checked(question), given, how, save_to,
        dtype, errors, json,
    )  # fmt: skip


def _ask_one(
    model: str,
    context: str,
    asked: list[str],
    given: dict[str, Any],
    how: dict[str, Any],
    save_to: Path | None,
    dtype: str,
    errors: Literal["strict", "replace"],
    json: bool,
) -> None:
    """Read one context, or take up one that was kept, and answer."""
    show = Output(json, save_to)
    if save_to is not None and save_to.is_file():
        check_overwrite(save_to, KINDS["prefill"], [model, context])
    _check(asked, context, json)
    kept = contexts.is_saved(context)
    if kept:
        found = contexts.load(model, context, given, dtype, show)
    else:
        seed = how["seed"]
        found = contexts.read(model, context, asked, given, dtype, errors, save_to, show, seed)
    contexts.tell(found, before=kept)
    if save_to is not None:
        found.save(save_to)
        # Standard output is for the answers.
        (show.wrote if json else _wrote)(save_to, "the context")
    if asked:
        answers = [_answer(found, each, how, show, len(asked) > 1) for each in asked]
        show.result({
            "model": model, "context": context, **contexts.figures(found), "answers": answers,
        })  # fmt: skip
    else:
        _converse(found, how, show)


def _wrote(path: object, what: str) -> None:
    note(f"wrote {what} to {path}")


def _one(context: str | None, many: Mapping[str, object]) -> str:
    from apportion.errors import InputError

    if context is None:
        raise InputError("expected --context FILE, or --documents FILES for many")
    for name, value in many.items():
        if value is not None:
            raise InputError(f"expected --documents with --{name}; add them, or leave it out")
    return context


def _check_many(context: str | None, save_to: Path | None, reread: bool) -> None:
    from apportion.errors import InputError

    given = {"context": context, "save-to": save_to, "reread": reread or None}
    for name, value in given.items():
        if value is not None:
            raise InputError(f"expected no --{name} with --documents, whose questions are known "
                             "while reading; leave it out")  # fmt: skip


def _check(questions: list[str], context: str, json: bool) -> None:
    from apportion.errors import InputError

    if questions:
        return
    if json:
        raise InputError("expected --question with --json, which answers in one document")
    if context == "-":
        raise InputError(
            "expected --question with --context -, since standard input is the text and can't be "
            "asked for questions"
        )


def _converse(context: Any, how: dict[str, Any], show: Output) -> None:
    """Questions from standard input, until it ends or gives an empty line."""
    from apportion.errors import InputError

    for question in _asked():
        try:
            _answer(context, contexts.checked([question])[0], how, show, False)
        except InputError as error:
            note(f"error: {error}")


def _asked() -> Iterator[str]:
    from apportion.errors import InputError

    while True:
        if sys.stdin.isatty():
            print("question: ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline().strip()
        except UnicodeDecodeError as error:
            raise InputError(f"expected a question in UTF-8, got {error.object!r}") from error
        if not line:
            return
        yield line


def _answer(
    context: Any, question: str, how: dict[str, Any], show: Output, named: bool
) -> dict[str, Any]:
    """Print an answer as it comes; its figures on stderr."""
    from apportion.budget import format_bytes

    if named:
        show.text(f"> {question}")
    answer = context.ask(question, stream=show.piece, **how)
    show.text("")
    # The first token is the question's; what follows is a token a forward.
    later, rest = len(answer.ids) - 1, answer.seconds - answer.first_s
    rate = later / rest if later > 0 and rest > 0 else None
    told = [f"first token after {number(answer.first_s)} s"]
    told += [] if rate is None else [f"{number(rate)} tokens/s"]
    told += [f"peak {format_bytes(answer.peak_bytes)}"]
    told += [f"{percent(answer.kept_share)} of the context in memory"]
    note(", ".join(told))
    if not answer.known and answer.kept_share < 1:
        note(
            "note: this question was not known while reading, so what it asks for may have been "
            "let go; --reread reads again with it"
        )
    return {
        "question": question,
        "answer": answer.text,
        "known": answer.known,
        "tokens": len(answer.ids),
        "first_token_seconds": answer.first_s,
        "seconds": answer.seconds,
        "tokens_per_second": rate,
        "peak_bytes": answer.peak_bytes,
        "kept_share": answer.kept_share,
    }
