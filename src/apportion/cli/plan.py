"""`apportion plan`: what something will cost, before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from apportion.cli.extras import brought_by
from apportion.cli.output import Output, note
from apportion.cli.plan_mixture import EXAMPLES as MIXTURE_EXAMPLES
from apportion.cli.plan_mixture import mixture
from apportion.cli.plan_prefill import EXAMPLES as PREFILL_EXAMPLES
from apportion.cli.plan_prefill import prefill
from apportion.cli.reading import Json

FINETUNE_EXAMPLES = (
    "apportion plan finetune model/ --batch 4 --length 512 --memory 2GB",
    "apportion plan finetune model/config.json --full --batch 8 --length 1024 --loss-share 0.2",
)

app = typer.Typer(
    name="plan",
    help="What something will cost, before it runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Model = Annotated[
    str,
    typer.Argument(help="Folder with config.json, a config.json, or a GGUF file; no weights read."),
]
_Batch = Annotated[int, typer.Option(help="Samples of a step.")]
_Length = Annotated[int, typer.Option(help="Tokens of every sample, padding included.")]
_Memory = Annotated[
    str | None, typer.Option(help="What must be enough, such as 2GB.", metavar="BYTES")
]
_Lora = Annotated[
    int | None, typer.Option(help="Rank of adapters on all linear layers [default: 16].")
]
_Full = Annotated[bool, typer.Option("--full", help="Train every parameter instead.")]
_LossShare = Annotated[float, typer.Option(help="Tokens that carry loss, of all, in (0, 1].")]
_Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(
        help="What is computed in; auto: bfloat16 on a GPU. Trained weights stay in float32."
    ),
]
_Rounds = Annotated[int, typer.Option(help="Timed steps of every probe.")]


def finetune(
    model: _Model,
    batch: _Batch = 4,
    length: _Length = 512,
    memory: _Memory = None,
    lora: _Lora = None,
    full: _Full = False,
    loss_share: _LossShare = 1.0,
    dtype: _Dtype = "auto",
    rounds: _Rounds = 3,
    json: Json = False,
) -> None:
    """Bytes and seconds of a fine-tuning step, by the way to train; from a short probe here."""
    from apportion.errors import InputError

    if full and lora is not None:
        raise InputError("expected --lora R or --full, got both; leave one out")
    with brought_by("finetune"):
        from apportion.finetune.outline import plan_from_config
    show = Output(json)
    with show.progress("probing") as progress:
        found = plan_from_config(
            model,
            batch=batch,
            length=length,
            memory=memory,
            loss_share=loss_share,
            lora=None if full else 16 if lora is None else lora,
            dtype=dtype,
            rounds=rounds,
            progress=progress,
        )
    best = found.best
    trained = "all parameters" if full else f"adapters of rank {16 if lora is None else lora}"
    _show(show, found, trained)
    show.text(f"\nbest: {best.name}", f"      {_how(best)}")
    note(
        "note: weights, optimizer states and live tensors; the interpreter, libraries and what an "
        "allocator keeps come on top"
    )
    show.result({"trained": trained, "best": best.name, **found.to_dict()})


def _show(show: Output, found: Any, trained: str) -> None:
    from apportion.budget import counted, format_bytes

    title = f"One step of {counted(found.batch, 'sample')} of {found.length} tokens, "
    title += f"{found.loss_share:.0%} with loss, {trained}"
    if found.memory is not None:
        title += f"; what fits {format_bytes(found.memory)}"
    rows = [
        {
            "way": each.name,
            "peak": format_bytes(each.peak_bytes),
            **{item: format_bytes(size) for item, size in each.bytes.items()},
            "stored": format_bytes(each.stored_bytes),
            "s a step": each.seconds,
            "gradient": "exact" if each.cosine == 1 else f"cosine {each.cosine:g}",
            "peak at": each.peak_at,
        }
        for each in found.options
        if each.fits
    ]
    show.table(rows, title)
    over = [f"{o.name} ({format_bytes(o.peak_bytes)})" for o in found.options if not o.fits]
    if over:
        show.text(f"\nmore than that: {', '.join(over)}")
    for source in sorted({o.source for o in found.options if o.cosine < 1}):
        names = ", ".join(o.name for o in found.options if o.source == source)
        show.text(f"cosine to the exact gradient, {names}: measured on {source}")
    for name, reason in found.refused.items():
        note(f"note: {name} left out: {reason}")


def _how(best: Any) -> str:
    """What to write to train that way."""
    if best.settings is not None:
        return f"attach(model, {', '.join(f'{k}={v!r}' for k, v in best.settings.items())})"
    if best.checkpointing:
        return "TrainingArguments(gradient_checkpointing=True), nothing attached"
    return "nothing attached"


COMMANDS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "mixture": (mixture, MIXTURE_EXAMPLES),
    "finetune": (finetune, FINETUNE_EXAMPLES),
    "prefill": (prefill, PREFILL_EXAMPLES),
}
"""Every command, and the examples in its help; the tests run them."""

for _name, (_function, _examples) in COMMANDS.items():
    # \b keeps the help from filling the lines up.
    _epilog = "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in _examples)
    app.command(_name, epilog=_epilog)(_function)
