"""`apportion finetune`: a model and a data file in, a tuned model or adapter out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apportion.cli.extras import brought_by
from apportion.cli.output import STOPPED, Output, note, number
from apportion.cli.reading import Json

EXAMPLES = (
    "apportion finetune model/ data.jsonl --out tuned/",
    "apportion finetune model/ data.jsonl --out tuned/ --full --steps 200 --eval held-out.jsonl",
    "apportion finetune model.gguf chats.parquet --out tuned/ --memory 2GB --length 2048",
)
# Seconds between two lines about how far it is.
_TELL_EVERY = 10.0
SAVING, TRAINING = "What the backward keeps", "Training"


def _option(help: str, *names: str, panel: str | None = None, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


_Model = Annotated[
    str, typer.Argument(help="Folder with safetensors and tokenizer, or a GGUF file.")
]
_Data = Annotated[
    Path,
    typer.Argument(
        help="JSONL or Parquet with text, with prompt and completion, or with messages; or plain "
        "text. Only completions and the assistant's turns carry loss."
    ),
]
_Out = Annotated[
    Path, typer.Option("--out", "-o", help="Folder of the result; the same command resumes in it.")
]
_Memory = Annotated[
    str | None,
    _option("Fit the run into so many bytes (2GB); chooses keep, rest and the rest.",
            panel=SAVING),
]  # fmt: skip
_Keep = Annotated[
    str | None,
    _option("Share of rows that a sparse backward computes, in (0, 1], or bytes that all layers "
            "may store (200MB) [default: 0.25].", panel=SAVING),
]  # fmt: skip
_Rest = Annotated[
    Literal["8bit", "4bit", "drop"] | None,
    _option("What is stored of the other rows [default: 4bit].", panel=SAVING),
]
_Saliency = Annotated[
    str,
    _option("Which rows: attention, last-query, update, value, norm or random.", panel=SAVING),
]
_Backward = Annotated[
    Literal["auto", "full", "sparse"],
    _option("All rows, the kept ones, or the kept ones where few carry loss.", panel=SAVING),
]
_Loss = Annotated[
    Literal["chunked", "model"],
    _option("Without ever holding all logits, or the model's own.", panel=SAVING),
]
_Lora = Annotated[
    int | None, _option("Rank of adapters on all linear layers [default: 16].", panel=TRAINING)
]
_Full = Annotated[bool, _option("Train every parameter instead.", "--full", panel=TRAINING)]
_Epochs = Annotated[float, _option("Passes over the data.", panel=TRAINING)]
_Steps = Annotated[int | None, _option("Optimizer steps, instead of epochs.", panel=TRAINING)]
_Batch = Annotated[int, _option("Samples of a batch.", panel=TRAINING)]
_Accumulate = Annotated[int, _option("Batches of a step.", panel=TRAINING)]
_Length = Annotated[
    int | None,
    _option("The most tokens of a sample [default: 1024, or the model's positions].",
            panel=TRAINING),
]  # fmt: skip
_Truncate = Annotated[
    bool, _option("Cut longer samples instead of refusing them.", "--truncate", panel=TRAINING)
]
_Rate = Annotated[
    float | None,
    _option("Learning rate [default: 2e-4 with adapters, 2e-5 without]; linear to zero, after a "
            "rise over 3 % of the steps.", panel=TRAINING),
]  # fmt: skip
_Seed = Annotated[int, _option("Of order, adapters and dropout.", panel=TRAINING)]
_Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    _option("What is computed in; auto: bfloat16 on a GPU. Trained weights stay in float32.",
            panel=TRAINING),
]  # fmt: skip
_SaveEvery = Annotated[int, _option("Steps between checkpoints; the last two stay.")]
_Eval = Annotated[
    Path | None, typer.Option("--eval", help="A file like DATA: loss before and after.")
]
_EvalEvery = Annotated[int | None, _option("Steps between evaluations, besides these.")]
_CosineEvery = Annotated[
    int, _option("Steps between comparisons with the exact gradient; 0: never.")
]
_Fresh = Annotated[bool, _option("Start over where --out holds a run.", "--fresh")]


def finetune(
    model: _Model,
    data: _Data,
    out: _Out,
    memory: _Memory = None,
    keep: _Keep = None,
    rest: _Rest = None,
    saliency: _Saliency = "attention",
    backward: _Backward = "auto",
    loss: _Loss = "chunked",
    lora: _Lora = None,
    full: _Full = False,
    epochs: _Epochs = 1.0,
    steps: _Steps = None,
    batch: _Batch = 4,
    accumulate: _Accumulate = 1,
    length: _Length = None,
    truncate: _Truncate = False,
    learning_rate: _Rate = None,
    seed: _Seed = 0,
    dtype: _Dtype = "auto",
    save_every: _SaveEvery = 100,
    eval_: _Eval = None,
    eval_every: _EvalEvery = None,
    cosine_every: _CosineEvery = 0,
    fresh: _Fresh = False,
    json: Json = False,
) -> None:
    """Fine-tune a language model with fewer stored activations; the same command resumes."""
    from apportion.errors import InputError

    if full and lora is not None:
        raise InputError("expected --lora R or --full, got both; leave one out")
    if memory is not None and (keep is not None or rest is not None):
        raise InputError("expected --memory, which chooses --keep and --rest, or these; not both")
    with brought_by("finetune"):
        from apportion.finetune import Recipe, train
    show = Output(json)
    recipe = Recipe(
        lora=None if full else lora or 16, epochs=epochs, steps=steps, batch=batch,
        accumulate=accumulate, length=length, truncate=truncate, learning_rate=learning_rate,
        seed=seed, dtype=dtype, save_every=save_every, eval_every=eval_every,
        cosine_every=cosine_every, memory=memory, keep=_ratio_or_bytes(keep), rest=rest or "4bit",
        saliency=saliency, backward=backward, loss=loss,
    )  # fmt: skip
    try:
        tuned = train(model, data, out, recipe, evaluate=eval_, fresh=fresh, progress=_teller())
    except KeyboardInterrupt:
        note(f"checkpoints are in {out}; the same command goes on from the last")
        raise typer.Exit(STOPPED) from None
    show.table(tuned.rows())
    show.wrote(out, "the model" if full else "the adapter")
    show.result(tuned.to_dict())


def _ratio_or_bytes(text: str | None) -> float | str:
    if text is None:
        return 0.25
    try:
        return float(text)
    except ValueError:
        return text


def _teller() -> Callable[[int, int, dict[str, Any]], None]:
    """Lines on stderr about how far it is: the first step, the last, and every few seconds."""
    from apportion.budget import format_bytes

    said = 0.0

    def tell(step: int, steps: int, figures: dict[str, Any]) -> None:
        nonlocal said
        if step < steps and time.monotonic() - said < _TELL_EVERY:
            return
        said = time.monotonic()
        line = f"step {step} of {steps}: loss {number(figures['loss'])}"
        line += f", {number(figures['tokens_per_second'])} tokens/s"
        line += f", peak {format_bytes(figures['peak_bytes'])}"
        if "gradient_cosine" in figures:
            line += f", cosine to the exact gradient {figures['gradient_cosine']:.3f}"
        note(line)

    return tell
