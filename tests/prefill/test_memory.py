"""What a layer holds, and the choice of it, against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apportion.prefill.memory import LayerMemory, choose, empty, joined_real
from apportion.prefill.scorers import Scores
from fuzzing import examples


def memory(count: int, pad=(0, 0), start: int = 0, heads: int = 2, sums=("received",)):
    """Random entries of two samples, the first of them padding."""
    generator = torch.Generator().manual_seed(count + start)
    real = torch.arange(count) >= torch.tensor(pad)[:, None]
    order = torch.arange(start, start + count, dtype=torch.int32)
    return LayerMemory(
        torch.randn(2, heads, count, 6, generator=generator),
        torch.randn(2, heads, count, 4, generator=generator),
        order.expand(2, heads, count),
        None if bool(real.all()) else real,
        {name: torch.rand(2, heads, count, generator=generator) for name in sums},
    )


def plain(worth: Tensor, keep: Tensor | None, real: Tensor, budget: int, sinks: int):
    """Places kept of one head, by sorting: sinks, then those by force, then the best."""
    held = [j for j in range(len(worth)) if real[j]]
    first, rest = held[:sinks], held[sinks:]
    rest.sort(key=lambda j: (keep is None or not bool(keep[j]), -float(worth[j]), -j))
    return sorted(first + rest[: max(0, sinks + budget - len(first))])


@pytest.mark.fuzz
@settings(max_examples=examples(200))
@given(
    count=st.integers(1, 20),
    pad=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    budget=st.integers(0, 25),
    sinks=st.integers(0, 5),
    forced=st.integers(0, 4),
    seed=st.integers(0, 999),
)
def test_choice(count, pad, budget, sinks, forced, seed):
    generator = torch.Generator().manual_seed(seed)
    # Some are equal.
    worth = torch.randint(-8, 8, (2, 3, count), generator=generator) / 4
    real = torch.arange(count) >= torch.tensor(pad).clamp(max=count)[:, None]
    keep = None
    if forced:
        # The newest, as scorers force them; never more than there is room for.
        newest = torch.arange(count) >= count - min(forced, budget)
        keep = newest & real[:, None] & torch.ones(2, 3, 1, dtype=torch.bool)
    found = choose(Scores(worth, keep), real, budget, sinks)
    assert found.shape == (2, 3, min(count, sinks + budget))
    for b in range(2):
        for h in range(3):
            places = found[b, h].tolist()
            assert places == sorted(set(places))
            held = [j for j in places if real[b, j]]
            own = None if keep is None else keep[b, h]
            assert held == plain(worth[b, h], own, real[b], budget, sinks)
            # What is no text stands in front.
            assert places[len(places) - len(held) :] == held


def test_sinks_are_the_first_real_ones_whatever_their_scores():
    worth = torch.arange(9.0).expand(2, 1, 9).contiguous()
    worth[0, 0, 2], worth[1, 0, 0] = -1e30, -torch.finfo(torch.float32).max
    real = torch.arange(9) >= torch.tensor([2, 0])[:, None]
    found = choose(Scores(worth), real, 2, 3)
    assert found.tolist() == [[[2, 3, 4, 7, 8]], [[0, 1, 2, 7, 8]]]


@pytest.mark.parametrize("count", [5, 50, 3000])
def test_of_equals_the_latest(count):
    real = torch.ones(1, count, dtype=torch.bool)
    found = choose(Scores(torch.zeros(1, 2, count)), real, count // 2, 2)
    last = list(range(count - count // 2, count))
    assert found.tolist() == [[[0, 1, *last]] * 2]


def test_scores_that_are_none_are_no_error_here():
    # The forward that they come from says where.
    worth = torch.tensor([[[1.0, float("nan"), 3.0, float("nan"), 2.0]]])
    real = torch.ones(1, 5, dtype=torch.bool)
    assert choose(Scores(worth), real, 2, 1).tolist() == [[[0, 2, 4]]]
    assert choose(Scores(worth * float("nan")), real, 2, 1).shape == (1, 1, 3)


def test_what_is_forced_beats_any_score_but_no_sink():
    worth = torch.tensor([[[9.0, 8.0, 3e38, 1.0, 0.0]]])
    keep = torch.tensor([[[False, False, False, False, True]]])
    real = torch.ones(1, 5, dtype=torch.bool)
    assert choose(Scores(worth, keep), real, 1, 1).tolist() == [[[0, 4]]]
    assert choose(Scores(worth, keep), real, 2, 1).tolist() == [[[0, 2, 4]]]
    assert choose(Scores(worth, keep), real, 0, 1).tolist() == [[[0]]]
    assert choose(Scores(worth, keep), real, 0, 0).shape == (1, 1, 0)


def joined(a: LayerMemory, b: LayerMemory) -> list[Tensor]:
    parts = ((a.keys, b.keys), (a.values, b.values), (a.order, b.order))
    return [torch.cat(pair, dim=2) for pair in parts]


@pytest.mark.parametrize(("held", "new"), [(0, 5), (7, 5), (7, 1), (1, 1)])
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((1, 0), (0, 0)), ((1, 0), (1, 0))])
def test_chosen(held, new, pads):
    old, fresh = memory(held, pads[0]), memory(new, pads[1], held)
    old = empty(fresh) if not held else old
    generator = torch.Generator().manual_seed(3)
    count = held + new
    index = torch.rand(2, 2, count, generator=generator).topk(count // 2).indices.sort().values
    # Of padding each head holds as much as the others.
    index = index[:, :1].expand(-1, 2, -1).contiguous()
    kept = old.chosen(fresh, index)
    real = torch.cat([x.is_real for x in map(Flags, (old, fresh))], dim=1)
    for part, whole in zip((kept.keys, kept.values, kept.order), joined(old, fresh), strict=True):
        assert part.dtype == whole.dtype
        for b in range(2):
            for h in range(2):
                for k, j in enumerate(index[b, h].tolist()):
                    assert torch.equal(part[b, h, k], whole[b, h, j])
    flags = torch.stack([real[b, index[b, 0]] for b in range(2)])
    assert (kept.real is None) == bool(flags.all())
    assert kept.real is None or torch.equal(kept.real, flags)


class Flags:
    """Which are real, also where all are."""

    def __init__(self, held: LayerMemory) -> None:
        self.is_real = held.real
        if held.real is None:
            self.is_real = torch.ones(2, len(held), dtype=torch.bool)


@pytest.mark.parametrize("window", [0, 1, 3, 5, 6, 12, 40])
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((4, 0), (0, 0)), ((7, 0), (2, 0))])
def test_slid(window, pads):
    old, fresh = memory(7, pads[0]), memory(5, pads[1], 7)
    slid = old.slid(fresh, window)
    first = max(0, 12 - window)
    for part, whole in zip((slid.keys, slid.values, slid.order), joined(old, fresh), strict=True):
        assert torch.equal(part, whole[:, :, first:])
    flags = torch.cat([x.is_real for x in map(Flags, (old, fresh))], dim=1)[:, first:]
    assert torch.equal(Flags(slid).is_real if window else flags, flags)
    assert (slid.real is None) == bool(flags.all())
    assert not slid.carried


@pytest.mark.parametrize("how", ["chosen", "slid"])
def test_what_is_kept_keeps_nothing_else_alive(how):
    large, fresh = memory(500), memory(300, start=500)
    index = torch.arange(10).expand(2, 2, 10)
    kept = large.chosen(fresh, index) if how == "chosen" else large.slid(fresh, 10)
    for part in (kept.keys, kept.values, kept.order):
        assert part.untyped_storage().nbytes() == part.numel() * part.element_size()
    assert kept.bytes == 2 * 2 * 10 * ((6 + 4) * 4 + 4)
    parents = {x.untyped_storage().data_ptr() for x in (large.keys, fresh.keys, large.values)}
    assert not parents & {x.untyped_storage().data_ptr() for x in (kept.keys, kept.values)}


def test_bytes_count_flags_and_sums():
    held = memory(8, (3, 0), sums=("received", "squared"))
    plainly = 2 * 2 * 8 * (6 + 4 + 2) * 4
    # The order is one row that all heads share.
    assert held.bytes == plainly + 8 * 4 + 2 * 8


def test_of_a_sample_is_a_view_without_needless_flags():
    held = memory(8, (3, 0))
    for sample in range(2):
        own = held.of(sample)
        assert torch.equal(own.keys, held.keys[sample : sample + 1])
        assert own.keys.untyped_storage().data_ptr() == held.keys.untyped_storage().data_ptr()
        assert torch.equal(own.carried["received"][0], held.carried["received"][sample])
    assert held.of(0).real.tolist() == [[False] * 3 + [True] * 5]
    assert held.of(1).real is None


def test_flags_of_both():
    a, b = memory(3, (1, 0)), memory(2, start=3)
    assert joined_real(b, b) is None
    assert joined_real(a, b).tolist() == [[False, True, True, True, True], [True] * 5]
    assert joined_real(b, a)[0].tolist() == [True, True, False, True, True]


def test_empty_has_the_shapes_of_others_and_none_of_their_storage():
    like = memory(9, (2, 0))
    none = empty(like)
    assert len(none) == 0
    assert none.keys.shape == (2, 2, 0, 6)
    assert none.values.shape == (2, 2, 0, 4)
    assert none.carried["received"].shape == (2, 2, 0)
    assert none.keys.untyped_storage().nbytes() == 0
