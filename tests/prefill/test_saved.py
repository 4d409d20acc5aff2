"""A saved context goes on as if it had never been away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from apportion.errors import InputError
from apportion.prefill import Reader
from apportion.prefill.schedule import Schedule
from apportion.prefill.scorers import Random, Scorer, Scores
from apportion.prefill.scorers.query import Query
from apportion.prefill.scorers.snapkv import SnapKV
from apportion.prefill.scorers.value_aware import ValueAware
from finetune.tiny import make
from prefill.saving import ASKED, assert_equal, more, read, reader_of

SCORERS = ("streaming", "local", "prefix", "random", "h2o", "tova", "mean", "snapkv", "roco",
           "value-aware", "value-aware:h2o", "query", None)  # fmt: skip


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "book.safetensors"


@pytest.mark.parametrize("scorer", SCORERS)
def test_it_goes_on_bit_for_bit_with_every_scorer(path, scorer):
    reader = reader_of(scorer=scorer)
    context = read(reader, ASKED)
    context.save(path)
    loaded = reader.load(path)
    assert_equal(loaded, context)
    assert loaded.engine.scorer.name == context.engine.scorer.name
    one, other = (c.ask(ASKED[1], max_new_tokens=3, sample=1, temperature=0.8, seed=3)
                  for c in (context, loaded))  # fmt: skip
    assert (one.ids, one.known, one.kept_share) == (other.ids, other.known, other.kept_share)
    assert other.known
    for each in (context, loaded):
        each.extend(more(2))
    assert_equal(loaded, context)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "gemma2", "qwen3", "phi"])
@pytest.mark.parametrize("positions", ["compact", "original"])
def test_it_goes_on_with_every_kind_of_layer(path, kind, positions):
    reader = reader_of(kind, scorer="h2o", positions=positions, schedule="adaptive")
    context = read(reader)
    context.save(path)
    loaded = reader.load(path)
    for each in (context, loaded):
        each.extend(more(2))
    assert_equal(loaded, context)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_stay(path, dtype):
    reader = reader_of(model=make("llama", dtype))
    context = read(reader, sizes=(33,))
    assert context.real is None
    context.save(path)
    loaded = reader.load(path)
    assert loaded.engine.memory[0].keys.dtype == dtype
    assert_equal(loaded, context)


def test_rereading_from_a_file_is_rereading(path):
    reader = reader_of()
    context = read(reader)
    context.save(path)
    one, other = (c.ask(ASKED[0], max_new_tokens=4, reread=True) for c in
                  (context, reader.load(path)))  # fmt: skip
    assert one.ids == other.ids
    assert other.known


def test_each_tensor_has_a_storage_of_its_own(path):
    """Views of one mapped file would count as the whole file each, and change with it."""
    reader = reader_of(scorer="h2o")
    context = read(reader)
    context.save(path)
    loaded = reader.load(path)
    assert loaded.engine.bytes() == context.engine.bytes()
    path.write_bytes(bytes(path.stat().st_size))
    assert_equal(loaded, context)


def test_the_settings_of_the_read_come_along(path):
    model = make("llama")
    first = reader_of(model=model, schedule="square", chunks="fixed", seed=-5,
                      scorer=Query(window=9, pool=3, pooling="average", weight=0.25))  # fmt: skip
    context = read(first, ASKED)
    context.save(path)
    other = Reader(model, memory=40, chunk=4, scorer="streaming")
    loaded = other.load(path)
    settings = loaded.reader.settings
    assert (settings.memory, settings.chunk, settings.sinks, settings.seed) == (12, 8, 2, -5)
    assert (settings.schedule.name, settings.chunks) == ("square", "fixed")
    scorer = loaded.engine.scorer
    assert isinstance(scorer, Query)
    assert (scorer.window, scorer.weight) == (9, 0.25)
    assert (scorer.pooling.width, scorer.pooling.kind) == (3, "average")
    assert other.settings.memory == 40
    for each in (context, loaded):
        each.extend(more(2))
    assert_equal(loaded, context)
    # With the same settings it is the reader itself.
    assert first.load(path).reader is first


def test_a_budget_goes_on_deciding_what_it_decided(path):
    model = make("llama")
    reader = Reader(model, sinks=2, budget="300kB", memory=9)
    context = read(reader, ASKED, sizes=(40,))
    context.save(path)
    loaded = Reader(model, memory=30, chunk=20).load(path)
    assert loaded.predicted_bytes == context.predicted_bytes is not None
    assert loaded.peak_bytes == context.peak_bytes
    # For another question it decides anew what was left to it.
    for readers in (
        [each.reader for each in (context, loaded)],
        [each.reader.settled(1, [torch.arange(3, 60)]) for each in (context, loaded)],
    ):
        one, other = ((r.settings.memory, r.settings.chunk, r.settings.budget) for r in readers)
        assert one == other
    assert loaded.reader.given == {"memory": 9, "chunk": None}
    for each in (context, loaded):
        each.extend(more(1))
    assert_equal(loaded, context)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_memory_in_8_bits_stays_as_it_is(path, kind):
    reader = reader_of(kind, scorer="h2o", store="8bit")
    context = read(reader)
    context.save(path)
    loaded = reader.load(path)
    assert loaded.engine.bytes() == context.engine.bytes()
    for each in (context, loaded):
        each.extend(more(2))
    assert_equal(loaded, context)


@pytest.mark.parametrize("scorer", [SnapKV(window=None), SnapKV(7, 5), ValueAware(SnapKV(3)),
                                    ValueAware(Query(weight=1))])  # fmt: skip
def test_parameters_of_scorers_come_back(path, scorer):
    model = make("llama")
    context = read(reader_of(model=model, scorer=scorer), sizes=(30,))
    context.save(path)
    found: Any = reader_of(model=model).load(path).engine.scorer

    def told(x: Any) -> dict[str, Any]:
        return {k: told(v) if isinstance(v, Scorer) else v for k, v in vars(x).items()}

    assert type(found) is type(scorer)
    assert told(found) == told(scorer)


def test_todays_default_does_not_replace_the_scorer_of_the_read(path):
    reader = reader_of()
    context = read(reader, sizes=(30,))
    context.engine.scorer = SnapKV(7, 5)  # as if that had been the default
    context.save(path)
    loaded = reader.load(path)
    scorer = loaded.engine.scorer
    assert isinstance(scorer, SnapKV)
    assert (scorer.window, scorer.pooling.width) == (7, 5)
    assert loaded.reader.settings.scorer is None


class Odd(Scorer):
    """A scorer of a user."""

    name = "odd"
    paper = "none"

    def score(self, view):
        return Scores((view.order % 2).float())


class Half(Schedule):
    """A schedule of a user."""

    name = "half"

    def share(self, at):
        return 0.5


def test_own_classes_are_asked_for_and_taken_from_the_reader(path):
    model = make("llama")
    own = reader_of(model=model, scorer=Odd(), schedule=Half())
    context = read(own)
    context.save(path)
    loaded = own.load(path)
    for each in (context, loaded):
        each.extend(more(2))
    assert_equal(loaded, context)
    for lacking in ({"scorer": Odd()}, {"schedule": Half()}, {"scorer": Random()}):
        with pytest.raises(InputError, match="expected a reader with the sc"):
            reader_of(model=model, **lacking).load(path)


def test_an_interrupted_read_can_be_saved(path, monkeypatch):
    from apportion.prefill import ReadInterruptedError
    from apportion.prefill.progress import Bar

    reader = reader_of()
    monkeypatch.setattr(
        Bar, "advance", lambda self, tokens: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(ReadInterruptedError) as stopped:
        read(reader)
    monkeypatch.undo()
    context = stopped.value.context
    assert 0 < context.tokens < 29
    context.save(path)
    loaded = reader.load(path)
    for each in (context, loaded):
        each.extend(more(2))
    assert_equal(loaded, context)
