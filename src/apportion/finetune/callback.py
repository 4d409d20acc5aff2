"""What stands between transformers' Trainer and the sparse backward.

`callback` watches any Trainer: peak memory, what was stored and kept, a loss that is no number, and
on request how close the gradient is to the exact one. `FineTuner` is the Trainer of the command
line: its evaluation never holds all logits, and its checkpoints are whole or not there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from apportion import models
from apportion.errors import InputError, option
from apportion.finetune.attach import Handle
from apportion.finetune.checkpoints import could_not_write, rotate, staged, unwritten
from apportion.finetune.fidelity import Call, cosine_to_exact, random_states
from apportion.finetune.figures import Figures
from apportion.finetune.outside import OutsideLoss
from apportion.finetune.peak import peak_bytes, reset_peak
from apportion.finetune.rows import kept_count
from apportion.finetune.settings import check
from apportion.finetune.tokens import IGNORED

# The evaluation's loss asks nothing of them.
_SETTINGS = check(1.0, "attention", "4bit", "auto", "forward", "model", "chunked", None, 0)


def callback(
    handle: Handle | None = None,
    *,
    cosine_every: int = 0,
    name: Callable[[list[int]], str | None] | None = None,
    progress: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> Watch:
    """A callback for transformers' Trainer and TRL's.

    Its logs are `peak_bytes`, `kept_share`, `stored_bytes`, and at every `cosine_every`-th step
    `gradient_cosine`; they stand in the Trainer's `log_history` beside the loss, and are printed
    when it is given as `Trainer(callbacks=[...])`. A loss that is not finite stops the training
    with step, batch and sample.

    Args:
        handle: what `attach` returned; None: only memory and the loss are watched.
        cosine_every: steps between comparisons with the exact gradient, each of which costs a step
            with gradient checkpointing and one more gradient in memory; 0: never.
        name: from a sample's token ids, padding aside, to what it is called in a message.
        progress: called with step, steps and what is logged, as often as the Trainer logs.

    Raises:
        InputError: `cosine_every` without a handle, or below 0.
    """
    if cosine_every < 0 or (cosine_every and handle is None):
        raise InputError(
            f"expected cosine_every from 0 up, and a handle to compare with, got {cosine_every} "
            f"and {handle}; for example callback(handle, cosine_every=100)"
        )
    return Watch(handle, cosine_every, name, progress)


class Watch(TrainerCallback):
    """See `callback`.

    Attributes:
        figures: so far.
    """

    def __init__(
        self,
        handle: Handle | None,
        cosine_every: int,
        name: Callable[[list[int]], str | None] | None,
        progress: Callable[[int, int, dict[str, Any]], None] | None,
    ) -> None:
        self.figures = Figures()
        self._handle = handle
        self._cosine_every = cosine_every
        self._name = name
        self._progress = progress
        self._undo: list[Callable[[], None]] = []
        self._calls: list[Call] = []
        self._given: dict[str, Any] = {}
        self._batch = self._step = 0
        self._wanted = self._busy = False
        self._began = 0.0
        self._device = torch.device("cpu")

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model: nn.Module = given["model"]
        self.figures = Figures()
        self._device = models.tensor_device(model)
        reset_peak(self._device)
        if self._handle is not None:
            self._handle.steps = state.global_step * args.gradient_accumulation_steps
        before = model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        after = model.register_forward_hook(self._after, with_kwargs=True)
        self._undo = [before.remove, after.remove]

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model; done at the end of training, needed after an error."""
        while self._undo:
            self._undo.pop()()
        self.figures.peak_bytes = peak_bytes(self._device)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._calls.clear()
        self._batch, self._step = 0, state.global_step
        self._wanted = bool(self._cosine_every) and (self._step + 1) % self._cosine_every == 0
        self._began = time.perf_counter()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._note_rows()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._note_rows()
        if self._wanted and self._handle is not None:
            paused = time.perf_counter()
            self._busy = True
            try:
                found = cosine_to_exact(given["model"], self._handle, self._calls)
            finally:
                self._busy = False
            self.figures.cosines.append((self._step, found))
            self._began += time.perf_counter() - paused

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.figures.seconds += time.perf_counter() - self._began
        self.figures.steps += 1
        self._calls.clear()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        logs: dict[str, Any] = given.get("logs") or {}
        if "loss" not in logs:
            return
        self.figures.peak_bytes = peak_bytes(self._device)
        more: dict[str, Any] = {"peak_bytes": self.figures.peak_bytes}
        if self._handle is not None:
            more["kept_share"] = self.figures.kept_share
            more["stored_bytes"] = self.figures.stored_bytes
        if self.figures.cosines and self.figures.cosines[-1][0] == state.global_step - 1:
            more["gradient_cosine"] = self.figures.cosines[-1][1]
        logs.update(more)
        state.log_history[-1].update(more)
        if self._progress is not None:
            speed = self.figures.tokens / max(self.figures.seconds, 1e-9)
            self._progress(state.global_step, state.max_steps, {**logs, "tokens_per_second": speed})

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._busy or not (module.training and torch.is_grad_enabled()):
            return
        # As the caller gave them: the hooks of `attach` take the labels away.
        self._given = models.arguments_of(module, args, kwargs)
        if self._wanted:
            self._calls.append(Call(self._given, random_states()))

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if self._busy or not (module.training and torch.is_grad_enabled()):
            return
        given, self._given = self._given, {}
        self._batch += 1
        self._count(given)
        loss = output[0] if isinstance(output, tuple) else getattr(output, "loss", None)
        if not isinstance(loss, Tensor) or loss.ndim:
            return
        if not math.isfinite(found := float(loss.detach())):
            raise InputError(self._not_finite(module, given, found))

    def _count(self, given: dict[str, Any]) -> None:
        mask, ids = given.get("attention_mask"), given.get("input_ids")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            self.figures.tokens += int(mask.sum())
        elif isinstance(ids, Tensor):
            self.figures.tokens += ids.numel()
        if self._handle is not None:
            stored = sum(self._handle.ledger.stored.values())
            if stored > self.figures.stored_bytes:
                self.figures.stored_bytes = stored
                self.figures.checkpoint_bytes = sum(self._handle.ledger.dense.values())

    def _note_rows(self) -> None:
        """After a batch's backward, when its rows are known."""
        step = None if self._handle is None else self._handle.ledger.step
        if step is None:
            return
        self.figures.backward[step.backward] += 1
        if step.backward == "full":
            self.figures.kept += 1.0
        elif step.kept is not None:
            self.figures.kept += step.kept.shape[1] / step.length
        else:
            self.figures.kept += kept_count(step.settings.cap, step.length) / step.length

    def _not_finite(self, model: nn.Module, given: dict[str, Any], loss: float) -> str:
        """Which samples it comes from, each run by itself."""
        ids, count = given["input_ids"], given["input_ids"].shape[0]
        bad: list[int] = []
        for row in range(count):
            one = {
                name: value[row : row + 1]
                for name, value in given.items()
                if isinstance(value, Tensor) and value.ndim and value.shape[0] == count
            }
            with torch.no_grad():
                alone = model(**one).loss
            if alone is None or not math.isfinite(float(alone)):
                bad.append(row)
        start = f"expected a finite loss, got {loss} at step {self._step}, batch {self._batch - 1}"
        if len(bad) == count and not all(bool(p.isfinite().all()) for p in model.parameters()):
            if self._step == 0:
                return f"{start}: the weights are not finite as they were loaded"
            return (
                f"{start}: the weights themselves are not finite after step {self._step - 1}; "
                f"lower {option('learning_rate')}"
            )
        places = "; ".join(self._place(row, ids, given.get("attention_mask")) for row in bad)
        return (
            f"{start} of that step: {places or 'no sample alone gives it'}; look at them, or "
            + (f"lower {option('learning_rate')}")
        )

    def _place(self, row: int, ids: Tensor, mask: Any) -> str:
        own = ids[row] if mask is None else ids[row][mask[row].bool()]
        found = None if self._name is None else self._name(own.tolist())
        return found or f"sample {row} of the batch (token ids {own[:8].tolist()}…)"


