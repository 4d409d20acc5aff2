"""A bound in bytes is kept at every step, for any sizes; what it chooses, and what it refuses."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.budget import parse_bytes
from apportion.errors import InputError
from apportion.prefill.bound import ASKED, CHUNKS, LEAST, SHARE
from apportion.prefill.pace import floor_of
from apportion.prefill.reader import Reader
from apportion.prefill.schedule import SCHEDULES
from finetune import tiny
from fuzzing import examples
from prefill.worded import prose, tokenizer

pytestmark = pytest.mark.usefixtures("shared_probes")

NEAR = 4000  # bytes that a prediction may be off by besides 5 %


@cache
def model(kind: str = "llama", layers: int = 3, positions: int = 4096):
    more: dict[str, Any] = {"num_hidden_layers": layers, "max_position_embeddings": positions}
    if kind.startswith("gemma"):
        more["layer_types"] = ["sliding_attention"] * (layers - 1) + ["full_attention"]
    made = tiny.make(kind, **more)
    # Whatever is drawn: no answer ends early.
    made.generation_config.eos_token_id = made.config.eos_token_id = 10**6
    return made


def ids(tokens: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 97, (batch, tokens), generator=torch.Generator().manual_seed(seed))


# What is probed takes longest, so the reads of a fuzz share a few readers; batch and questions are
# part of what is probed.
READERS: tuple[tuple[dict[str, Any], int, tuple[int, ...]], ...] = (
    ({}, 1, ()),
    ({"scorer": "h2o"}, 1, ()),
    ({"scorer": "streaming", "evict": "forward"}, 2, ()),
    ({"scorer": "random", "positions": "original"}, 1, ()),
    ({"kind": "gemma3_text"}, 1, (6, 3)),
    ({"kind": "gemma3_text", "scorer": "roco", "evict": "forward"}, 1, ()),
    ({"kind": "mistral", "scorer": "tova"}, 2, ()),
    ({"kind": "phi3", "scorer": "value-aware", "sinks": 0}, 1, (4,)),
)


@cache
def reader(number: int) -> Reader:
    options = dict(READERS[number][0])
    return Reader(model(options.pop("kind", "llama")), memory=8, chunk=8, **options)


@pytest.mark.fuzz
@settings(max_examples=examples(200))
@given(st.integers(0, 2**40))
def test_a_bound_is_kept_at_every_step(seed: int):
    chance = random.Random(seed)
    number = chance.randrange(len(READERS))
    _, batch, asked = READERS[number]
    tokens, chunk = chance.randint(1, 90), chance.randint(8, 40)
    questions = [torch.arange(3, 3 + count) for count in asked]
    rule = chance.choice(["bytes", "bytes", "fixed", "decremental"])
    schedule = chance.choice(sorted(SCHEDULES))
    way = reader(number).varied(
        memory=chance.randint(1, 80), chunk=chunk, chunks=rule, schedule=SCHEDULES[schedule]()
    )
    least = way.bound(batch, questions).steady(way.settings.memory, floor_of(chunk))
    budget = None
    if rule == "bytes" and chance.random() < 0.7:
        budget = int(least * chance.uniform(1.0, 1.6))
    way = way.varied(budget=budget)
    text, mask = ids(tokens, batch, seed % 1000), None
    if batch > 1 and chance.random() < 0.7:
        mask = torch.ones_like(text)
        mask[0, : chance.randrange(tokens)] = 0
    context = way.read(text, questions, mask, predict=True)
    assert sum(step.tokens for step in context.trace) == tokens
    if rule == "bytes" and budget is not None:
        assert all(step.peak_bytes <= budget for step in context.trace)
    predicted = context.predicted_bytes
    assert predicted is not None
    assert context.peak_bytes <= predicted <= 1.05 * context.peak_bytes + NEAR
    if chance.random() < 0.3:
        context.extend(ids(chance.randint(1, 40), batch))
        assert budget is None or all(step.peak_bytes <= budget for step in context.trace)


def test_chunks_by_bytes_make_the_peak_flat_and_the_forwards_few():
    text = ids(1500)
    options: dict[str, Any] = {"memory": 150, "chunk": 80}
    fixed = Reader(model(), chunks="fixed", schedule="fixed", **options).read(text)
    budget = int(SHARE * fixed.peak_bytes)
    context = Reader(model(), budget=budget, **options).read(text)
    peaks = [step.peak_bytes for step in context.trace]
    assert max(peaks) <= budget
    assert min(peaks[:-1]) >= 0.98 * budget
    sizes = [step.tokens for step in context.trace]
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    # A token more would not have fitted.
    bound = context.reader.bound(1, ())
    assert bound.first(150 * sizes[0] // 1500, sizes[0] + 8) > budget


def test_without_a_budget_it_is_three_quarters_of_what_fixed_memory_takes():
    text = ids(700)
    options: dict[str, Any] = {"memory": 100, "chunk": 100}
    fixed = Reader(model(), chunks="fixed", schedule="fixed", **options).read(text)
    context = Reader(model(), chunks="bytes", **options).read(text)
    assert 0.97 * SHARE * fixed.peak_bytes <= context.peak_bytes <= 1.005 * SHARE * fixed.peak_bytes
    # Where memory alone takes more than that, the least that works.
    options = {"memory": 400, "chunk": 16}
    fixed = Reader(model(layers=8), chunks="fixed", schedule="fixed", **options).read(text)
    reader = Reader(model(layers=8), chunks="bytes", **options)
    least = reader.bound(1, ()).steady(400, floor_of(16))
    assert least > SHARE * fixed.peak_bytes
    assert reader.read(text).peak_bytes <= least


def test_the_largest_memory_is_chosen_that_a_budget_has_room_for():
    reader = Reader(model(), budget="3MB")
    bound, settings = reader.bound(1, ()), reader.settings
    assert settings.chunks == "bytes"
    assert settings.chunk in CHUNKS
    assert settings.memory >= settings.chunk
    assert bound.need(settings.memory, settings.chunk, "bytes") <= 3e6
    assert bound.need(settings.memory + 1, settings.chunk, "bytes") > 3e6
    longer = [size for size in CHUNKS if size > settings.chunk]
    assert all(bound.need(size, size, "bytes") > 3e6 for size in longer)
    context = reader.read(ids(2000))
    assert context.peak_bytes <= 3e6
    answer = context.ask(torch.arange(3, 3 + ASKED[0]), max_new_tokens=ASKED[1])
    assert len(answer.ids) == ASKED[1]
    assert answer.peak_bytes <= 3e6


def test_what_is_given_is_not_chosen():
    reader = Reader(model(), memory=50, budget="2MB")
    assert reader.settings.memory == 50
    assert reader.settings.chunk in CHUNKS
    reader = Reader(model(), chunk=30, budget="2MB")
    assert reader.settings.chunk == 30
    assert reader.bound(1, ()).need(reader.settings.memory, 30, "bytes") <= 2e6
    assert reader.bound(1, ()).need(reader.settings.memory + 1, 30, "bytes") > 2e6
    reader = Reader(model(), memory=50, chunk=20, chunks="fixed", budget="2MB")
    assert (reader.settings.memory, reader.settings.chunk) == (50, 20)
    reader = Reader(model())
    assert (reader.settings.memory, reader.settings.chunk) == (2048, 1024)
    assert (reader.settings.chunks, reader.settings.budget) == ("decremental", None)


def test_memory_and_chunk_fit_the_models_positions():
    reader = Reader(model(positions=200), budget="1GB")
    settings = reader.settings
    assert 4 + settings.memory + settings.chunk <= 200
    context = reader.read(ids(900))
    lengths = [step.memory[0] for step in context.trace]
    steps = zip([0, *lengths], context.trace, strict=False)
    assert all(held + step.tokens <= 200 for held, step in steps)


def test_more_samples_and_known_questions_get_less_memory():
    reader = Reader(model(), budget="1500kB")
    one = reader.read(ids(400))
    assert one.reader is reader
    two = reader.read(ids(400, 2))
    asked = reader.read(ids(400), [torch.arange(3, 90)])
    assert two.reader.settings.memory < one.reader.settings.memory
    assert asked.reader.settings.memory < one.reader.settings.memory
    assert max(context.peak_bytes for context in (one, two, asked)) <= 1.5e6
    assert reader.settings.memory == one.reader.settings.memory


def test_streams_keep_the_bound_too():
    words = prose(400)
    options: dict[str, Any] = {"memory": 60, "chunk": 40}
    reader = Reader(model(), tokenizer(None), budget="700kB", **options)
    context = reader.read(words[k : k + 50] for k in range(0, len(words), 50))
    assert context.tokens == 400
    assert all(step.peak_bytes <= 700e3 for step in context.trace)
    assert max(step.tokens for step in context.trace) > 40
    # Of a length that is not known, the end is looked at.
    need = reader.bound(1, ()).steady(60, 40)
    reader = reader.varied(chunks="fixed", budget=need - 1)
    with pytest.raises(InputError, match="at least for memory=60 in chunks of 40 tokens"):
        reader.read(iter([words]))


def least_of(error: pytest.ExceptionInfo[InputError]) -> int:
    """The budget that a message asks for."""
    found = re.search(r'budget="([^"]+)"', str(error.value))
    assert found is not None
    return parse_bytes(found[1])


def test_a_budget_that_is_too_small_says_what_works():
    with pytest.raises(InputError, match=r"expected budget of .* at least, for 4 sinks") as error:
        Reader(model(), budget="50kB")
    least = least_of(error)
    reader = Reader(model(), budget=least)
    assert LEAST <= reader.settings.memory <= LEAST + 3
    context = reader.read(ids(300))
    assert context.peak_bytes <= least
    with pytest.raises(InputError):
        Reader(model(), budget=int(0.99 * least))
    with pytest.raises(InputError, match="memory=600") as error:
        Reader(model(), memory=600, budget="100kB")
    least = least_of(error)
    assert Reader(model(), memory=600, budget=least).read(ids(300)).peak_bytes <= least
    with pytest.raises(InputError, match="chunk=700") as error:
        Reader(model(), chunk=700, budget="100kB")
    assert Reader(model(), chunk=700, budget=least_of(error)).settings.chunk == 700


def test_chunks_that_can_not_keep_the_budget_are_refused_before_they_are_read():
    options: dict[str, Any] = {"memory": 200, "chunk": 100}
    text = ids(1000)
    for chunks in ("fixed", "decremental"):
        free = Reader(model(), chunks=chunks, **options).read(text)
        reader = Reader(model(), chunks=chunks, budget=int(0.9 * free.peak_bytes), **options)
        with pytest.raises(InputError, match='chunks="bytes" makes chunks that fit') as error:
            reader.read(text)
        found = re.search(r"budget of ([\d.]+ \w+) at least", str(error.value))
        assert found is not None
        least = parse_bytes(found[1])
        assert free.peak_bytes <= least <= 1.05 * free.peak_bytes + NEAR
        read = Reader(model(), chunks=chunks, budget=least, **options).read(text)
        assert read.peak_bytes <= least
    with pytest.raises(InputError, match="at least, for 4 sinks, memory=200"):
        Reader(model(), budget="300kB", **options).read(text)


def test_a_question_that_exceeds_the_budget_is_refused():
    reader = Reader(model(), memory=40, chunk=30, budget="450kB")
    context = reader.read(ids(200))
    with pytest.raises(InputError, match="question and an answer that fit budget of 450 kB"):
        context.ask(torch.arange(3, 90).repeat(3), max_new_tokens=5)
    with pytest.raises(InputError, match="smaller max_new_tokens"):
        context.ask(torch.arange(3, 9), max_new_tokens=3000)
    answer = context.ask(torch.arange(3, 20), max_new_tokens=5)
    assert answer.peak_bytes <= 450e3


def test_a_known_question_that_leaves_no_room_is_refused():
    reader = Reader(model(), memory=40, chunk=30, budget="450kB")
    with pytest.raises(InputError, match="expected budget of"):
        reader.read(ids(200), [torch.arange(3, 90).repeat(8)])


def test_tokens_that_a_layer_holds_at_once():
    """c + M, c + M (N - 1) / N and c + M / 2: fixed memory, incremental, decremental chunks."""
    tokens, memory, chunk = 3200, 80, 80
    steps = tokens // chunk
    text = ids(tokens)
    most: dict[str, int] = {}
    for name, schedule, chunks in (
        ("fixed", "fixed", "fixed"),
        ("incremental", "linear", "fixed"),
        ("decremental", "linear", "decremental"),
    ):
        context = Reader(
            model(), memory=memory, chunk=chunk, schedule=schedule, chunks=chunks, sinks=0
        ).read(text)
        before = [0, *(step.memory[0] for step in context.trace)]
        most[name] = max(m + s.tokens for m, s in zip(before, context.trace, strict=False))
    assert most["fixed"] == chunk + memory
    assert most["incremental"] == chunk + memory * (steps - 1) // steps
    assert abs(most["decremental"] - (chunk + memory // 2)) <= memory // steps + 1
