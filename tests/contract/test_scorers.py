"""One set of properties over every scorer, those to come included."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

from apportion.prefill.scorers import SCORERS, get_scorer
from prefill.steps import HEADS, Text, read, text

NAMES = [*sorted(SCORERS), "value-aware:h2o", "value-aware:query"]
# Those that see a text at all; the others only its places, or nothing.
LOOKING = [name for name in NAMES if get_scorer(name).observes != "none"]


def with_padding(source: Text, filling: float) -> Text:
    """The same text with other numbers where its padding stands."""
    changed = {
        part: getattr(source, part).clone() for part in ("queries", "keys", "values")
    }  # fmt: skip
    for b, count in enumerate(source.padding):
        for x in changed.values():
            x[b, ..., :count, :] = filling
    return replace(source, **changed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_finite_score_an_entry_in_float32(name, dtype):
    scorer = get_scorer(name)
    for step in read(scorer, text(dtype=dtype)):
        shape = step.positions.shape
        assert step.scores.values.shape == shape
        assert step.scores.values.dtype == torch.float32
        assert bool(torch.isfinite(step.scores.values).all())
        assert set(step.scores.carried) == set(scorer.carries)
        for sums in step.scores.carried.values():
            assert sums.shape == shape
            assert sums.dtype == torch.float32
            assert bool(torch.isfinite(sums).all())


@pytest.mark.parametrize("name", NAMES)
def test_what_it_keeps_by_force_is_real_and_fits(name):
    for budgets in ((6, 5, 8, 7), (1, 1, 1, 1), (2, 3, 4, 30)):
        for step in read(get_scorer(name), text(), budgets=budgets):
            if step.scores.keep is not None:
                assert not bool((step.scores.keep & ~step.view.real[:, None]).any())
                assert int(step.scores.keep.sum(dim=2).max()) <= step.view.budget


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("filling", [0.0, 50.0, float("nan"), float("inf")])
def test_what_stands_in_the_padding_does_not_matter(name, filling):
    source = text()
    for a, b in zip(
        read(get_scorer(name), source),
        read(get_scorer(name), with_padding(source, filling)),
        strict=True,
    ):
        real = a.view.real[:, None].expand(a.positions.shape)
        assert torch.equal(a.scores.values[real], b.scores.values[real])
        assert bool(torch.isfinite(b.scores.values).all())
        assert torch.equal(a.kept, b.kept)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random"])
def test_samples_do_not_see_each_other(name):
    source = text(padding=(0, 4, 9))
    parts = ("queries", "keys", "values", "questions")
    together = read(get_scorer(name), source)
    for b, padding in enumerate(source.padding):
        own = {part: getattr(source, part)[b : b + 1] for part in parts}
        alone = read(get_scorer(name), replace(source, padding=(padding,), **own))
        for x, y in zip(together, alone, strict=True):
            real = y.view.real[0]
            assert torch.allclose(
                x.scores.values[b][:, real], y.scores.values[0][:, real], atol=1e-6
            )
            assert torch.equal(x.kept[b], y.kept[0])


@pytest.mark.parametrize("name", LOOKING)
def test_padding_in_front_changes_nothing(name):
    plain = text(padding=(0,), length=22)
    front = {
        part: torch.cat([x[..., :4, :], x], dim=-2)
        for part, x in vars(plain).items()
        if part in ("queries", "keys", "values")
    }
    padded = replace(plain, padding=(4,), **front)
    for x, y in zip(
        read(get_scorer(name), plain, chunks=(5, 6, 4, 7)),
        read(get_scorer(name), padded, chunks=(9, 6, 4, 7)),
        strict=True,
    ):
        a = x.scores.values[0][:, x.view.real[0]]
        b = y.scores.values[0][:, y.view.real[0]]
        assert torch.allclose(a, b, atol=1e-6)
        assert x.kept[x.kept >= 0].tolist() == (y.kept[y.kept >= 0] - 4).tolist()


@pytest.mark.parametrize("name", [name for name in LOOKING if get_scorer(name).name != "tova"])
def test_padded_rows_ask_nothing(name):
    # As where the shorter sample of two has ended: its last rows stand behind real ones.
    view = read(get_scorer(name), text(padding=(0,)))[1].view
    entries, rows = view.real.shape[1] - 2, view.queries.shape[3] - 2
    ended = replace(view, real=view.real & (torch.arange(entries + 2) < entries))
    parts = {part: getattr(view, part)[:, :, :entries] for part in ("keys", "values", "order")}
    shorter = replace(
        view,
        queries=view.queries[:, :, :, :rows],
        real=view.real[:, :entries],
        carried={part: sums[:, :, :entries] for part, sums in view.carried.items()},
        **parts,
    )
    found, alone = get_scorer(name).score(ended), get_scorer(name).score(shorter)
    assert torch.allclose(found.values[:, :, :entries], alone.values, atol=1e-6)
    if alone.keep is not None:
        assert torch.equal(found.keep[:, :, :entries], alone.keep)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_again_is_the_same(name):
    first, second = (read(get_scorer(name), text()) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.scores.values, b.scores.values)
        assert torch.equal(a.kept, b.kept)


@pytest.mark.parametrize("name", NAMES)
def test_it_changes_nothing_of_what_it_sees(name):
    for step in read(get_scorer(name), text()):
        before = {k: v.clone() for k, v in vars(step.view).items() if isinstance(v, torch.Tensor)}
        carried = {k: v.clone() for k, v in step.view.carried.items()}
        get_scorer(name).score(step.view)
        for part, x in before.items():
            assert torch.equal(getattr(step.view, part), x)
        for part, x in carried.items():
            assert torch.equal(step.view.carried[part], x)


@pytest.mark.parametrize("name", LOOKING)
def test_grouped_heads_count_for_their_own_key_head(name):
    source = text(padding=(0, 0))
    other = replace(source, queries=source.queries.clone(), questions=source.questions.clone())
    other.queries[:, 1] *= -1
    other.questions[:, 1] *= -1
    a, b = (read(get_scorer(name), x)[0].scores.values for x in (source, other))
    shared = get_scorer(name).name == "tova"
    assert torch.equal(a[:, 0], b[:, 0]) != shared
    assert not torch.equal(a[:, 1], b[:, 1])
    assert a.shape[1] == HEADS


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_it_is_named_and_has_a_source(name):
    scorer = SCORERS[name]
    assert scorer.name == name
    assert get_scorer(name).name == name
    assert scorer.paper
    assert inspect.getdoc(scorer)
