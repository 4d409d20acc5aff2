"""Reading training data: every form, every mistake with its place."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apportion.errors import InputError, command_line
from apportion.finetune.batches import Collate, Run, digest, order, place_of
from apportion.finetune.encode import read_samples
from finetune.saved import CHATML, sentence, tokenizer

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}"
    "<|im_end|>{% endif %}\n{% endfor %}"
)
# Thinking is dropped from all turns but the last, as some models' templates do.
REWRITING = (
    "{% for m in messages %}{{ m['role'] }}:{% if loop.last %}<think></think>{% endif %}"
    "{{ m['content'] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "seven wizards"},
    {"role": "assistant", "content": "mix potions"},
    {"role": "user", "content": "when"},
    {"role": "assistant", "content": "at dawn"},
]


@pytest.fixture(scope="module")
def words():
    return tokenizer()


def lines(path, *records):
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)
    path.write_text(text, encoding="utf-8")
    return path


def said(words, sample):
    """The texts that carry loss."""
    return [words.decode(sample.ids[a:b]) for a, b in sample.spans]


def test_text_carries_loss_everywhere_and_ends(words, tmp_path):
    path = lines(tmp_path / "a.jsonl", {"text": sentence(1)}, "", {"text": sentence(2)})
    first, second = read_samples(path, words, length=64).kept
    assert said(words, first) == [sentence(1) + "<|im_end|>"]
    assert first.labelled == len(first.ids) - 1
    assert (first.where, second.where) == (f"{path}, line 1", f"{path}, line 3")


def test_only_the_completion_carries_loss(words, tmp_path):
    path = lines(tmp_path / "a.jsonl", {"prompt": "the quick", "completion": " brown fox"})
    (sample,) = read_samples(path, words, length=64).kept
    assert said(words, sample) == [" brown fox<|im_end|>"]
    assert words.decode(sample.ids) == "the quick brown fox<|im_end|>"
    # The prompt's tokens are what the model is prompted with.
    start = sample.spans[0][0]
    assert list(sample.ids[:start]) == words("the quick")["input_ids"]


def test_a_token_across_the_border_is_split(words, tmp_path):
    joined = words("wizards")["input_ids"]
    assert len(joined) < len(words("wiz")["input_ids"]) + len(words("ards")["input_ids"])
    path = lines(tmp_path / "a.jsonl", {"prompt": "wiz", "completion": "ards"})
    (sample,) = read_samples(path, words, length=64).kept
    assert said(words, sample) == ["ards<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marks"])
def test_only_the_assistant_carries_loss(tmp_path, template):
    words = tokenizer(template)
    path = lines(tmp_path / "a.jsonl", {"messages": CHAT})
    (sample,) = read_samples(path, words, length=128).kept
    assert said(words, sample) == ["mix potions<|im_end|>", "at dawn<|im_end|>"]
    assert words.decode(sample.ids) == words.apply_chat_template(CHAT, tokenize=False)


def test_the_same_from_parquet(words, tmp_path):
    records = [
        {"text": sentence(1), "messages": None},
        {"text": None, "messages": CHAT},
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    lines(tmp_path / "a.jsonl", {"text": sentence(1)}, {"messages": CHAT})
    ours = read_samples(tmp_path / "a.parquet", words, length=128)
    expected = read_samples(tmp_path / "a.jsonl", words, length=128)
    assert digest(ours.kept) == digest(expected.kept)
    assert ours.kept[1].where.endswith("a.parquet, row 2")
    assert 0 < ours.loss_share < 1


def test_a_text_in_blocks(words, tmp_path):
    text = "\n".join(sentence(k) for k in range(20))
    (tmp_path / "a.txt").write_text("\ufeff" + text, encoding="utf-8")
    kept = read_samples(tmp_path / "a.txt", words, length=16).kept
    assert words.decode(np.concatenate([s.ids for s in kept])) == text
    assert {len(s.ids) for s in kept[:-1]} == {16}
    start = int(kept[3].where.split("line ")[1].rstrip(")"))
    before = words.decode(np.concatenate([s.ids for s in kept[:3]]))
    assert start == 1 + before.count("\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{text: 1}", "line 2, column 2: expected one JSON object"),
        ("[1, 2]", "line 2: expected a JSON object"),
        ('"words"', "line 2: expected a JSON object"),
        ({"txt": "a"}, "line 2: expected the fields 'text', 'prompt' and 'completion'"),
        ({}, "got none"),
        ({"prompt": "a"}, "line 2: expected 'prompt' and 'completion' together, 'completion' is"),
        ({"completion": "a"}, "'prompt' is missing"),
        ({"prompt": CHAT, "completion": "a"}, "expected text in 'prompt', got list"),
        ({"text": 3}, "line 2: expected text in 'text', got int"),
        ({"messages": "hello"}, "line 2: expected messages as [{"),
        ({"messages": []}, "expected messages as"),
        ({"messages": [{"role": "user"}]}, "line 2, message 1: expected text in 'role' and"),
        ({"messages": CHAT[:2]}, "line 2: expected a turn of the assistant"),
        ({"messages": CHAT[2:3]}, "expected a turn before the assistant's first"),
        ('{"text": "\\ud800"}', "line 2: expected text, got half of a surrogate pair"),
        ("[" * 100_000, "line 2"),
        ("9" * 10_000, "line 2"),
    ],
)
def test_a_bad_line_is_named(words, tmp_path, line, expected):
    path = lines(tmp_path / "a.jsonl", {"text": sentence(1)}, line)
    with pytest.raises(InputError) as error:
        read_samples(path, words, length=64)
    assert expected in str(error.value)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_what_is_not_utf8_is_found_by_its_offset(words, tmp_path, name):
    (tmp_path / name).write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(InputError, match="byte 0xe9 at byte offset 30 of the file"):
        read_samples(tmp_path / name, words, length=64)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.parquet"])
def test_an_empty_file(words, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\n")
    if name == "a.parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(InputError, match="the file is empty"):
        read_samples(path, words, length=64)


def test_files_of_something_else(words, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nowhere.jsonl"):
        read_samples(tmp_path / "nowhere.jsonl", words, length=64)
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(InputError, match=r"plain text as \.txt"):
        read_samples(tmp_path / "a.csv", words, length=64)
    (tmp_path / "a.parquet").write_text("not parquet")
    with pytest.raises(InputError, match="expected a Parquet file"):
        read_samples(tmp_path / "a.parquet", words, length=64)
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"expected columns 'text'.* got words"):
        read_samples(tmp_path / "b.parquet", words, length=64)


def test_templates_that_cannot_be_used(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"messages": CHAT})
    with pytest.raises(InputError, match=r"line 1, message 3: expected a chat template that"):
        read_samples(path, tokenizer(REWRITING), length=128)
    with pytest.raises(InputError, match=r"line 1: expected a tokenizer with a chat template"):
        read_samples(path, tokenizer(None), length=128)
    refusing = "{{ raise_exception('no system turns here') }}"
    with pytest.raises(InputError, match=r"line 1: the chat template refuses .* no system turns"):
        read_samples(path, tokenizer(refusing), length=128)


def test_long_samples_are_refused_or_cut(words, tmp_path):
    path = lines(tmp_path / "a.jsonl", {"text": sentence(1, 4)}, {"text": sentence(2, 40)},
                 {"text": sentence(3, 50)})  # fmt: skip
    lengths = [len(s.ids) for s in read_samples(path, words, length=512).kept]
    with pytest.raises(InputError) as error, command_line({}):
        read_samples(path, words, length=32)
    message = str(error.value)
    assert f"{path}, line 2: expected at most 32 tokens, got {lengths[1]}" in message
    assert f"--length {max(lengths)}" in message
    assert "--truncate" in message
    cut = read_samples(path, words, length=32, truncate=True)
    assert cut.truncated == 2
    assert [len(s.ids) for s in cut.kept] == [lengths[0], 32, 32]


def test_samples_without_a_token_to_predict_are_left_out_by_name(words, tmp_path):
    path = lines(tmp_path / "a.jsonl", {"prompt": "at dawn", "completion": " mix"},
                 {"prompt": "at dawn", "completion": ""},
                 {"prompt": sentence(1, 40), "completion": " mix"})  # fmt: skip
    found = read_samples(path, words, length=32, truncate=True)
    assert [s.where for s in found.kept] == [f"{path}, line 1"]
    assert found.dropped == [f"{path}, line 2", f"{path}, line 3"]
    lines(path, {"prompt": "at dawn", "completion": ""})
    with pytest.raises(InputError, match="expected samples with a token at least to predict"):
        read_samples(path, words, length=32)


@pytest.mark.parametrize(("items", "batch"), [(10, 4), (25, 4), (3, 4), (30, 1), (20, 10)])
def test_the_longest_batch_comes_first_and_every_epoch_is_whole(items, batch):
    lengths = [5, 6, 7, 8, 9, 5, 6, 40, 8, 9]
    found = order(lengths, items, batch, seed=1)
    seen = [lengths[k] for k in found]
    assert max(seen[:batch]) == max(seen)
    assert len(found) == items
    counts = np.bincount(found, minlength=10)
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(found, order(lengths, items, batch, seed=1))
    if items >= 10:
        assert not np.array_equal(found, order(lengths, items, batch, seed=2))


def test_a_batch_is_padded_and_labelled(words, tmp_path):
    path = lines(tmp_path / "a.jsonl", {"prompt": "at", "completion": " dawn"},
                 {"prompt": sentence(1), "completion": " mix potions"})  # fmt: skip
    kept = read_samples(path, words, length=64).kept
    run = Run(kept, np.asarray([1, 0, 1]))
    assert [run[k].where for k in range(len(run))] == [kept[k].where for k in (1, 0, 1)]
    batch = Collate(0)([run[1], run[0]])
    for row, sample in enumerate(kept):
        size = len(sample.ids)
        assert batch["attention_mask"][row].tolist() == [1] * size + [0] * (
            batch["input_ids"].shape[1] - size
        )
        (start, end) = sample.spans[0]
        assert batch["labels"][row, :start].eq(-100).all()
        assert batch["labels"][row, end:].eq(-100).all()
        assert batch["labels"][row, start:end].tolist() == sample.ids[start:end].tolist()
    assert place_of(kept, kept[1].ids.tolist()) == kept[1].where
    assert place_of(kept, [1, 2]) is None
