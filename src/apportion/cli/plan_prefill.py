"""`apportion plan prefill`: what reading a text of some length will take, in every way."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from apportion.cli import contexts
from apportion.cli.extras import brought_by
from apportion.cli.output import Output, note

EXAMPLES = (
    "apportion plan prefill model/ --tokens 64k --budget 200MB",
    "apportion plan prefill model/ --tokens 32k --memory 2k --chunk 1k --scorer h2o",
)

_Tokens = Annotated[str, typer.Option(help="Tokens of the text.", metavar="TOKENS")]
_Batch = Annotated[int, typer.Option(help="Texts that are read together.")]
_Question = Annotated[
    list[int] | None,
    typer.Option(
        "--question-tokens", help="Tokens of a question that is known (repeat).", metavar="TOKENS"
    ),
]
_Rounds = Annotated[int, typer.Option(help="Timed forwards of every size.")]


def prefill(
    model: contexts.Model,
    tokens: _Tokens,
    budget: contexts.Budget = None,
    memory: contexts.Memory = None,
    chunk: contexts.Chunk = None,
    batch: _Batch = 1,
    question_tokens: _Question = None,
    scorer: contexts.Scorer = None,
    positions: contexts.Positions = None,
    dtype: contexts.Dtype = "auto",
    rounds: _Rounds = 2,
    json: contexts.Json = False,
) -> None:
    """Bytes, chunks and seconds of reading a long text, by the way to read; from probes here."""
    with brought_by("prefill"):
        from apportion.prefill.loading import load_reader
        from apportion.prefill.planning import plan
    show = Output(json)
    with show.working("loading the model"):
        # Of a reader's own sizes nothing is wanted here.
        reader = load_reader(model, dtype, memory=1, chunk=1)
    with show.progress("probing") as progress:
        found = plan(
            reader.model,
            tokens,
            memory=memory,
            chunk=chunk,
            budget=budget,
            batch=batch,
            questions=question_tokens or (),
            scorer=scorer,
            positions=positions or "compact",
            rounds=rounds,
            progress=progress,
        )
    best = found.best
    _show(show, found)
    how = ", ".join(f"{name}={value!r}" for name, value in best.settings.items())
    show.text(f"\nbest: Reader(model, tokenizer, {how})")
    note(
        "note: live tensors beyond the weights; the interpreter, libraries and what an allocator "
        "keeps come on top"
    )
    show.result({"best": best.settings, **found.to_dict()})


def _show(show: Output, found: Any) -> None:
    from apportion.budget import counted, format_bytes

    title = f"{counted(found.batch, 'text')} of {found.tokens:,} tokens"
    if found.budget is not None:
        title += f", within {format_bytes(found.budget)}"
    rows = [
        {
            "schedule": each.schedule,
            "chunks": each.chunks,
            "lets go after": {"layer": "each layer", "forward": "the forward"}[each.evict],
            "M": each.memory,
            "forwards": each.forwards,
            "longest": each.longest,
            "peak": format_bytes(each.peak_bytes),
            **{item: format_bytes(size) for item, size in each.bytes.items()},
            "s": each.seconds,
            "peak at": each.peak_at,
        }
        for each in found.options
        if each.fits
    ]
    show.table(rows, title)
    over = [
        f"{o.schedule} memory, {o.chunks} chunks ({format_bytes(o.peak_bytes)})"
        for o in found.options
        if not o.fits
    ]
    if over:
        show.text(f"\nmore than that: {', '.join(over)}")
    for name, reason in found.refused.items():
        note(f"note: {name} left out: {reason}")
