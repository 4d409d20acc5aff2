"""A tiny model with a tokenizer as `save_pretrained` writes them, and data to train it on."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 300
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards mix potions at dawn"
WORDS = TEXT.split(" ")


def sentence(number: int, words: int = 8) -> str:
    """Words that differ from number to number."""
    return " ".join(WORDS[(number * 5 + k * (1 + number % 3)) % len(WORDS)] for k in range(words))


def tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Bytes and a few merges, with ChatML's special tokens."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator((sentence(k) for k in range(50)), trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    made.chat_template = template
    return made


def save_model(folder: Path, dropout: float = 0.0, template: str | None = CHATML) -> Path:
    """A Llama of two layers; dropout acts on its attention."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attention_dropout=dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return folder


def save_pairs(path: Path, count: int = 24, words: int = 8) -> Path:
    """Prompts and completions; one is longer than the others."""
    lines = [
        {"prompt": f"{sentence(k, words + 12 * (k == 5))} ->", "completion": f" {sentence(k, 3)}"}
        for k in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
