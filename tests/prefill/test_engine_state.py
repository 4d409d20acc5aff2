"""What reading leaves as it was, also where it fails, and what it refuses to go on with."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from apportion import models
from apportion.errors import InputError
from apportion.prefill.engine import Chunk
from prefill.decoders import build
from prefill.engines import (
    EVERYTHING,
    chunks,
    engine_of,
    ids_of,
    near,
    plain,
    read,
    same,
    snapshot,
)

QUESTION = torch.tensor([[5, 60, 7]])


class Stop(Exception):
    """Raised on purpose."""


def stopping(model: torch.nn.Module, layer: int, error: type[BaseException] = Stop):
    """Fail from here on when a layer's turn comes; `remove()` ends it."""

    def stop(*args):
        raise error

    return model.model.layers[layer].register_forward_pre_hook(stop)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_a_fork_leaves_memory_as_it_is(kind):
    model = build(kind)
    ids, real = ids_of(30, 19)
    engine = engine_of(model, "h2o")
    read(engine, ids, real, 7, 6)
    before, held = snapshot(engine), list(engine.memory)
    for sample in (0, 1, 0):
        fork = engine.fork(sample)
        fork.read(Chunk(QUESTION, 30, None))
        fork.read(Chunk(QUESTION[:, :1], 33, None))
    hook = stopping(model, 1)
    with pytest.raises(Stop):
        engine.fork(0).read(Chunk(QUESTION, 30, None))
    hook.remove()
    assert same(before, snapshot(engine))
    assert all(a is b for a, b in zip(held, engine.memory, strict=True))
    assert not engine.torn


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text", "phi", "smollm3"])
def test_a_fork_reads_on_as_a_plain_forward_does(kind):
    model = build(kind)
    ids, real = ids_of(30, 19)
    engine = engine_of(model)
    read(engine, ids, real, 7, EVERYTHING)
    for sample in (0, 1):
        fork = engine.fork(sample)
        own = ids[sample][real[sample]][None]
        for start, end in ((0, 2), (2, 3), (3, 9)):
            more = ids[:1, start:end]
            own = torch.cat([own, more], dim=1)
            found, _ = fork.read(Chunk(more, 30 + start, None), logits=0)
            assert near(found, plain(model, own)[:, -(end - start) :])


def test_a_fork_reads_on_as_its_engine_would():
    model = build("gemma3_text")
    ids, _ = ids_of(30)
    engine, other = engine_of(model, "snapkv"), engine_of(model, "snapkv")
    for each in (engine, other):
        read(each, ids, None, 7, 6)
    found, _ = engine.fork(0).read(Chunk(QUESTION, 30, None))
    again, _ = other.read(Chunk(QUESTION, 30, [6] * 3))
    assert near(found, again, 1e-5)


@pytest.mark.parametrize("failing", [False, True])
def test_the_model_comes_back_as_it_was(failing):
    model = build("gemma3_text").train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    attention = model.config._attn_implementation
    engine = engine_of(model)
    hook = stopping(model, 1) if failing else None
    seen = []
    look = model.model.norm.register_forward_hook(
        lambda *args: seen.append([module.training for module in model.modules()])
    )
    for _ in range(2):
        if failing:
            with pytest.raises(Stop):
                engine_of(model).read(chunks(ids_of(9)[0], None, 9, 3, 3)[0])
        else:
            read(engine, ids_of(9)[0], None, 9, 3)
        assert [module.training for module in model.modules()] == modes
        assert model.config._attn_implementation == attention
    look.remove()
    if hook is not None:
        hook.remove()
    assert failing or not any(any(each) for each in seen)
    # And does what it did.
    assert near(read(engine_of(model), ids_of(9)[0]), plain(model, ids_of(9)[0]))
    assert model(input_ids=ids_of(9)[0]).logits.requires_grad


def test_nothing_is_trained():
    model = build("llama").train()
    engine = engine_of(model, "snapkv")
    assert not read(engine, ids_of(20)[0], None, 7, 3).requires_grad
    assert not any(held.keys.requires_grad for held in engine.memory)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("late", [False, True])
