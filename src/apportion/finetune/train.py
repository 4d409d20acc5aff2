"""A fine-tuning run from a model's folder and a data file to a tuned model, killed or not.

The loop is transformers' Trainer, adapters are PEFT's; what is ours is attached around
`trainer.train()`. The same call on the same folder resumes from the last checkpoint, with the same
losses as if nothing had happened, and gives back the result of a run that is finished.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion import models
from apportion.errors import InputError, InputWarning, option, require
from apportion.files import read_json, write_json
from apportion.finetune.attach import attach
from apportion.finetune.batches import Collate, Run, digest, order, place_of
from apportion.finetune.callback import FineTuner, Watch, callback, training_arguments
from apportion.finetune.checkpoints import checkpoints, could_not_write, staged, unwritten
from apportion.finetune.encode import Samples, dropped_note, read_samples
from apportion.finetune.peak import held_bytes
from apportion.finetune.plan import plan
from apportion.finetune.recipe import LORA_ALPHA_PER_RANK, WARMUP, Recipe
from apportion.finetune.result import Tuned

RESULT = "apportion.json"
RUN = "run.json"
# Points of the loss curve, about.
LOGGED = 500

Progress = Callable[[int, int, dict[str, Any]], None]


def train(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    evaluate: str | Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Tuned:
    """Fine-tune a model on a file.

    Args:
        model: a folder, a GGUF file, or a name in transformers' cache.
        data: JSONL or Parquet with `text`, `prompt` and `completion`, or `messages`; or plain text.
            Of conversations and completions only what the model is to say carries loss.
        out: folder of the result: the model, or its adapter; `apportion.json`; checkpoints.
        recipe: how; by default adapters of rank 16, one epoch.
        evaluate: a file like `data`, whose loss is measured before and after.
        fresh: start over where `out` holds another run, or a part of this one.
        progress: called with step, steps and what is logged.

    Raises:
        InputError: a line of the data, a setting, or a folder that can't be used; a loss that is
            not finite, with step, batch and sample; a checkpoint that can't be written.
    """
    recipe = recipe or Recipe()
    require("accelerate", "finetune")
    _refuse_several_processes()
    folder = Path(out)
    _check_folder(folder, fresh)
    with models.quietly():
        return _train(model, data, folder, recipe, evaluate, progress)


def _train(
    model: str | Path,
    data: str | Path,
    folder: Path,
    recipe: Recipe,
    evaluate: str | Path | None,
    progress: Progress | None,
) -> Tuned:
    torch.manual_seed(recipe.seed)
    run = _prepare(model, data, evaluate, recipe)
    known: dict[str, Any] = _known(folder, run.identity)
    if known.get("finished"):
        warnings.warn(
            f"{folder} holds this run, finished, so nothing was trained; "
            f"{option('fresh', True)} starts over",
            InputWarning,
            stacklevel=3,
        )
        return Tuned.from_dict(read_json(folder / RESULT)["result"])
    resumed = checkpoints(folder)[-1] if checkpoints(folder) else None
    chosen: dict[str, Any] = known or {"run": run.identity, **_settings(run)}
    tuner = _tuner(run, folder, chosen["checkpointing"])
    if not known:
        known = {**chosen, "eval_before": _evaluated(tuner)}
        write_json(folder / RUN, known)
    watch = _run(tuner, run, known["settings"], resumed, progress)
    result = _result(run, tuner, watch, known, resumed, folder)
    try:
        with staged(folder) as work:
            models.save(run.model, run.tokenizer, work)
    except Exception as error:
        if not could_not_write(error):
            raise
        raise InputError(unwritten(folder, error)) from error
    write_json(folder / RESULT, {"run": run.identity, "result": result.to_dict()})
    write_json(folder / RUN, {**known, "finished": True})
    return result


@dataclass
class _Prepared:
    """A run that is ready to start."""

    model: nn.Module
    tokenizer: Any
    samples: Samples
    held_out: Samples | None
    recipe: Recipe
    identity: dict[str, Any]
    before: int


def _refuse_several_processes() -> None:
    count = os.environ.get("WORLD_SIZE", "1")
    if count not in ("", "1"):
        raise InputError(
            f"expected one process, got {count} (WORLD_SIZE, as torchrun sets it), which would all "
            "write to the same folder; start it without torchrun, or use "
            "apportion.finetune.attach with your own Trainer under it"
        )


def _check_folder(folder: Path, fresh: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"expected a folder for the result, got the file {folder}")
    if fresh and (folder / RUN).is_file():
        for path in checkpoints(folder):
            shutil.rmtree(path)
        (folder / RUN).unlink()
        (folder / RESULT).unlink(missing_ok=True)
    elif folder.is_dir() and any(folder.iterdir()) and not (folder / RUN).is_file():
        raise InputError(
            f"expected an empty folder, or one of this run to resume, got {folder}, which holds "
            f"other files; give {option('out', f'{folder}-tuned')}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error


def _prepare(
    source: str | Path, data: str | Path, evaluate: str | Path | None, recipe: Recipe
) -> _Prepared:
    """Read everything, and refuse what can't be used before the first step."""
    dtype = recipe.compute_dtype()
    # Weights that are trained stay in float32 under autocast; frozen ones need not.
    frozen = dtype if recipe.lora is not None else torch.float32
    before = held_bytes(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    model, tokenizer = models.load(source, frozen)
    recipe = recipe.within(models.positions(model))
    read = partial(
        read_samples, tokenizer=tokenizer, length=recipe.tokens, truncate=recipe.truncate
    )
    samples, held_out = read(data), None if evaluate is None else read(evaluate)
    for each in (samples, held_out):
        if each is not None and each.dropped:
            warnings.warn(dropped_note(each), InputWarning, stacklevel=3)
    if recipe.lora is not None:
        model = models.adapted(model, recipe.lora, LORA_ALPHA_PER_RANK * recipe.lora)
    identity = {
        "model": str(Path(source).resolve() if Path(source).exists() else source),
        "data": digest(samples.kept),
        "evaluation": None if held_out is None else digest(held_out.kept),
        **recipe.identity(),
        "dtype": str(dtype).removeprefix("torch."),
    }
    return _Prepared(model, tokenizer, samples, held_out, recipe, identity, before)


def _known(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What was noted when this run began; empty for one that begins now."""
    if not (folder / RUN).is_file():
        return {}
    known = read_json(folder / RUN)
    before = known.get("run") if isinstance(known, dict) else None
    # By way of JSON, as the other was.
    now = json.loads(json.dumps(identity))
    if isinstance(before, dict) and before == now:
        return known
    old = before if isinstance(before, dict) else {}
    differ = [f"{n}: {old.get(n)} there, {now.get(n)} here" for n in now if old.get(n) != now[n]]
    raise InputError(
        f"{folder} holds another run ({'; '.join(differ)}); give another {option('out')}, or "
        f"{option('fresh', True)} to start over in it"
    )


def _settings(run: _Prepared) -> dict[str, Any]:
    """Keyword arguments of `attach`, from the recipe or from a plan for its memory."""
    recipe = run.recipe
    if recipe.memory is None:
        return {"settings": recipe.settings, "checkpointing": False, "predicted": None}
    dtype = recipe.compute_dtype()
    kind = models.tensor_device(run.model).type
    with torch.autocast(kind, dtype=dtype, enabled=dtype != torch.float32):
        found = plan(
            run.model,
            batch=recipe.batch,
            length=max(len(sample.ids) for sample in run.samples.kept),
            memory=recipe.memory,
            loss_share=run.samples.loss_share,
        ).best
    settings = None if found.settings is None else {**recipe.settings, **found.settings}
    names = ("name", "peak_bytes", "stored_bytes", "seconds", "cosine")
    predicted = {name: getattr(found, name) for name in names}
    return {"settings": settings, "checkpointing": found.checkpointing, "predicted": predicted}


def _tuner(run: _Prepared, folder: Path, checkpointing: bool) -> FineTuner:
    recipe, kept = run.recipe, run.samples.kept
    items = recipe.items(len(kept))
    indices = order([len(s.ids) for s in kept], items, recipe.batch, recipe.seed)
    steps = math.ceil(math.ceil(items / recipe.batch) / recipe.accumulate)
    # Checkpoints fall on logged steps, so that no average of losses spans a kill.
    logging = next(n for n in range(max(1, steps // LOGGED), 0, -1) if recipe.save_every % n == 0)
    autocast = recipe.compute_dtype() == torch.bfloat16
    arguments = training_arguments(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=recipe.batch,
        per_device_eval_batch_size=recipe.batch,
        gradient_accumulation_steps=recipe.accumulate,
        learning_rate=recipe.rate,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(WARMUP * steps),
        seed=recipe.seed,
        bf16=autocast,
        **{models.CHECKPOINTING: checkpointing},
        logging_steps=logging,
        save_steps=recipe.save_every,
        eval_strategy="no" if not (run.held_out and recipe.eval_every) else "steps",
        eval_steps=recipe.eval_every,
    )
    pad = run.tokenizer.pad_token_id
    tuner = FineTuner(
        model=run.model,
        args=arguments,
        data_collator=Collate(0 if pad is None else pad),
        train_dataset=Run(kept, indices),
        eval_dataset=run.held_out.kept if run.held_out else None,
    )
    tuner.chunked_eval = recipe.loss == "chunked"
    return tuner


def _run(
    tuner: FineTuner,
    run: _Prepared,
    settings: dict[str, Any] | None,
    resumed: Path | None,
    progress: Progress | None,
) -> Watch:
    """Train with ours attached, unless the plan found that there is room for more."""
    ours = nullcontext() if settings is None else attach(run.model, **settings)
    with ours as handle:
        watch = callback(
            handle,
            cosine_every=0 if handle is None else run.recipe.cosine_every,
            name=lambda ids: place_of(run.samples.kept, ids),
            progress=progress,
        )
        tuner.add_callback(watch)
        try:
            tuner.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        finally:
            watch.close()
    return watch


def _evaluated(tuner: FineTuner) -> float | None:
    return None if tuner.eval_dataset is None else float(tuner.evaluate()["eval_loss"])


def _result(
    run: _Prepared,
    tuner: FineTuner,
    watch: Watch,
    known: dict[str, Any],
    resumed: Path | None,
    folder: Path,
) -> Tuned:
    history, figures = list(tuner.state.log_history), watch.figures
    losses = [(int(x["step"]), float(x["loss"])) for x in history if "loss" in x]
    evals = [(int(x["step"]), float(x["eval_loss"])) for x in history if "eval_loss" in x]
    done = [loss for step, loss in evals if step == tuner.state.global_step]
    return Tuned(
        out=str(folder),
        steps=tuner.state.global_step,
        epochs=run.recipe.items(len(run.samples.kept)) / len(run.samples.kept),
        samples=len(run.samples.kept),
        final_loss=losses[-1][1] if losses else None,
        losses=losses,
        eval_before=known["eval_before"],
        eval_after=done[-1] if done else _evaluated(tuner),
        evals=evals,
        tokens_per_second=figures.tokens / max(figures.seconds, 1e-9),
        seconds_per_step=figures.seconds / max(figures.steps, 1),
        peak_bytes=figures.peak_bytes,
        before_bytes=run.before,
        stored_bytes=figures.stored_bytes,
        checkpoint_bytes=figures.checkpoint_bytes,
        kept_share=figures.kept_share,
        backward=dict(figures.backward),
        cosines=figures.cosines,
        settings=known["settings"],
        checkpointing=known["checkpointing"],
        predicted=known.get("predicted"),
        resumed_from=None if resumed is None else int(resumed.name.split("-")[1]),
        dropped=run.samples.dropped,
        truncated=run.samples.truncated,
    )
