"""`apportion prefill`: a model and a text in, a context for later questions out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import contexts
from apportion.cli.output import Output

EXAMPLES = (
    "apportion prefill model/ --context book.txt -o book.safetensors",
    "apportion prefill model/ --context manual.html --question 'How is the filter cleaned?' "
    "--memory 1k -o manual.safetensors",
)

_Context = Annotated[
    str, typer.Option("--context", "-c", help="Text, HTML or PDF; - for standard input.",
                      metavar="FILE"),
]  # fmt: skip
_Out = Annotated[Path, typer.Option("--out", "-o", help="The context, as safetensors.")]
_Seed = Annotated[int, typer.Option(help="Of scorers that draw.")]


def prefill(
    model: contexts.Model,
    context: _Context,
    out: _Out,
    question: contexts.Question = None,
    budget: contexts.Budget = None,
    memory: contexts.Memory = None,
    chunk: contexts.Chunk = None,
    schedule: contexts.Schedule = None,
    chunks: contexts.Chunks = None,
    scorer: contexts.Scorer = None,
    positions: contexts.Positions = None,
    store: contexts.Store = None,
    errors: contexts.Errors = "strict",
    dtype: contexts.Dtype = "auto",
    seed: _Seed = 0,
    json: contexts.Json = False,
) -> None:
    """Read a text of any length in bounded memory and keep what is worth it for later questions."""
    from apportion.errors import InputError

    show = Output(json, out)
    if contexts.is_saved(context):
        raise InputError(
            f"expected a text, got {context}, which was read already; ask it: apportion ask "
            f"{model} --context {context}"
        )
    asked = contexts.checked(question)
    given = {
        "budget": budget, "memory": memory, "chunk": chunk, "schedule": schedule,
        "chunks": chunks, "scorer": scorer, "positions": positions,
        "store": store,
    }  # fmt: skip
    found = contexts.read(model, context, asked, given, dtype, errors, out, show, seed)
    found.save(out)
    contexts.tell(found)
    show.wrote(out, "the context")
    show.result({"model": model, "context": context, **contexts.figures(found)})
