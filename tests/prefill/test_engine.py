"""The engine against one plain forward, against a plain reader, and against itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from apportion.errors import InputError
from apportion.prefill.engine import Chunk
from apportion.prefill.scorers import Query, Scorer, SnapKV, ValueAware, get_scorer
from finetune import tiny
from prefill.decoders import OTHERS, SCALED, build
from prefill.engines import (
    EVERYTHING,
    QUESTIONS,
    chunks,
    engine_of,
    ids_of,
    near,
    places,
    plain,
    read,
    same,
    snapshot,
)
from prefill.reading import POOL, WINDOW, PlainReader

NAMES = [*tiny.ARCHITECTURES, *SCALED, *OTHERS]
# Scalings that choose their frequencies by the longest position give early chunks others than a
# forward over all at once does.
GROWING = ("dynamic", "longrope")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, size) for name in NAMES if name not in GROWING for size in (7, 23)),
        *((name, size) for name in ("llama", "gemma3_text", "phi", "exaone4") for size in (1, 16)),
    ],
)
def test_what_never_evicts_is_one_plain_forward(name, size):
    model = build(name)
    ids, _ = ids_of(23, 23)
    assert near(read(engine_of(model), ids, sizes=size), plain(model, ids))


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize(("length", "size"), [(23, 23), (15, 4)])
def test_scalings_by_length(name, length, size):
    model = build(name)
    ids, _ = ids_of(length)
    expected = plain(model, ids)
    assert near(read(engine_of(model), ids, sizes=size), expected)


@pytest.mark.parametrize(("dtype", "close"), [(torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "yarn"])
def test_narrow_dtypes(name, dtype, close):
    model = build(name).to(dtype)
    ids, real = ids_of(23, 9)
    engine = engine_of(model, "snapkv")
    found = read(engine, ids, real)
    assert found.dtype == dtype
    assert all(held.keys.dtype == held.values.dtype == dtype for held in engine.memory)
    expected = plain(model.float(), ids, real)
    assert near(found[real].float(), expected[real], close)


@pytest.mark.parametrize("name", GROWING)
def test_scalings_go_by_the_longest_question_and_not_by_all(name):
    # 9 tokens and the longest question stay below 16 positions, with all questions they don't.
    model = build(name)
    ids, _ = ids_of(9)
    expected = plain(model, ids)
    found = read(engine_of(model), ids, sizes=5, questions=QUESTIONS)
    assert near(found, expected)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 7) for name in NAMES if name not in GROWING),
        *((name, size) for name in ("llama", "gemma3_text") for size in (1, 23)),
    ],
)
def test_padding_on_the_left(name, size):
    model = build(name)
    ids, real = ids_of(23, 9, 18)
    found, expected = read(engine_of(model), ids, real, size), plain(model, ids, real)
    assert near(found[real], expected[real])


def sharp(**more: int) -> torch.nn.Module:
    """A Llama whose attention tells entries apart."""
    model = build("llama", **more)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(4.0)
    return model


def scorer_of(name: str) -> Scorer:
    made = {
        "snapkv": SnapKV(WINDOW, POOL, "average"),
        "query": Query(WINDOW, POOL, "average"),
        "value-aware": ValueAware(SnapKV(WINDOW, POOL, "average")),
    }
    return made.get(name) or get_scorer(name)


SIZES, BUDGETS = (9, 6, 4, 7), (6, 5, 8, 7)


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(("heads", "kept"), [(2, 1), (4, 2)])
@pytest.mark.parametrize(
    "name", ["streaming", "snapkv", "h2o", "tova", "query", "value-aware"]
)  # fmt: skip
def test_it_reads_as_a_plain_reader_does(name, heads, kept, compact):
    model = sharp(num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=kept)
    # The second sample begins in the second chunk.
    ids, real = ids_of(26, 15, seed=3)
    padding = (0, 11)
    asked = [torch.tensor([5, 60, 7, 33]), torch.tensor([80, 9])] if name == "query" else []
    engine = engine_of(model, scorer_of(name), sinks=2, compact=compact)
    plainly = [PlainReader(model, name, 2, compact) for _ in padding]
    evicted = 0
    for part in chunks(ids, real, SIZES, BUDGETS, 2, asked):
        # Layers of different lengths.
        part = Chunk(part.ids, part.start, [part.budgets[0], part.budgets[1] + 3], part.real, asked)
        found, _ = engine.read(part, logits=0)
        for b, pad in enumerate(padding):
            own = part.ids[b, max(0, pad - part.start) :]
            if not len(own):
                continue
            expected = plainly[b].read(own, max(pad, part.start), part.budgets, asked)
            assert near(found[b, found.shape[1] - len(own) :], expected, 1e-5)
            for number, layer in enumerate(plainly[b].layers):
                for head in range(kept):
                    assert places(engine, number, b, head) == layer.held[head]
                    evicted += part.start + len(part.ids[b]) - pad - len(layer.held[head])
    assert evicted > 50


REMEMBERING = ["streaming", "prefix", "snapkv", "h2o", "tova", "mean", "roco", "value-aware:h2o"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "llama") for name in [*REMEMBERING, "query"]), ("snapkv", "gemma3_text")],
)
def test_a_batch_is_as_one_by_one(name, kind):
    model = build(kind)
    ids, real = ids_of(40, 40, 17, 29, seed=1)
    asked = [torch.tensor([5, 60, 7])] if name == "query" else []
    parts = chunks(ids, real, (11, 8, 9, 12), (4, 6, 5, 9), 3, asked)
    together = engine_of(model, name)
    logits = [together.read(part)[0] for part in parts]
    for b in range(len(ids)):
        alone = engine_of(model, name)
        pad = int((~real[b]).sum())
        for part, batched in zip(parts, logits, strict=True):
            own = part.ids[b : b + 1, max(0, pad - part.start) :]
            if own.shape[1]:
                single = Chunk(own, max(0, part.start - pad), part.budgets, None, asked)
                assert near(batched[b], alone.read(single)[0][0])
        for layer in range(3):
            for head in range(2):
                shifted = [p - pad for p in places(together, layer, b, head)]
                assert shifted == places(alone, layer, 0, head)


@pytest.mark.parametrize("name", ["streaming", "snapkv", "roco", "random", "query"])
def test_evicting_late_changes_nothing_but_memory(name):
    # A layer's eviction comes after its own attention, and no other layer sees it.
    model = build("gemma3_text")
    ids, real = ids_of(40, 23)
    parts = chunks(ids, real, 8, 6, 3, [torch.tensor([5, 60, 7])])
    early, late = engine_of(model, name), engine_of(model, name, late=True)
    for part in parts:
        assert torch.equal(early.read(part)[0], late.read(part)[0])
        assert same(snapshot(early), snapshot(late))


@pytest.mark.parametrize(
    ("name", "compact"),
    [*((name, True) for name in [*REMEMBERING, "random", "local"]), ("h2o", False)],
)
def test_what_is_kept(name, compact):
    model = build("llama")
    ids, real = ids_of(40, 23)
    engine, pads = engine_of(model, name, sinks=3, compact=compact), (0, 17)
    for part in chunks(ids, real, 9, 1, 3):
        engine.read(part)
        read_so_far = part.start + part.ids.shape[1]
        budget = 0 if name == "local" else 1
        for layer in range(3):
            for b, pad in enumerate(pads):
                for head in range(2):
                    held = places(engine, layer, b, head)
                    assert len(held) == min(3 + budget, max(0, read_so_far - pad))
                    # Sinks are the first real tokens, and all stands in the order of the text.
                    assert held[:3] == list(range(pad, pad + 3))[: len(held)]
                    assert held == sorted(set(held))
                    assert held[-1:] < [read_so_far]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "phi", "smollm3"])
def test_positions_do_not_matter_until_something_is_evicted(name):
    model = build(name)
    ids, real = ids_of(30, 19)
    compact, original = (
        engine_of(model, "snapkv", compact=compact) for compact in (True, False)
    )  # fmt: skip
    for part in chunks(ids, real, 7, EVERYTHING, 3):
        assert near(compact.read(part)[0], original.read(part)[0], 1e-5)
    question = Chunk(torch.tensor([[5, 60, 7]]), 30, None)
    assert near(compact.fork(1).read(question)[0], original.fork(1).read(question)[0], 1e-5)
    # And then they do.
    apart = [engine_of(model, "prefix", compact=c) for c in (True, False)]
    a, b = (read(engine, ids, real, 7, 3)[:, -1] for engine in apart)
    assert not near(a, b, 1e-3)


def test_no_position_exceeds_memory_and_chunk():
    model, seen = build("llama"), []
    engine = engine_of(model, "snapkv", sinks=2)

    def look(module, args, given):
        seen.append(int(given["position_ids"].max()))

    model.model.register_forward_pre_hook(look, with_kwargs=True)
    for part in chunks(ids_of(120)[0], None, 8, 5, 3, QUESTIONS[:2]):
        engine.read(part)
    assert max(seen) == 2 + 5 + 8 + 3 - 1


@pytest.mark.parametrize("logits", [0, 1, 3, 50])
@pytest.mark.parametrize("asked", [[], QUESTIONS])
def test_logits_are_of_the_last_positions_of_the_text(logits, asked):
    model = build("llama")
    ids, _ = ids_of(9)
    part = chunks(ids, None, 9, EVERYTHING, 3, asked)[0]
    found, _ = engine_of(model).read(part, logits)
    expected = plain(model, ids)[:, -logits:] if logits else plain(model, ids)
    assert found.shape == expected.shape
    assert near(found, expected)


def test_retention_is_the_share_that_was_memory():
    model = build("gemma3_text")
    ids, _ = ids_of(20)
    engine = engine_of(model, "streaming", sinks=2)
    ratios: list[Mapping[int, float]] = [
        engine.read(part)[1] for part in chunks(ids, None, (8, 4, 8), (6, 6, 6), 3)
    ]
    # The window's layers remember by themselves.
    assert ratios == [{2: 0.0}, {2: 0.5}, {2: 0.25}]
    nothing = engine_of(model, "local", sinks=0)
    assert [nothing.read(part)[1] for part in chunks(ids, None, 8, 6, 3)] == [{2: 0.0}] * 3
    assert nothing.lengths() == [5, 5, 0]


def test_what_an_attention_asks_for_beyond_is_refused():
    model = build("llama")
    engine = engine_of(model)
    attention = model.model.layers[1].self_attn
    own = attention.forward
    attention.forward = lambda *args, **more: own(*args, **more, s_aux=torch.zeros(4))
    with pytest.raises(InputError, match="LlamaAttention asks for s_aux, which is not handled"):
        read(engine, ids_of(9)[0])
    attention.forward = own
    model = build("mistral")
    engine = engine_of(model)
    model.config.sliding_window = None
    with pytest.raises(InputError, match=r"sliding window \(6, .* MistralAttention tells None"):
        read(engine, ids_of(9)[0])
