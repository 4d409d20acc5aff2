"""Attention in parts and under a mask against a float64 softmax that goes row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apportion.meter import LiveStorages
from apportion.prefill import attention
from apportion.prefill.attention import Entries, Rules, attend, visible
from fuzzing import examples

CLOSE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}


def entries(
    count: int, batch: int = 2, heads: int = 2, size: int = 8, wide: int = 8, pad=(), seed: int = 0
) -> Entries:
    """Random ones; sample b starts with `pad[b]` of padding."""
    generator = torch.Generator().manual_seed(seed + 7 * count)
    real = None
    if any(pad):
        real = torch.arange(count) >= torch.tensor(pad)[:, None]
    return Entries(
        2 * torch.randn(batch, heads, count, size, generator=generator),
        torch.randn(batch, heads, count, wide, generator=generator),
        real,
    )


def queries(rows: int, batch: int = 2, heads: int = 4, size: int = 8, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(batch, heads, rows, size, generator=generator)


def sight(seen, chunk, rules, questions, b, row) -> list[bool]:
    """What a row of a sample sees, by the words of `attend`."""
    held, text = sum(len(part) for part in seen), len(chunk) - sum(questions)
    # Who wrote a row of the chunk, None for the text, and where it stands.
    rows: list[tuple[int | None, int]] = [(None, held + r) for r in range(text)]
    for number, count in enumerate(questions):
        rows += [(number, held + text + k) for k in range(count)]
    real = [bool(x) for part in seen for x in part.is_real()[b]]
    places = [(None, j) for j in range(held)] + rows
    real += [bool(x) for x in chunk.is_real()[b]]
    writer, place = rows[row]
    found = []
    for j, (other, at) in enumerate(places):
        mine = other is None or other == writer
        near = rules.window is None or place - at < rules.window
        found.append(mine and at <= place and near and (real[j] or j == held + row))
    return found


def reference(q: Tensor, seen, chunk, rules, questions=()) -> Tensor:
    keys = torch.cat([*(part.keys for part in seen), chunk.keys], dim=2).double()
    values = torch.cat([*(part.values for part in seen), chunk.values], dim=2).double()
    batch, heads, rows, _ = q.shape
    group = heads // keys.shape[1]
    out = torch.zeros(batch, heads, rows, values.shape[3], dtype=torch.float64)
    for b in range(batch):
        for row in range(rows):
            sees = torch.tensor(sight(seen, chunk, rules, questions, b, row))
            for h in range(heads):
                scores = keys[b, h // group] @ q[b, h, row].double() * rules.scaling
                if rules.softcap:
                    scores = rules.softcap * torch.tanh(scores / rules.softcap)
                share = torch.softmax(scores[sees], dim=0)
                out[b, h, row] = share @ values[b, h // group][sees]
    return out


def to(part: Entries, dtype: torch.dtype) -> Entries:
    return Entries(part.keys.to(dtype), part.values.to(dtype), part.real)


def check(q, seen, chunk, rules, questions=(), dtype=torch.float32) -> None:
    """Both ways against the reference, and the masked one against the parts."""
    q, seen, chunk = q.to(dtype), [to(part, dtype) for part in seen], to(chunk, dtype)
    expected = reference(q, seen, chunk, rules, questions)
    found = attend(q, seen, chunk, rules, questions)
    masked = attention._masked(q, seen, chunk, rules, questions)
    for out in (found, masked):
        assert out.dtype == dtype
        assert out.shape == expected.shape
        assert float((out - expected).abs().max()) < CLOSE[dtype]


RULES = {
    "plain": Rules(0.35),
    "window": Rules(0.35, window=4),
    "wide window": Rules(0.35, window=10),
    "softcap": Rules(0.35, softcap=1.5),
    "softcap and window": Rules(0.35, softcap=1.5, window=6),
}
SEEN = {"nothing": (), "one": (5,), "several": (3, 1, 9)}
QUESTIONS = {"no question": (), "a question": (3,), "questions": (1, 4)}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("asked", QUESTIONS)
def test_what_a_row_gathers(rules, seen, asked):
    parts = [entries(n) for n in SEEN[seen]]
    for rows in (1, 7):
        count = rows + sum(QUESTIONS[asked])
        check(queries(count), parts, entries(count), RULES[rules], QUESTIONS[asked])


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("rules", RULES)
def test_dtypes(rules, dtype):
    check(queries(9), [entries(6)], entries(9), RULES[rules], (2,), dtype)


# What is padded: memory, chunk. A sample may be all padding, and memory must not count where
# nothing of it is real.
PADDED = {
    "neither": ((0, 0), (0, 0)),
    "memory in part": ((3, 0), (0, 0)),
    "a sample's whole memory": ((5, 0), (0, 0)),
    "memory whole, chunk in part": ((0, 5), (0, 4)),
    "memory and chunk whole": ((0, 5), (0, 6)),
    "all": ((5, 5), (6, 6)),
}


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("asked", [(), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_padding(padded, rules, asked, dtype):
    memory, own = PADDED[padded]
    chunk = entries(6 + sum(asked), pad=own)
    q = queries(len(chunk))
    check(q, [entries(5, pad=memory), entries(4, pad=(0, 0))], chunk, RULES[rules], asked, dtype)
    check(q, [entries(5, pad=memory)], chunk, RULES[rules], asked, dtype)


@pytest.mark.parametrize("filling", [1e4, -50.0])
@pytest.mark.parametrize("rules", ["plain", "window"])
def test_what_stands_in_padding_is_not_seen(filling, rules):
    memory, chunk, q = entries(5, pad=(3, 0)), entries(6, pad=(2, 0)), queries(6)
    expected = attend(q, [memory], chunk, RULES[rules])
    for part, count in ((memory, 3), (chunk, 2)):
        part.keys[0, :, :count] = filling
        part.values[0, :, :count] = filling
    found = attend(q, [memory], chunk, RULES[rules])
    assert torch.allclose(found[0, :, 2:], expected[0, :, 2:], atol=1e-6)
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("rules", RULES)
def test_values_of_another_size_than_keys(rules):
    check(queries(5), [entries(4, wide=3)], entries(5, wide=3), RULES[rules])
    check(queries(5), [entries(4, wide=11)], entries(5, wide=11), RULES[rules], (2,))


@pytest.mark.parametrize(("heads", "kept"), [(1, 1), (3, 1), (3, 3), (6, 2), (15, 5)])
@pytest.mark.parametrize("size", [1, 5, 16, 64])
def test_heads_and_their_sizes(heads, kept, size):
    parts = [entries(n, heads=kept, size=size, wide=size) for n in (7, 2)]
    own = entries(5, heads=kept, size=size, wide=size)
    for rules in (Rules(size**-0.5), Rules(size**-0.5, window=3)):
        check(queries(5, heads=heads, size=size), parts, own, rules, (2,))


def test_views_that_are_not_contiguous():
    # As layers hand them over: heads were columns of a row.
    def turned(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    part, own, q = entries(5), entries(6), queries(6)
    laid = [Entries(turned(x.keys), turned(x.values)) for x in (part, own)]
    found = attend(turned(q), laid[:1], laid[1], RULES["plain"], (2,))
    assert torch.allclose(found, attend(q, [part], own, RULES["plain"], (2,)), atol=1e-6)


def test_a_window_that_reaches_over_everything_is_none():
    part, own, q = entries(5), entries(6), queries(6)
    assert torch.equal(
        attend(q, [part], own, Rules(0.35, window=11)), attend(q, [part], own, Rules(0.35))
    )


@pytest.mark.parametrize("block", [1, 100, attention.BLOCK])
def test_capped_scores_come_in_blocks(block, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", block)
    rules = Rules(0.35, softcap=1.5, window=6)
    check(queries(9), [entries(5, pad=(2, 0))], entries(9), rules, (2,))


def test_large_scores_do_not_overflow():
    part, own = entries(5), entries(6)
    check(40 * queries(6), [part], own, RULES["plain"])
    check(40 * queries(6), [replace(part, keys=40 * part.keys)], own, RULES["plain"])


@st.composite
def shapes(draw):
    """Arguments of `check`."""
    batch, kept = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, size = kept * draw(st.integers(1, 3)), draw(st.integers(1, 9))
    wide = draw(st.sampled_from([size, size, size, size + 1]))
    asked = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    rows, seed = draw(st.integers(1, 9)), draw(st.integers(0, 99))

    def some(count: int, most: int) -> Entries:
        pad = draw(st.lists(st.integers(0, most), min_size=batch, max_size=batch))
        return entries(count, batch, kept, size, wide, pad, seed)

    parts = [some(count, count) for count in draw(st.lists(st.integers(1, 8), max_size=3))]
    chunk = some(rows + sum(asked), rows)
    window = draw(st.none() | st.integers(1, 12))
    rules = Rules(size**-0.5, draw(st.sampled_from([0.0, 0.0, 2.0])), window)
    return queries(len(chunk), batch, heads, size, seed), parts, chunk, rules, asked


@pytest.mark.fuzz
@settings(max_examples=examples(150))
@given(shapes())
def test_any_shapes(given):
    check(*given)


def test_visible_is_what_is_said():
    parts, chunk = [entries(5, pad=(2, 0)), entries(3)], entries(9, pad=(1, 0))
    for rules in (RULES["plain"], RULES["window"]):
        found = visible(parts, chunk, rules.window, (2, 3))
        for b in range(2):
            for row in range(9):
                assert found[b, row].tolist() == sight(parts, chunk, rules, (2, 3), b, row)


@pytest.mark.parametrize("asked", [(), (8, 8)])
def test_no_mask_is_made_over_memory(asked):
    rows, held = 256, 4096
    part, own = entries(held, 1, 1), entries(rows, 1, 1)
    with LiveStorages() as meter:
        attend(queries(rows, 1, 1), [part], own, Rules(0.35), asked)
    # One bool for each row and entry would be 1.1 MB.
    assert meter.peak < rows * held / 8
