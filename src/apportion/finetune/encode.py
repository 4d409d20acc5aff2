"""Records as token ids, and which of them carry loss.

Only what the model is to say carries loss: the completion, the assistant's turns, the whole of a
plain text. Where a turn begins and ends is known from the tokenizer's own chat template, either by
its marks of what is generated or by templating the conversation up to there; a template that writes
earlier turns differently later on is refused, since its turns can't be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from apportion.budget import counted
from apportion.errors import InputError, option
from apportion.finetune.data import FORMS, is_text, read_text, records

Spans = tuple[tuple[int, int], ...]
_MARKS = re.compile(r"\{%-?\s*generation\b")
_SHOWN = 5


@dataclass(frozen=True)
class Sample:
    """One training example.

    Attributes:
        ids: token ids.
        spans: half-open ranges of `ids` that carry loss.
        where: file and line.
    """

    ids: Int[np.ndarray, " tokens"]
    spans: Spans
    where: str

    @property
    def labelled(self) -> int:
        """Tokens that are predicted: the first of a sample never is."""
        return sum(max(0, end - max(1, start)) for start, end in self.spans)

    def cut(self, length: int) -> Sample:
        """The first `length` tokens."""
        spans = tuple((a, min(b, length)) for a, b in self.spans if a < length)
        return replace(self, ids=self.ids[:length], spans=spans)


@dataclass(frozen=True)
class Samples:
    """What a file gave.

    Attributes:
        kept: to train on.
        dropped: places of samples without a token that carries loss.
        truncated: how many were cut.
    """

    kept: list[Sample]
    dropped: list[str]
    truncated: int

    @property
    def loss_share(self) -> float:
        """Rows that carry loss, of all."""
        return sum(s.labelled for s in self.kept) / max(1, sum(len(s.ids) for s in self.kept))


def read_samples(
    path: str | Path, tokenizer: Any, *, length: int, truncate: bool = False
) -> Samples:
    """Read and tokenize a file.

    Args:
        path: JSONL, Parquet or plain text (which is cut into blocks of `length` tokens).
        tokenizer: of transformers.
        length: the most tokens that a sample may have.
        truncate: cut longer samples instead of refusing them.

    Raises:
        InputError: a line that can't be used, longer samples, or nothing left to train on.
    """
    kept: list[Sample] = []
    dropped: list[str] = []
    long: list[Sample] = []
    for sample in _encoded(path, tokenizer, length):
        if len(sample.ids) > length:
            long.append(sample)
            sample = sample.cut(length)
        if sample.labelled:
            kept.append(sample)
        else:
            dropped.append(sample.where)
    if long and not truncate:
        raise InputError(_too_long(long, length))
    if not kept:
        raise InputError(
            f"{path}: expected samples with a token at least to predict, got none "
            f"({_places(dropped)}); is the completion empty, or cut away by "
            f"{option('length', length)}?"
        )
    return Samples(kept, dropped, len(long))


def dropped_note(samples: Samples) -> str:
    """Which samples are left out, and why."""
    return (
        f"{counted(len(samples.dropped), 'sample')} without a token to predict left out: "
        f"{_places(samples.dropped)}"
    )


def _places(places: Sequence[str]) -> str:
    more = len(places) - _SHOWN
    return "; ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _too_long(long: list[Sample], length: int) -> str:
    longest = max(long, key=lambda sample: len(sample.ids))
    first = long[0]
    more = "" if len(long) == 1 else f"; {len(long)} samples are longer, the longest"
    if more:
        more += f" {longest.where} with {len(longest.ids)}"
    return (
        f"{first.where}: expected at most {length} tokens, got {len(first.ids)}{more}; give "
        f"{option('length', len(longest.ids))}, or cut them with {option('truncate', True)}"
    )


def _encoded(path: str | Path, tokenizer: Any, length: int) -> Iterator[Sample]:
    if is_text(path):
        yield from _blocks(path, tokenizer, length)
        return
    for where, record in records(path):
        try:
            ids, spans = encode(record, where, tokenizer)
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where}: expected text, got half of a surrogate pair ({error.object!r:.60})"
            ) from error
        yield Sample(np.asarray(ids, dtype=np.int32), spans, where)


def _blocks(path: str | Path, tokenizer: Any, length: int) -> Iterator[Sample]:
    """A text in blocks of `length` tokens; the last is shorter."""
    text = read_text(path)
    fast = bool(getattr(tokenizer, "is_fast", False))
    out = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=fast)
    ids = np.asarray(out["input_ids"], dtype=np.int32)
    line, at = 1, 0
    for start in range(0, len(ids), length):
        end = min(start + length, len(ids))
        where = f"{path}, tokens {start} to {end}"
        if fast:
            first = out["offset_mapping"][start][0]
            line += text.count("\n", at, first)
            at = first
            where += f" (from line {line})"
        yield Sample(ids[start:end], ((0, end - start),), where)


def encode(record: Mapping[str, Any], where: str, tokenizer: Any) -> tuple[list[int], Spans]:
    """Token ids of one record, and the ranges that carry loss.

    Args:
        record: its fields; `messages` go before `prompt`, and these before `text`.
        where: for messages.
        tokenizer: of transformers.

    Raises:
        InputError: a field is missing or is not text, or the chat template can't be used.
    """
    if "messages" in record:
        return _chat(record["messages"], where, tokenizer)
    if "prompt" in record or "completion" in record:
        return _pair(_text(record, "prompt", where), _text(record, "completion", where), tokenizer)
    if "text" in record:
        ids = _with_end(_ids(tokenizer, _text(record, "text", where), special=True), tokenizer)
        return ids, ((0, len(ids)),)
    names = ", ".join(map(repr, record)) or "none"
    raise InputError(f"{where}: expected the fields {FORMS}; got {names}")


def _text(record: Mapping[str, Any], name: str, where: str) -> str:
    if name not in record:
        raise InputError(
            f"{where}: expected 'prompt' and 'completion' together, {name!r} is missing"
        )
    value = record[name]
    if not isinstance(value, str):
        raise InputError(
            f"{where}: expected text in {name!r}, got {type(value).__name__}; conversations go "
            "into 'messages'"
        )
    return value


def _ids(tokenizer: Any, text: str, special: bool) -> list[int]:
    text.encode()  # half a surrogate pair is found here
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def _with_end(ids: list[int], tokenizer: Any) -> list[int]:
    end = tokenizer.eos_token_id
    return ids if end is None or not ids or ids[-1] == end else [*ids, end]


def _pair(prompt: str, completion: str, tokenizer: Any) -> tuple[list[int], Spans]:
    """The prompt as the model will see it alone, then the completion."""
    if not completion:
        return _ids(tokenizer, prompt, special=True), ()
    before = _ids(tokenizer, prompt, special=True)
    if before and before[-1] == tokenizer.eos_token_id and prompt:
        before = before[:-1]
    ids = _ids(tokenizer, prompt + completion, special=True)
    # A token across the border would not be there when the model is prompted.
    if ids[: len(before)] != before:
        ids = before + _ids(tokenizer, completion, special=False)
    ids = _with_end(ids, tokenizer)
    return ids, ((len(before), len(ids)),)


def _chat(messages: Any, where: str, tokenizer: Any) -> tuple[list[int], Spans]:
    _check_messages(messages, where)
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:
        raise InputError(
            f"{where}: expected a tokenizer with a chat template for 'messages', this one has "
            "none; give 'prompt' and 'completion' instead"
        ) from error
    if _MARKS.search(template):
        out = _apply(
            tokenizer, messages, where,
            tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
        )  # fmt: skip
        return list(out["input_ids"]), _ranges(out["assistant_masks"])
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for part, loss in _parts(messages, where, tokenizer):
        new = _ids(tokenizer, part, special=False)
        if loss:
            spans.append((len(ids), len(ids) + len(new)))
        ids += new
    return ids, tuple(spans)


def _check_messages(messages: Any, where: str) -> None:
    form = '[{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]'
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: expected messages as {form}, got {messages!r:.60}")
    for number, message in enumerate(messages, start=1):
        fine = isinstance(message, Mapping) and all(
            isinstance(message.get(name), str) for name in ("role", "content")
        )
        if not fine:
            raise InputError(
                f"{where}, message {number}: expected text in 'role' and 'content' as in {form}, "
                f"got {message!r:.60}"
            )
    if not any(message["role"] == "assistant" for message in messages):
        raise InputError(f"{where}: expected a turn of the assistant at least, which carries loss")
    if messages[0]["role"] == "assistant":
        raise InputError(f"{where}: expected a turn before the assistant's first")


def _parts(messages: Any, where: str, tokenizer: Any) -> Iterator[tuple[str, bool]]:
    """The conversation's text in pieces, and whether the assistant said them."""
    whole = _apply(tokenizer, messages, where)
    end, done = tokenizer.eos_token, 0
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _apply(tokenizer, messages[:k], where, add_generation_prompt=True)
        after = _apply(tokenizer, messages[: k + 1], where)
        fits = whole.startswith(after) and after.startswith(before) and len(before) >= done
        if not fits:
            raise InputError(
                f"{where}, message {k + 1}: expected a chat template that writes a conversation "
                "as the beginning of every longer one, this one writes the assistant's turn "
                "differently; use a template with {% generation %} marks, or give 'prompt' and "
                "'completion'"
            )
        said = after[len(before) :]
        # Blanks after the end of the turn are not the model's to say.
        cut = said.rfind(end) + len(end) if end and end in said else len(said.rstrip())
        yield whole[done : len(before)], False
        yield said[:cut], True
        done = len(before) + cut
    if done < len(whole):
        yield whole[done:], False


def _apply(tokenizer: Any, messages: Any, where: str, **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(messages, **{"tokenize": False, **options})
    except Exception as error:  # a template may raise what it likes
        raise InputError(f"{where}: the chat template refuses these messages: {error}") from error


def _ranges(mask: Sequence[int]) -> Spans:
    """Ranges of ones."""
    edges = np.flatnonzero(np.diff(np.asarray([0, *mask, 0])))
    return tuple((int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True))
