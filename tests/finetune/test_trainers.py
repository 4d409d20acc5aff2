"""The real Trainer and SFTTrainer, unchanged."""

from __future__ import annotations

import warnings

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from apportion import finetune as ft
from apportion.errors import InputError
from finetune.tiny import VOCABULARY, make

SAMPLES = 8


def samples() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (SAMPLES, 24), generator=generator)
    labels = torch.where(torch.arange(24) < 20, -100, ids)
    rows = {"input_ids": ids.tolist(), "labels": labels.tolist()}
    return Dataset.from_dict({**rows, "attention_mask": torch.ones_like(ids).tolist()})


def settings(folder, **more) -> dict[str, object]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
        **more,
    }


def train(folder, model, **more):
    trainer = Trainer(model, TrainingArguments(**settings(folder, **more)), train_dataset=samples())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_with_keep_1_gives_the_same_losses(tmp_path):
    expected = train(tmp_path, make("llama"))
    model = make("llama")
    with ft.attach(model, keep=1.0):
        found = train(tmp_path, model)
    # Its log holds the losses to four digits.
    assert found == pytest.approx(expected, rel=1e-4)


def test_trainer_keeps_fewer_rows_than_all(tmp_path):
    model = make("llama")
    with ft.attach(model, keep=0.25) as sparse:
        losses = train(tmp_path, model)
        assert sparse.ledger.step.backward == "sparse"
        assert [rows.shape for rows in sparse.ledger.rows()] == [(2, 6)] * 3
    assert len(losses) == 2


def test_trainers_own_checkpointing_is_noticed_at_the_first_step(tmp_path):
    model = make("llama")
    with warnings.catch_warnings(), ft.attach(model, keep=0.25):
        warnings.simplefilter("ignore", FutureWarning)
        with pytest.raises(InputError, match="pass gradient_checkpointing=False"):
            train(tmp_path, model, gradient_checkpointing=True)


def sft(folder, model, **more):
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(**settings(folder, **more))
    return SFTTrainer(model, config, train_dataset=samples(), processing_class=tokenizer())


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{k}": k for k in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w2")),
        pad_token="w0",
        eos_token="w2",
    )


def test_sft_trainer_with_its_defaults_is_told_what_to_change(tmp_path):
    model = make("llama")
    with warnings.catch_warnings(), ft.attach(model, keep=0.25):
        warnings.simplefilter("ignore")
        trainer = sft(tmp_path, model)
        with pytest.raises(InputError, match="TRL's SFTConfig turns it on by default"):
            trainer.train()


def test_sft_trainer_keeps_fewer_rows_than_all(tmp_path):
    model = make("llama")
    with warnings.catch_warnings(), ft.attach(model, keep=0.25) as sparse:
        warnings.simplefilter("ignore")
        sft(tmp_path, model, gradient_checkpointing=False).train()
        assert sparse.ledger.step.backward == "sparse"
        assert [rows.shape for rows in sparse.ledger.rows()] == [(2, 6)] * 3
