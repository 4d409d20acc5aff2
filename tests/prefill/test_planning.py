"""Plans of reads against the reads themselves, every way of them."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

from apportion.errors import InputError
from apportion.prefill import Reader, plan
from apportion.prefill.planning import WAYS
from apportion.prefill.probe import Probe
from apportion.prefill.timing import Timing
from finetune import tiny
from prefill.worded import prose, tokenizer

pytestmark = pytest.mark.usefixtures("shared_probes")

TOKENS = 600


@cache
def model():
    return tiny.make("llama", num_hidden_layers=4, max_position_embeddings=2048)


def text(batch: int = 1) -> torch.Tensor:
    return torch.randint(3, 97, (batch, TOKENS), generator=torch.Generator().manual_seed(0))


def test_every_way_is_foreseen():
    found = plan(model(), TOKENS, memory=80, chunk=50, rounds=1)
    assert len(found.options) == len(WAYS) == 10
    assert not found.refused
    for each in found.options:
        context = Reader(model(), **each.settings).read(text())
        name = (each.schedule, each.chunks, each.evict)
        assert context.peak_bytes <= each.peak_bytes <= 1.05 * context.peak_bytes + 1100, name
        assert each.forwards == len(context.trace), name
        assert each.longest == max(step.tokens for step in context.trace), name
        assert each.memory_bytes == context.engine.bytes(), name
        assert sum(each.bytes.values()) == each.peak_bytes
        before = [0, *(step.memory[0] for step in context.trace)]
        most = max(m + s.tokens for m, s in zip(before, context.trace, strict=False))
        assert each.resident == most, name
        assert each.seconds > 0
        assert each.fits
    assert json.loads(json.dumps(found.to_dict()))["tokens"] == TOKENS


def test_a_budget_alone_decides_memory_and_chunk():
    found = plan(model(), "600", budget="2MB", rounds=1)
    reader = Reader(model(), budget="2MB")
    by_bytes = next(o for o in found.options if (o.schedule, o.chunks, o.evict) == WAY)
    assert (by_bytes.memory, by_bytes.chunk) == (reader.settings.memory, reader.settings.chunk)
    assert by_bytes.settings["budget"] == found.budget == 2_000_000
    assert all(each.peak_bytes <= 2e6 for each in found.options if each.fits)
    assert found.best is found.options[0]
    assert found.best.memory == max(each.memory for each in found.options)
    assert Reader(model(), **found.best.settings).read(text()).peak_bytes <= 2e6


WAY = ("linear", "bytes", "layer")


def test_what_does_not_fit_comes_last_and_what_can_not_is_refused():
    free = plan(model(), TOKENS, memory=80, chunk=50, rounds=1)
    peaks = {(o.schedule, o.chunks, o.evict): o.peak_bytes for o in free.options}
    budget = peaks["linear", "fixed", "layer"]
    found = plan(model(), TOKENS, memory=80, chunk=50, budget=budget, rounds=1)
    assert [each.fits for each in found.options] == sorted(
        (each.fits for each in found.options), reverse=True
    )
    assert 0 < sum(each.fits for each in found.options) < len(found.options)
    for each in found.options:
        assert each.fits == (each.peak_bytes <= budget)
    # Some can't even keep it with short chunks.
    least = Reader(model(), memory=80, chunk=50).bound(1, ()).steady(80, 12)
    found = plan(model(), TOKENS, memory=80, chunk=50, budget=least, rounds=1)
    assert any("evict=forward" in name for name in found.refused)
    assert all("expected budget of" in why for why in found.refused.values())
    assert found.best.chunks == "bytes"


def test_nothing_fits():
    with pytest.raises(InputError, match=r"expected budget of .* at least"):
        plan(model(), TOKENS, budget="10kB")
    found = plan(model(), TOKENS, memory=80, chunk=50, budget="100kB", rounds=1)
    assert not any(each.fits for each in found.options)
    with pytest.raises(InputError, match=r"expected budget of .* at least for 600 tokens"):
        assert found.best


def test_batch_and_questions_count():
    one, two = (
        next(
            o
            for o in plan(model(), TOKENS, memory=80, chunk=50, batch=batch, rounds=1).options
            if (o.schedule, o.chunks, o.evict) == WAY
        )
        for batch in (1, 2)
    )
    assert two.memory_bytes == 2 * one.memory_bytes
    # A block of scores is as large for two.
    assert 1.6 * one.peak_bytes < two.peak_bytes < 2 * one.peak_bytes
    asked = plan(model(), TOKENS, memory=80, chunk=50, questions=(30, 20), rounds=1)
    each = next(o for o in asked.options if (o.schedule, o.chunks, o.evict) == WAY)
    questions = [torch.arange(3, 33), torch.arange(3, 23)]
    context = Reader(model(), **each.settings).read(text(), questions)
    assert context.peak_bytes <= each.peak_bytes <= 1.05 * context.peak_bytes + 1100


def test_memory_in_8_bits_is_counted_as_it_is():
    found = plan(model(), TOKENS, memory=80, chunk=50, store="8bit", rounds=1).best
    context = Reader(model(), store="8bit", **found.settings).read(text())
    assert found.memory_bytes == context.engine.bytes()
    assert context.peak_bytes <= found.peak_bytes <= 1.05 * context.peak_bytes + 1100


def test_seconds_grow_with_rows_and_memory():
    probe = Probe(Reader(model(), memory=8, chunk=8).engine(()), 1)
    timing = Timing(probe, 800, 200)
    times = [timing.seconds(n, [m] * 4) for n, m in ((50, 0), (400, 0), (400, 3000))]
    assert 0 < times[0] < times[1] <= times[2]


def test_progress_is_told():
    told: list[float] = []
    plan(model(), 100, memory=40, chunk=20, rounds=1, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"tokens": "many"}, {"batch": 0}, {"rounds": 0}, {"scorer": "best"}]
)
def test_wrong_input_is_refused(wrong):
    given = {"tokens": 100, "memory": 40, "chunk": 20, **wrong}
    with pytest.raises(InputError):
        plan(model(), **given)


def test_a_read_tells_what_was_predicted():
    words = prose(200)
    reader = Reader(model(), tokenizer(None), memory=40, chunk=20, budget="1MB")
    context = reader.read(words)
    assert context.predicted_bytes is not None
    assert context.peak_bytes <= context.predicted_bytes <= 1.05 * context.peak_bytes + 1100
    free = Reader(model(), tokenizer(None), memory=40, chunk=20)
    assert free.read(words).predicted_bytes is None
    context = free.read(words, predict=True)
    assert context.peak_bytes <= context.predicted_bytes <= 1.05 * context.peak_bytes + 1100
