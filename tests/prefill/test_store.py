"""Memory in 8 bits, in whole reads."""

from __future__ import annotations

import pytest
import torch

from apportion.prefill.engine import Chunk
from apportion.prefill.reader import Reader
from apportion.prefill.rows import Eight, dense
from finetune.tiny import make
from prefill.engines import engine_of, ids_of, read

KINDS = ("llama", "qwen3", "gemma3_text", "phi")


def entries(held: object) -> list[Eight]:
    return [rows for rows in (held.keys, held.values) if isinstance(rows, Eight)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scorer", ["streaming", "snapkv", "h2o"])
def test_logits_stay_near_those_of_the_models_own_type(kind, scorer):
    model = make(kind).eval()
    ids, real = ids_of(41, 30)
    found = [
        read(engine_of(model, scorer, store=store), ids, real, budget=100)
        for store in ("model", "8bit")
    ]
    rows = slice(None) if real is None else real
    error = (found[0] - found[1])[rows].abs().max()
    assert 0 < float(error) < 0.05 * float(found[0][rows].abs().max())


def test_compressed_layers_hold_a_byte_a_number_and_windows_their_own_type():
    model = make("gemma3_text").eval()
    ids, _ = ids_of(41)
    engines = {store: engine_of(model, store=store) for store in ("model", "8bit")}
    for engine in engines.values():
        read(engine, ids, budget=20)
    plain, packed = (e.memory for e in engines.values())
    for layer, (a, b) in enumerate(zip(plain, packed, strict=True)):
        if layer not in engines["8bit"].compressed:
            assert not entries(b)
            assert a.bytes == b.bytes
            continue
        assert len(entries(b)) == 2
        heads, held, size = b.order.shape[1], len(b), b.keys.shape[3]
        # Codes and a scale an entry, factors of the keys' channels, and the places.
        assert b.bytes == heads * (held * (2 * (size + 4) + 4) + 4 * size)
        assert a.bytes == heads * held * (2 * 4 * size + 4)


def test_an_entry_keeps_its_codes_while_it_is_remembered():
    model = make("llama").eval()
    ids, _ = ids_of(60)
    engine = engine_of(model, "prefix", store="8bit")
    seen = []
    for start in range(0, 60, 6):
        engine.read(Chunk(ids[:, start : start + 6], start, [8] * engine.layers))
        seen.append([x.codes[:, :, :6].clone() for held in engine.memory for x in entries(held)])
    for later in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], later, strict=True))


def test_a_fork_sees_what_is_held():
    model = make("llama").eval()
    ids, _ = ids_of(30)
    engine = engine_of(model, store="8bit")
    read(engine, ids, budget=100)
    fork = engine.fork(0)
    first, _ = fork.read(Chunk(ids[:, :4], 30, None))
    again, _ = engine.fork(0).read(Chunk(ids[:, :4], 30, None))
    assert torch.equal(first, again)
    # The same numbers in the model's own type give the same answer.
    for layer, held in enumerate(engine.memory):
        object.__setattr__(held, "keys", dense(held.keys))
        object.__setattr__(held, "values", dense(held.values))
        assert not entries(engine.memory[layer])
    assert torch.equal(engine.fork(0).read(Chunk(ids[:, :4], 30, None))[0], first)


def test_nothing_held_is_nothing_packed():
    model = make("llama").eval()
    ids, _ = ids_of(20)
    engine = engine_of(model, "local", sinks=0, store="8bit")
    assert bool(read(engine, ids, budget=5).isfinite().all())
    assert engine.lengths() == [0, 0, 0]


def test_a_saved_context_in_8_bits_goes_on_bit_for_bit(tmp_path):
    model = make("llama").eval()
    ids, _ = ids_of(60)
    reader = Reader(model, memory=12, chunk=10, store="8bit")
    context = reader.read(ids[:, :45])
    context.save(tmp_path / "held.safetensors")
    again = Reader(model, memory=12, chunk=10).load(tmp_path / "held.safetensors")
    assert again.reader.settings.store == "8bit"
    for each in (context, again):
        each.extend(ids[:, 45:])
    assert torch.equal(context.logits, again.logits)
    assert context.ask(torch.arange(3, 9)).ids == again.ask(torch.arange(3, 9)).ids


def test_a_budget_counts_what_is_really_held():
    model = make("llama").eval()
    sizes = {}
    for store in ("model", "8bit"):
        reader = Reader(model, budget=200_000, chunk=8, store=store)
        context = reader.read(ids_of(90)[0])
        assert context.peak_bytes <= 200_000
        sizes[store] = reader.settings.memory
    assert sizes["8bit"] > sizes["model"]
