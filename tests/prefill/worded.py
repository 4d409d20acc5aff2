"""A tokenizer of whole words for the tiny decoders, so that anything they say can be compared."""

from __future__ import annotations

from random import Random

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from finetune.tiny import VOCABULARY

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
# Of the words about every eighth ends a sentence.
WORDS = tuple(f"w{k}" + "." * (k % 8 == 0) for k in range(len(SPECIAL), VOCABULARY))
CHAT = (
    "{% for m in messages %}<s> {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> {% endif %}"
)


def tokenizer(template: str | None = CHAT) -> PreTrainedTokenizerFast:
    """One token a word; words that it has not seen are all the same one."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    made.chat_template = template
    return made


def prose(words: int, seed: int = 0) -> str:
    """Words in sentences."""
    return " ".join(Random(seed).choices(WORDS, k=words))