def training_arguments(**given: Any) -> TrainingArguments:
    """The Trainer's arguments, and what all our runs have in common."""
    return TrainingArguments(
        save_strategy="steps",
        report_to="none",
        disable_tqdm=True,
        # A loss that is not finite is shown as it is.
        logging_nan_inf_filter=False,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        label_names=["labels"],
        prediction_loss_only=True,
        use_cpu=not (torch.cuda.is_available() or torch.backends.mps.is_available()),
        dataloader_pin_memory=torch.cuda.is_available(),
        weight_decay=0.0,
        **given,
    )


class FineTuner(Trainer):
    """The Trainer with an evaluation in chunks and checkpoints that are whole or not there.

    Attributes:
        keep_checkpoints: how many stay.
        chunked_eval: the evaluation's loss is computed outside of the model, in chunks.
    """

    keep_checkpoints = 2
    chunked_eval = True
    _work: Path | None = None
    _outside: OutsideLoss | None = None
    _sums = (0.0, 0)

    def __init__(self, model: nn.Module, **given: Any) -> None:
        self._whole = model
        super().__init__(model=model, **given)
        self.remove_callback(PrinterCallback)

    def evaluation_loop(self, *args: Any, **given: Any) -> Any:
        """As the Trainer's, but the loss is the mean over tokens, not over batches."""
        self._sums = (0.0, 0)
        with ExitStack() as undo:
            if self.chunked_eval:
                self._outside = OutsideLoss(models.unwrap(self._whole), _SETTINGS)
                undo.callback(self._outside.watch())
            found = super().evaluation_loop(*args, **given)
        total = torch.tensor(self._sums, dtype=torch.float64, device=self.args.device)
        total = self.accelerator.reduce(total, "sum")
        if float(total[1]) and found.metrics is not None:
            found.metrics["eval_loss"] = float(total[0] / total[1])
        return found

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """The loss of a batch, without its logits."""
        given = self._prepare_inputs(inputs)
        count = int((given["labels"][:, 1:] != IGNORED).sum())
        with torch.no_grad():
            if self._outside is not None:
                self._outside.take_over(given)
            output = model(**given)
            if self._outside is not None:
                output = self._outside.finish(output)
        loss = output["loss"].detach()
        self._sums = (self._sums[0] + float(loss) * count, self._sums[1] + count)
        return loss, None, None

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._work is None else str(self._work)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write beside, then rename; what can't be written leaves the checkpoint before."""
        folder = Path(super()._get_output_dir(trial))
        try:
            with staged(folder) as self._work:
                super()._save_checkpoint(model, trial)
                # Pickled, and read by nothing.
                for path in self._work.glob("*/training_args.bin"):
                    path.unlink()
        except Exception as error:
            if not could_not_write(error):
                raise
            raise InputError(unwritten(folder, error)) from error
        finally:
            self._work = None
        rotate(folder, self.keep_checkpoints)
