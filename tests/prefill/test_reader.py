"""Readers: texts, streams and batches of any length, and what they refuse."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from apportion.errors import InputError
from apportion.prefill.reader import Reader
from apportion.prefill.schedule import SCHEDULES
from apportion.prefill.source import _between_tokens
from finetune import tiny
from finetune.saved import TEXT, tokenizer
from prefill.decoders import build
from prefill.engines import ids_of, near, plain, same, snapshot

pytestmark = pytest.mark.usefixtures("unmetered")

QUESTION = torch.tensor([5, 60, 7])
GROWING = [name for name in sorted(SCHEDULES) if name != "adaptive"]


def reader_of(model=None, memory=12, chunk=8, **options):
    model = build("llama", num_hidden_layers=2) if model is None else model
    return Reader(model, None, memory, chunk, **options)


@cache
def speaker() -> tuple[torch.nn.Module, object]:
    """A model and its tokenizer."""
    return build("llama", num_hidden_layers=2, vocab_size=300), tokenizer()


def worded(**options) -> Reader:
    return Reader(*speaker(), **{"memory": 12, "chunk": 8, **options})


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "phi"])
@pytest.mark.parametrize("chunks", ["fixed", "decremental"])
def test_memory_that_is_large_enough_changes_nothing(name, chunks):
    model = build(name)
    ids, _ = ids_of(30)
    context = reader_of(model, 60, 7, schedule="fixed", chunks=chunks).read(ids)
    assert near(context.logits, plain(model, ids)[:, -1])
    answer, text = context.ask(QUESTION, max_new_tokens=5), torch.cat([ids[0], QUESTION])
    for token in answer.ids:
        assert token == int(plain(model, text[None])[0, -1].argmax())
        text = torch.cat([text, torch.tensor([token])])
    assert len(answer.ids) == 5
    assert answer.kept_share == 1.0 or name in ("mistral", "gemma3_text")


def test_asking_again_is_the_same_and_changes_nothing():
    context = reader_of().read(ids_of(60)[0])
    before = snapshot(context.engine)
    first, other, again = (
        context.ask(q, max_new_tokens=6, temperature=2.0)
        for q in (QUESTION, QUESTION.flip(0), QUESTION)
    )
    assert first.ids == again.ids
    assert len(set(first.ids)) > 1
    assert other.known is first.known is False
    assert same(before, snapshot(context.engine))


@pytest.mark.parametrize("scorer", ["snapkv", "h2o"])
def test_padding_on_either_side(scorer):
    made, sizes = tiny.batch((40, 23, 31)), (40, 23, 31)
    ids, mask = made["input_ids"], made["attention_mask"]
    texts = [ids[row, :size] for row, size in enumerate(sizes)]
    left = torch.stack([row.roll(40 - size) for row, size in zip(ids, sizes, strict=True)])
    reader = reader_of(scorer=scorer)
    context = reader.read(ids, attention_mask=mask)
    other = reader.read(left, attention_mask=mask.flip(1))
    assert torch.equal(context.logits, other.logits)
    assert same(snapshot(context.engine), snapshot(other.engine))
    # Without eviction each is as it would be alone.
    reader = reader_of(memory=60, scorer=scorer)
    large = reader.read(ids, attention_mask=mask)
    for row, text in enumerate(texts):
        alone = reader.read(text[None])
        assert near(large.logits[row], alone.logits[0])
        drawn = {"max_new_tokens": 4, "temperature": 2.0}
        assert large.ask(QUESTION, sample=row, **drawn).ids == alone.ask(QUESTION, **drawn).ids


def test_columns_that_are_padding_in_all_samples_are_not_read():
    ids, mask = torch.full((1, 50), 9), torch.zeros(1, 50, dtype=torch.int64)
    mask[:, 20:31] = 1
    assert reader_of().read(ids, attention_mask=mask).tokens == 11


@pytest.mark.parametrize(
    ("length", "chunk", "memory"), [(1, 8, 12), (5, 8, 12), (20, 8, 90), (9, 1, 1), (30, 29, 2)]
)
@pytest.mark.parametrize("chunks", ["fixed", "decremental"])
@pytest.mark.parametrize("schedule", ["linear", "adaptive"])
def test_small_and_large(length, chunk, memory, chunks, schedule):
    reader = reader_of(None, memory, chunk, schedule=schedule, chunks=chunks)
    context = reader.read(ids_of(length)[0])
    assert context.tokens == length
    assert sum(step.tokens for step in context.trace) == length
    assert context.engine.lengths() == [min(length, memory + 4)] * 2
    assert len(context.ask(QUESTION, max_new_tokens=3).ids) == 3
    if memory + 4 >= length and len(context.trace) == 1:
        assert near(context.logits, plain(reader.model, ids_of(length)[0])[:, -1])


@pytest.mark.parametrize("schedule", GROWING)
@pytest.mark.parametrize("chunks", ["fixed", "decremental"])
def test_memory_only_grows_and_is_whole_at_the_end(schedule, chunks):
    context = reader_of(memory=24, chunk=12, schedule=schedule, chunks=chunks).read(ids_of(90)[0])
    for layer in range(2):
        kept = [step.memory[layer] for step in context.trace]
        assert kept == sorted(kept)
    held = [0, 0]
    for step in context.trace:
        # All that there is room for: some keep next to nothing before the end.
        assert all(
            now <= min(28, before + step.tokens)
            for now, before in zip(step.memory, held, strict=True)
        )
        held = step.memory
    assert held == [
        min(28, before + context.trace[-1].tokens) for before in context.trace[-2].memory
    ]
    # A second turn keeps it, whatever its length.
    for length in (1, 15):
        context.extend(ids_of(length)[0])
        before, held = held, context.engine.lengths()
        assert held == [min(28, each + length) for each in before]


def test_a_second_turn_before_memory_was_full():
    context = reader_of(memory=60).read(ids_of(20)[0])
    assert context.engine.lengths() == [20] * 2
    context.extend(ids_of(30)[0])
    assert context.engine.lengths() == [50] * 2
    context.extend(ids_of(30)[0])
    assert context.engine.lengths() == [64] * 2


def test_two_turns_are_one_text():
    ids, _ = ids_of(48)
    reader = reader_of(schedule="fixed", chunks="fixed", scorer="h2o")
    whole, turns = reader.read(ids), reader.read(ids[:, :16])
    turns.extend(ids[:, 16:40])
    turns.extend(ids[:, 40:])
    assert torch.equal(whole.logits, turns.logits)
    assert same(snapshot(whole.engine), snapshot(turns.engine))
    assert torch.equal(turns.ids, ids.int())
    assert [step.start for step in turns.trace] == [0, 8, 16, 24, 32, 40]


LONG = " ".join([TEXT, TEXT.title(), TEXT.upper()])
TEXTS = {
    "words": LONG,
    "lines": LONG.replace(" over", "\n\nover ").replace("fox", "fox.\n\n  "),
    "spaces": "  " + LONG.replace(" jumps", "    jumps") + "  \n",
}


@pytest.mark.parametrize(
    ("name", "piece"), [("words", 1), ("words", 10_000), ("lines", 1), ("lines", 50), ("spaces", 7)]
)
def test_a_stream_is_the_text_that_it_carries(name, piece):
    text, reader = TEXTS[name], worded(chunk=32, schedule="fixed", chunks="fixed")
    pieces = (text[k : k + piece] for k in range(0, len(text), piece))
    streamed, whole = reader.read(pieces), reader.read(text)
    assert torch.equal(streamed.ids, whole.ids)
    assert torch.equal(streamed.logits, whole.logits)
    assert same(snapshot(streamed.engine), snapshot(whole.engine))
    if piece == 1:
        ids = reader.read(whole.ids.long())
        assert torch.equal(ids.logits, whole.logits)


@pytest.mark.parametrize("schedule", GROWING)
def test_a_stream_grows_with_what_has_come(schedule):
    # Paced as a text of eight times the memory: 64 tokens, 16 chunks.
    reader = worded(memory=8, chunk=4, schedule=schedule, chunks="decremental")
    context = reader.read(f"{word} " for word in LONG.split())
    kept = [step.memory for step in context.trace]
    for layer in range(2):
        assert [each[layer] for each in kept] == sorted(each[layer] for each in kept)
    assert context.tokens > 80
    assert all(step.tokens <= 4 for step in context.trace)
    assert all(each == [12] * 2 for each in kept[15:])
    assert max(kept[3]) < 12 or schedule == "fixed"
    if schedule == "linear":
        assert kept[:16] == [[4 + (t + 1) // 2 or 1] * 2 for t in range(16)]


def test_a_stream_reads_before_it_ends():
    reader, read = worded(chunk=32, memory=8), []

    def pieces():
        for k in range(12):
            read.append(k)
            yield f"{TEXT} "

    seen = []
    hook = reader.model.model.register_forward_pre_hook(lambda *args: seen.append(len(read)))
    reader.read(pieces())
    hook.remove()
    assert seen[0] < 3
    assert seen[len(seen) // 2] < 9


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", 0),
        ("fox", 0),
        ("fox ", 0),
        ("fox j", 3),
        ("the fox jumps", 7),
        ("fox.\n\nThe", 0),
        ("fox  jumps", 0),
        ("der Fuß l", 7),
        ("x" * 5000, 5000),
        ("-\n" + "-" * 5000, 2),
    ],
)
def test_streams_are_cut_where_no_token_goes_across(text, cut):
    assert _between_tokens(text) == cut


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda r: r.read(""), "expected a text, got an empty one"),
        (lambda r: r.read(" \n"), "got an empty one"),
        (lambda r: r.read(iter([])), "got an empty one"),
        (lambda r: r.read(["", ""]), "got an empty one"),
        (lambda r: r.read(torch.zeros(1, 0, dtype=torch.int64)), "got an empty one"),
        (lambda r: r.read("a", attention_mask=torch.ones(1, 1, dtype=torch.int64)), "with text"),
        (lambda r: r.read("a", questions=[" "]), "expected a question, got an empty one"),
        (
            lambda r: r.read(torch.ones(2, 3, dtype=torch.int64),
                             attention_mask=torch.tensor([[1, 1, 1], [0, 0, 0]])),
            "sample 1 is all padding",
        ),
        (
            lambda r: r.read(torch.ones(1, 3, dtype=torch.int64),
                             attention_mask=torch.tensor([[1, 0, 1]])),
            "got some between tokens",
        ),
    ],
)  # fmt: skip
def test_refused(call, said):
    with pytest.raises(InputError, match=said):
        call(worded())


def test_a_second_turn_that_does_not_fit_the_first():
    context = reader_of().read(torch.full((2, 20), 9))
    before = snapshot(context.engine)
    for more, mask, said in (
        (torch.full((1, 5), 9), None, "more text for each of 2 samples, got 1"),
        (torch.full((3, 5), 9), None, "more text for each of 2 samples, got 3"),
        (torch.full((2, 5), 9), torch.tensor([[1] * 5, [0] + [1] * 4]), "without padding"),
    ):
        with pytest.raises(InputError, match=said):
            context.extend(more, attention_mask=mask)
    assert same(before, snapshot(context.engine))
    context.extend(torch.full((2, 5), 9))
