"""Every scorer against its formula over whole attention matrices, several steps in a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from apportion.errors import InputError
from apportion.meter import LiveStorages
from apportion.prefill.scorers import Scorer, Scores, View, base, get_scorer
from apportion.prefill.scorers.query import Query
from apportion.prefill.scorers.roco import RoCo
from apportion.prefill.scorers.snapkv import SnapKV
from apportion.prefill.scorers.value_aware import ValueAware
from prefill.steps import GROUP, HEADS, Step, Text, read, text

# Scores of one sample and head by position in the text, from all steps up to this one.
Reference = Callable[[list[Step], Text, int, int], dict[int, float]]


def held(step: Step, source: Text, b: int, h: int) -> list[int]:
    """Positions of the real entries, in the order of the text."""
    return sorted(p for p in step.positions[b, h].tolist() if p >= source.padding[b])


def summed(attention: Tensor, b: int, h: int, p: int) -> float:
    return float(attention[b, h, :, :, p].sum())


def h2o(steps, source, b, h):
    entries = held(steps[-1], source, b, h)
    return {p: sum(summed(step.attention, b, h, p) for step in steps) for p in entries}


def mean(steps, source, b, h):
    step = steps[-1]
    return {
        p: summed(step.attention, b, h, p) / (GROUP * int(step.sees[b, h, :, p].sum()))
        for p in held(step, source, b, h)
    }


def tova(steps, source, b, h):
    step = steps[-1]
    found = {}
    for p in held(step, source, b, h):
        # All heads hold the same.
        assert all(p in step.positions[b, other] for other in range(HEADS))
        found[p] = float(step.attention[b, :, :, -1, p].mean())
    return found


def pooled(scores: dict[int, float], width: int, kind: str, sinks: int = 2) -> dict[int, float]:
    """Over neighbours among the entries that are no sinks."""
    order = sorted(scores)
    inner = order[sinks:]
    found = {p: scores[p] for p in order[:sinks]}
    for k, p in enumerate(inner):
        near = [scores[q] for q in inner[max(0, k - width // 2) : k + width // 2 + 1]]
        found[p] = max(near) if kind == "max" else sum(near) / len(near)
    return found


def snapkv(window: int, pool: int, kind: str) -> Reference:
    def reference(steps, source, b, h):
        last = steps[-1].attention[:, :, :, -window:]
        raw = {p: summed(last, b, h, p) for p in held(steps[-1], source, b, h)}
        return pooled(raw, pool, kind)

    return reference


def query(window: int, pool: int, kind: str, weight: float, over: str = "mean") -> Reference:
    def reference(steps, source, b, h):
        step = steps[-1]
        rows = step.attention[:, :, :, -window:]
        awake = max(1, int(step.sees[b, h, -window:].any(dim=1).sum()))

        def asked(p: int) -> float:
            if over == "max":
                return float(step.asked[b, h, :, :, p].max())
            return summed(step.asked, b, h, p) / (GROUP * 4)

        raw = {
            p: (1 - weight) * summed(rows, b, h, p) / (GROUP * awake) + weight * asked(p)
            for p in held(step, source, b, h)
        }
        return pooled(raw, pool, kind)

    return reference


def roco_mean(steps, source, b, h):
    found = {}
    for p in held(steps[-1], source, b, h):
        count = sum(int(s.sees[b, h, :, p].sum()) for s in steps) * GROUP
        found[p] = sum(summed(s.attention, b, h, p) for s in steps) / count
    return found


def values(inner: Reference) -> Reference:
    def reference(steps, source, b, h):
        return {
            p: x * float(source.values[b, h, p].double().abs().sum())
            for p, x in inner(steps, source, b, h).items()
        }

    return reference


CASES: dict[str, tuple[Callable[[], Scorer], Reference]] = {
    "streaming": (
        lambda: get_scorer("streaming"),
        lambda s, t, b, h: {p: p - max(held(s[-1], t, b, h)) for p in held(s[-1], t, b, h)},
    ),
    "prefix": (
        lambda: get_scorer("prefix"),
        lambda s, t, b, h: {p: min(held(s[-1], t, b, h)) - p for p in held(s[-1], t, b, h)},
    ),
    "local": (
        lambda: get_scorer("local"),
        lambda s, t, b, h: dict.fromkeys(held(s[-1], t, b, h), 0.0),
    ),
    "h2o": (lambda: get_scorer("h2o"), h2o),
    "mean": (lambda: get_scorer("mean"), mean),
    "tova": (lambda: get_scorer("tova"), tova),
    "roco": (lambda: RoCo(window=2), roco_mean),
    "snapkv": (lambda: SnapKV(3, 5), snapkv(3, 5, "max")),
    "snapkv average": (lambda: SnapKV(3, 5, "average"), snapkv(3, 5, "average")),
    "snapkv as published": (lambda: SnapKV(64, 7, "average"), snapkv(64, 7, "average")),
    "snapkv without pool": (lambda: SnapKV(3, 1), snapkv(3, 1, "max")),
    "snapkv of the chunk": (lambda: SnapKV(None, 3), snapkv(99, 3, "max")),
    "value-aware": (lambda: ValueAware(SnapKV(3, 5)), values(snapkv(3, 5, "max"))),
    "value-aware h2o": (lambda: get_scorer("value-aware:h2o"), values(h2o)),
    "query": (lambda: Query(3, 5, "max", 0.5, "mean"), query(3, 5, "max", 0.5)),
    "query average": (
        lambda: Query(3, 21, "average", 0.8, "mean"),
        query(3, 21, "average", 0.8),
    ),
    "query of one row": (
        lambda: Query(3, 5, "max", 0.7, "max"),
        query(3, 5, "max", 0.7, "max"),
    ),
}


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("block", [1, 100, base.BLOCK])
@pytest.mark.parametrize("case", sorted(CASES))
def test_scores(case, softcap, block, monkeypatch):
    monkeypatch.setattr(base, "BLOCK", block)
    assert compared(case, text(softcap=softcap), rel=2e-5, abs=1e-6) > 150


@pytest.mark.parametrize("case", ["h2o", "query", "snapkv", "tova"])
def test_scores_in_bfloat16_are_near(case):
    assert compared(case, text(dtype=torch.bfloat16), rel=0.05, abs=0.01) > 150


def compared(case: str, source: Text, **near: float) -> int:
    """Every score of a read with its reference; how many there were."""
    make, reference = CASES[case]
    steps = read(make(), source)
    count = 0
    for t, step in enumerate(steps):
        assert step.scores.values.dtype == torch.float32
        for b in range(2):
            for h in range(HEADS):
                expected = reference(steps[: t + 1], source, b, h)
                for j, p in enumerate(step.positions[b, h].tolist()):
                    if p >= source.padding[b]:
                        found = float(step.scores.values[b, h, j])
                        assert found == pytest.approx(expected[p], **near)
                        count += 1
    return count


def forced(step: Step, b: int, h: int) -> list[int]:
    assert step.scores.keep is not None
    return sorted(step.positions[b, h][step.scores.keep[b, h]].tolist())


@pytest.mark.parametrize(
    ("make", "window"),
    [
        (lambda: get_scorer("h2o"), 99),
        (lambda: SnapKV(3), 3),
        (lambda: SnapKV(), 64),
        (lambda: Query(2), 2),
        (lambda: ValueAware(SnapKV(3)), 3),
    ],
)
def test_the_newest_are_kept_up_to_half_of_the_budget(make, window):
    source = text()
    for step in read(make(), source):
        count = min(window, step.view.budget // 2)
        for b in range(2):
            for h in range(HEADS):
                newest = held(step, source, b, h)[-count:]
                assert forced(step, b, h) == newest
                assert set(newest) <= set(step.kept[b, h].tolist())


@pytest.mark.parametrize("name", ["streaming", "prefix", "tova", "mean"])
def test_some_keep_by_score_alone(name):
    assert all(step.scores.keep is None for step in read(get_scorer(name), text()))
    assert all(step.scores.keep is None for step in read(SnapKV(window=None), text()))


@pytest.mark.parametrize("budgets", [(6, 5, 8, 7), (2, 2, 2, 3), (9, 12, 14, 17)])
def test_roco_gives_up_steady_entries_first(budgets):
    source = text()
    steps = read(RoCo(window=2), source, budgets=budgets)
    for t, step in enumerate(steps):
        budget = step.view.budget
        for b in range(2):
            for h in range(HEADS):
                every = held(step, source, b, h)
                near = every[-min(2, budget // 2) :]
                free = [p for p in every[2:] if p not in near]
                spread = {p: deviation(steps[: t + 1], b, h, p) for p in free}
                beside = budget - len(near)
                candidates = max(beside, len(free) - beside)
                spared = sorted(free, key=lambda p, s=spread: s[p])[candidates:]
                assert forced(step, b, h) == sorted({*near, *spared})
                assert len({*near, *spared}) <= budget


def deviation(steps: list[Step], b: int, h: int, p: int) -> float:
    """Standard deviation of the attention that an entry got from all rows that saw it."""
    seen = torch.cat(
        [s.attention[b, h, :, s.sees[b, h, :, p], p].flatten() for s in steps]
    )  # fmt: skip
    return float(seen.std(correction=0))


def test_prefix_and_streaming_keep_the_ends_of_the_text():
    source = text(padding=(0, 4))
    assert read(get_scorer("streaming"), source)[-1].kept[0, 0].tolist() == [0, 1, *range(19, 26)]
    last = read(get_scorer("prefix"), source, budgets=(5, 5, 5, 5))[-1].kept
    assert last[0, 1].tolist() == list(range(7))
    # Padding is no beginning of a text.
    assert last[1, 0].tolist() == list(range(4, 11))


def test_places_far_into_a_text_are_told_apart():
    # Beyond 2^24 float32 has no odd numbers.
    view = read(get_scorer("streaming"), text((0,)))[0].view
    far = replace(view, order=view.order + 2**40)
    for name in ("streaming", "prefix"):
        assert len(get_scorer(name).score(far).values[0, 0].unique()) == 9


def test_tova_makes_all_heads_keep_the_same():
    for step in read(get_scorer("tova"), text()):
        assert torch.equal(step.kept[:, 0], step.kept[:, 1])
    assert any(not torch.equal(s.kept[:, 0], s.kept[:, 1]) for s in read(SnapKV(3), text()))


def test_random_is_drawn_from_the_seed_and_anew_at_every_step():
    first, again = (read(get_scorer("random"), text(seed=seed)) for seed in (0, 1))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.scores.values, b.scores.values)
    drawn = torch.cat([step.scores.values.flatten() for step in first])
    assert len(drawn.unique()) > 0.99 * len(drawn)
    assert 0 <= float(drawn.min()) < 0.1
    assert 0.9 < float(drawn.max()) < 1


def test_query_without_questions_ranks_as_snapkv():
    source = text()
    plain = read(SnapKV(3), source)
    for a, b in zip(plain, read(Query(3), source, ask=False), strict=True):
        assert torch.equal(a.kept, b.kept)
    asked = read(Query(3), source)
    assert any(not torch.equal(a.kept, b.kept) for a, b in zip(plain, asked, strict=True))


def test_a_sink_does_not_lift_what_stands_behind_it():
    source = text((0,))
    source.queries += 3.0
    source.keys[:, :, 0] = 3.0  # a sink that all attend to
    view = read(SnapKV(3, 5), source)[0].view
    lifted = SnapKV(3, 5).score(replace(view, sinks=0)).values
    apart = SnapKV(3, 5).score(view).values
    assert torch.equal(lifted[:, :, 2], lifted[:, :, 0])
    assert bool((apart[:, :, 2] < apart[:, :, 0]).all())


def test_blocks_are_probabilities_and_bounded(monkeypatch):
    monkeypatch.setattr(base, "BLOCK", 500)
    step = read(get_scorer("h2o"), text())[-1]
    rows = 0
    for block in base.attention_blocks(step.view, step.view.queries, 0):
        assert block.dtype == torch.float32
        assert block.numel() <= 500
        assert torch.allclose(block.sum(dim=-1), torch.ones(()), atol=1e-6)
        rows += block.shape[3]
    assert rows == 7


def test_scores_never_hold_a_square(monkeypatch):
    monkeypatch.setattr(base, "BLOCK", 2**16)
    chunk, memory, size = 512, 512, 16

    def draw(*shape: int) -> Tensor:
        return torch.randn(1, 2, *shape, generator=torch.Generator().manual_seed(0))

    entries = memory + chunk
    view = View(
        queries=draw(4, chunk, size),
        keys=draw(entries, size),
        values=draw(entries, size),
        memory=memory,
        budget=memory,
        scaling=0.25,
        softcap=0.0,
        real=torch.ones(1, entries, dtype=torch.bool),
        first_row=0,
        order=torch.arange(entries).expand(1, 2, -1),
        carried={name: torch.zeros(1, 2, entries) for name in ("received", "squared", "seen")},
        generator=torch.Generator(),
    )
    with LiveStorages() as meter:
        for name in ("h2o", "mean", "roco"):
            get_scorer(name).score(view)
    # The square would be 8 × 512 × 1024 × 4 = 17 MB, and a softmax needs two.
    assert meter.peak < 2 * 4 * base.BLOCK + 2**19


def test_a_scorer_by_name_by_object_and_of_ones_own():
    class Short(Scorer):
        name = "short"
        paper = "here"

        def score(self, view: View) -> Scores:
            return Scores(-view.values.to(torch.float32).norm(dim=-1))

    own = Short()
    assert get_scorer(own) is own
    assert len(read(own, text())) == 4
    assert isinstance(get_scorer("value-aware").inner, SnapKV)
    assert get_scorer("value-aware:query").asks
    assert get_scorer("value-aware:h2o").carries == ("received",)
    assert not get_scorer("local").remembers


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: get_scorer("snap"), "expected a scorer of 'streaming', .*; got 'snap'"),
        (lambda: get_scorer("h2o:snapkv"), "got 'h2o:snapkv'"),
        (lambda: get_scorer("value-aware:"), "got ''"),
        (lambda: get_scorer("value-aware:prefix"), "such as 'snapkv' or 'h2o'.*got 'prefix'"),
        (lambda: SnapKV(pool=4), "expected an odd width .* got pool=4"),
        (lambda: Query(pool=0), "pool=1 for none; got pool=0"),
        (lambda: SnapKV(pooling="median"), "'max' or 'average', got 'median'"),
        (lambda: Query(weight=1.5), "weight of 0 to 1 .* got 1.5"),
        (lambda: Query(weight=math.nan), "got nan"),
    ],
)
def test_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
