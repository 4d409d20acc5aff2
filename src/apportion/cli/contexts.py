"""Contexts for `ask` and `prefill`: the options of reading, the reading, what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apportion.cli.extras import brought_by
from apportion.cli.output import STOPPED, Output, note, number, percent

READING, MODEL = "How the text is read", "The model"


def _option(help: str, *names: str, panel: str = READING, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


Model = Annotated[
    str, typer.Argument(help="Folder with safetensors and tokenizer, or a GGUF file.")
]
Question = Annotated[
    list[str] | None,
    typer.Option(
        "--question", "-q", help="A question (repeat); known ones observe the reading.",
        metavar="TEXT",
    ),
]  # fmt: skip
Budget = Annotated[
    str | None,
    _option("Bytes that memory, activations and scores may take together (200MB); chooses memory "
            "and chunk where these are not given.", metavar="BYTES"),
]  # fmt: skip
Memory = Annotated[
    str | None, _option("Tokens that every layer remembers in the end [default: 2048; with "
                        "--budget what it has room for].",
                        metavar="TOKENS"),
]  # fmt: skip
Chunk = Annotated[
    str | None,
    _option(
        "Tokens that are read at once [default: 1024; with --budget what fits].", metavar="TOKENS"
    ),
]
Schedule = Annotated[
    str | None,
    _option("How memory grows: fixed, linear, square, sqrt, inverse-convex, inverse-concave, "
            "layerwise-power, layerwise-inverse or adaptive [default: linear].", metavar="NAME"),
]  # fmt: skip
Chunks = Annotated[
    Literal["fixed", "decremental", "bytes"] | None,
    _option("Sizes of chunks: one, smaller as memory grows, or as large as the bytes allow "
            "[default: decremental; with --budget bytes]."),
]  # fmt: skip
Scorer = Annotated[
    str | None,
    _option("What is kept: streaming, local, prefix, random, h2o, tova, mean, snapkv, roco, "
            "value-aware or query [default: query with questions, else snapkv].", metavar="NAME"),
]  # fmt: skip
Positions = Annotated[
    Literal["compact", "original"] | None,
    _option("Memory directly before the chunk, so any length fits, or where it was in the text "
            "[default: compact]."),
]  # fmt: skip
Store = Annotated[
    Literal["model", "8bit"] | None,
    _option("Memory in the model's own type, or in 8 bits [default: model]."),
]
Errors = Annotated[
    Literal["strict", "replace"],
    _option("Bytes that are not UTF-8 are refused, or replaced by U+FFFD."),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    _option("Of the weights; auto: that of a saved context, else bfloat16 where it is faster.",
            panel=MODEL),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON document.")]


def is_saved(path: str) -> bool:
    """Whether a file is a saved context, or should be one by its name."""
    with brought_by("prefill"):
        from apportion.prefill.container import looks_saved
    return looks_saved(path)


def load(model: str, saved: str, given: dict[str, Any], dtype: str, show: Output) -> Any:
    """The context that a file holds.

    Raises:
        InputError: options of reading, which is over, or a file of another model.
    """
    from apportion.errors import InputError

    with brought_by("prefill"):
        from apportion.prefill.loading import load_reader
        from apportion.prefill.saved import read_with
    told = read_with(saved)
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise InputError(
            f"expected no --{wrong[0]} with {saved}, which was read already; leave it out, or give "
            "the text itself"
        )
    dtype = told["dtype"] if dtype == "auto" else dtype
    sizes = {name: told["settings"][name] for name in ("memory", "chunk")}
    with show.working("loading the model"):
        reader = load_reader(model, dtype, **sizes)
        return reader.load(saved)


def read(
    model: str,
    path: str,
    questions: Sequence[str],
    given: dict[str, Any],
    dtype: str,
    errors: Literal["strict", "replace"],
    keep: Path | None,
    show: Output,
    seed: int = 0,
) -> Any:
    """The context of a text; Ctrl-C leaves what was read so far in `keep`.

    Raises:
        InputError: no text, no model, or options that don't go together.
    """
    with brought_by("prefill"):
        from apportion.prefill import ReadInterruptedError
        from apportion.prefill.documents import open_document
        from apportion.prefill.loading import load_reader
    # The text first: it fails in no time, a model takes seconds.
    text = open_document(path, errors)
    options = {name: value for name, value in given.items() if value is not None}
    with show.working("loading the model"):
        reader = load_reader(model, dtype, seed=seed, **options)
    try:
        return reader.read(text, questions=questions, progress=True, predict=True)
    except ReadInterruptedError as stopped:
        context = stopped.context
        if keep is None:
            note(f"stopped after {context.tokens} tokens; with --save-to FILE they would be kept")
        else:
            context.save(keep)
            note(
                f"stopped after {context.tokens} tokens; what is read so far is in {keep}: "
                f"apportion ask {model} --context {keep}"
            )
        raise typer.Exit(STOPPED) from None


def checked(questions: Sequence[str] | None) -> list[str]:
    """Questions as text.

    Raises:
        InputError: an empty one, or one that is not UTF-8.
    """
    from apportion.errors import InputError

    for question in questions or ():
        if not question.strip():
            raise InputError("expected a question, got an empty one")
        try:
            question.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"expected a question in UTF-8, got {question!r}") from error
    return list(questions or ())


def figures(context: Any) -> dict[str, Any]:
    """What a context is and what reading it took, for `--json`."""
    settings, seconds = context.reader.settings, context.seconds
    return {
        "tokens": context.tokens,
        "chunks": len(context.trace),
        "seconds": seconds,
        "tokens_per_second": context.tokens / seconds if seconds else None,
        "memory": settings.memory,
        "chunk": settings.chunk,
        "schedule": settings.schedule.name,
        "chunk_sizes": settings.chunks,
        "scorer": context.engine.scorer.name,
        "positions": settings.positions,
        "store": settings.store,
        "known_questions": len(context.questions),
        "kept_share": context.kept_share,
        "memory_bytes": context.engine.bytes(),
        "peak_bytes": context.peak_bytes,
        "predicted_bytes": context.predicted_bytes,
    }


def tell(context: Any, before: bool = False) -> None:
    """A line about a read on stderr; one that was done some time before says so."""
    from apportion.budget import format_bytes

    told = figures(context)
    began = "was read before: " if before else "read "
    predicted = told["predicted_bytes"]
    beside = "" if predicted is None else f" (predicted {format_bytes(predicted)})"
    note(
        f"{began}{told['tokens']:,} tokens in {told['chunks']} chunks, {number(told['seconds'])} s "
        f"({number(told['tokens_per_second'] or 0.0)} tokens/s); memory of {told['memory']:,} "
        f"tokens, chunk of {told['chunk']:,}; {percent(told['kept_share'])} of the context is kept "
        f"in {format_bytes(told['memory_bytes'])}; peak {format_bytes(told['peak_bytes'])} beyond "
        f"the weights{beside}"
    )
