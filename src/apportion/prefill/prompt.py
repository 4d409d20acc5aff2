"""What stands before the context and what after it: a chat template, split where the text goes.

The part before opens the first chunk, so its first tokens are the sinks. Question and the opening
of the answer follow the context; the whole of it observes where the question is known.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

_CONTEXT, _QUESTION = "\u2063context\u2063", "\u2063question\u2063"


class Prompt:
    """A tokenizer's chat template around a context; a plain form for models without one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._before, self._between, self._after = "", "\n\nQuestion: ", "\nAnswer:"
        self.chat = bool(getattr(tokenizer, "chat_template", None))
        if self.chat:
            message = {"role": "user", "content": f"{_CONTEXT}\n\n{_QUESTION}"}
            whole = tokenizer.apply_chat_template(
                [message], tokenize=False, add_generation_prompt=True
            )
            self._before, rest = whole.split(_CONTEXT, 1)
            self._between, self._after = rest.split(_QUESTION, 1)

    def opening(self) -> list[int]:
        """Token ids before the context."""
        if self.chat:
            return self._ids(self._before)
        first = getattr(self.tokenizer, "bos_token_id", None)
        # Tokenizers that put such a token before a text have models that expect it.
        own = self.tokenizer("a")["input_ids"]
        return [first] if first is not None and own[:1] == [first] else []

    def context(self, text: str) -> list[int]:
        """Token ids of the context itself."""
        return self._ids(text)

    def question(self, text: str) -> Int[Tensor, " tokens"]:
        """Token ids after the context: the question, and the opening of the answer."""
        return torch.tensor(self._ids(f"{self._between}{text}{self._after}"))

    def answer(self, ids: list[int]) -> str:
        """Text of generated ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _ids(self, text: str) -> list[int]:
        # Not too long: that is what this package is for, so the tokenizer need not warn.
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