def test_a_chunk_that_stopped_halfway_is_not_read_on_from(error, late):
    model = build("llama")
    parts = chunks(ids_of(30)[0], None, 6, 4, 3)
    engine = engine_of(model, "snapkv", late=late)
    for part in parts[:2]:
        engine.read(part)
    before = snapshot(engine)
    hook = stopping(model, 0, error)
    with pytest.raises(error):
        engine.read(parts[2])
    hook.remove()
    # Nothing was remembered yet, so nothing is torn.
    assert same(before, snapshot(engine))
    engine.read(parts[2])
    hook = stopping(model, 2, error)
    with pytest.raises(error):
        engine.read(parts[3])
    hook.remove()
    # Evicting after the forward has no half.
    assert engine.torn != late
    if late:
        engine.read(parts[3])
        return
    for go_on in (lambda: engine.read(parts[3]), lambda: engine.fork(0), engine.check_whole):
        with pytest.raises(InputError, match=r"expected memory that is whole.*read the text again"):
            go_on()


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        ("model.layers.0.self_attn.v_proj.weight", "the attention of layer 0"),
        ("model.layers.1.mlp.up_proj.weight", "the attention of layer 2"),
        ("model.layers.2.mlp.up_proj.weight", "the logits"),
        ("model.norm.weight", "the logits"),
    ],
)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_none_name_the_layer(broken, where, number):
    model = build("llama")
    with torch.no_grad():
        model.get_parameter(broken).view(-1)[3] = number
    with pytest.raises(InputError, match=f"got NaN or infinity in {where} while reading tokens 0"):
        read(engine_of(model, "snapkv"), ids_of(20)[0], None, 7, 4)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_none_are_told_before_anything_is_read(number):
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 5] = number
    with pytest.raises(InputError, match=r"expected finite weights, got .* attention of layer 1"):
        engine_of(model)


def test_numbers_that_are_none_name_the_tokens_and_are_not_remembered_for_good():
    model = build("llama")
    ids, _ = ids_of(30)
    with torch.no_grad():
        model.model.embed_tokens.weight[96] = float("nan")
    ids[ids == 96] = 3
    ids[0, 17] = 96
    parts = chunks(ids, None, 7, 4, 3)
    engine = engine_of(model, "snapkv")
    for part in parts[:2]:
        engine.read(part)
    with pytest.raises(InputError, match="layer 0 while reading tokens 14 to 20; a wider dtype"):
        engine.read(parts[2])
    with pytest.raises(InputError, match="expected memory that is whole"):
        engine.read(parts[3])


def test_half_precision_that_overflows_is_told():
    model = build("llama").half()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1e4)
        model.model.layers[1].mlp.up_proj.weight.mul_(1e3)
    with pytest.raises(InputError, match=r"dtype=torch\.float32"):
        read(engine_of(model), ids_of(9)[0])


def test_memory_lives_no_longer_than_its_engine():
    model = build("llama")
    engine = engine_of(model, "snapkv")
    read(engine, ids_of(20)[0], None, 7, 4)
    fork = engine.fork(0)
    fork.read(Chunk(QUESTION, 20, None))
    alive = weakref.ref(engine.memory[0].keys), weakref.ref(fork), weakref.ref(engine)
    del engine, fork
    gc.collect()
    assert [x() for x in alive] == [None] * 3


def test_chunks_let_go_of_what_they_made():
    model = build("llama")
    engine = engine_of(model, "h2o")
    for part in chunks(ids_of(60)[0], None, 20, 5, 3):
        engine.read(part)
        # Nine entries: keys, values, places and sums of two heads, in each of three layers.
        each = 2 * 9 * (12 * 4 + 12 * 4 + 4 + 4)
        assert engine.bytes() == 3 * each


def test_the_engine_reads_with_adapters_too():
    pytest.importorskip("peft")
    model = models.adapted(build("llama"), 2, 4).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    ids, _ = ids_of(20)
    assert models.unwrap(model) is not model
    assert near(read(engine_of(model), ids, None, 7), plain(model, ids))
