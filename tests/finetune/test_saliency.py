"""Every rule against its formula written out over whole attention matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from apportion import finetune as ft
from apportion.finetune.saliency import get_saliency
from apportion.finetune.saliency.attention import sample
from apportion.meter import LiveStorages
from finetune.tiny import VOCABULARY, batch, make


def view(length=13, heads=4, key_heads=2, softcap=0.0, mask=None, seed=0) -> ft.View:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    real = torch.ones(2, length, dtype=torch.bool)
    real[1, -3:] = False
    loss = torch.zeros_like(real)
    loss[0, -4:], loss[1, 2:6] = True, True
    return ft.View(
        hidden=draw(2, length, 24),
        output=draw(2, length, 24),
        query=draw(2, heads, length, 6),
        key=draw(2, key_heads, length, 6),
        value=draw(2, key_heads, length, 6),
        mask=mask,
        scaling=0.4,
        softcap=softcap,
        real=real,
        loss=loss,
        generator=torch.Generator().manual_seed(5),
        layer=0,
        layers=3,
    )


def whole_attention(seen: ft.View) -> tuple[Tensor, Tensor]:
    """All of softmax(q k^T), and what each query sees."""
    key = seen.key.repeat_interleave(seen.query.shape[1] // seen.key.shape[1], dim=1)
    scores = seen.query @ key.transpose(2, 3) * seen.scaling
    if seen.softcap:
        scores = seen.softcap * torch.tanh(scores / seen.softcap)
    length = scores.shape[-1]
    if seen.mask is None:
        sees = torch.ones(length, length).tril().bool() & seen.real[:, None, None, :]
    else:
        sees = seen.mask if seen.mask.dtype == torch.bool else seen.mask == 0
    return torch.softmax(scores.masked_fill(~sees, -1e30), -1) * sees, sees


def sliding(length=13, window=5) -> Tensor:
    at = torch.arange(length)
    near = (at[:, None] >= at) & (at[:, None] - at < window)
    return near.expand(2, 1, length, length)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("masked", ["causal", "boolean", "added"])
@pytest.mark.parametrize("queries", [3, 100])
def test_attention(softcap, masked, queries):
    mask = None if masked == "causal" else sliding()
    if masked == "added":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    seen = view(softcap=softcap, mask=mask)
    attention, sees = whole_attention(seen)
    rows = sample(seen.loss, seen.real, queries)
    expected = torch.zeros(2, 13)
    for b in range(2):
        counts = torch.zeros(13)
        for t in rows[b].tolist():
            assert seen.loss[b, t]
            expected[b] += attention[b, :, t].sum(0)
            counts += sees.expand(2, 1, 13, 13)[b, 0, t]
        expected[b] /= counts.clamp(min=1)
    found = get_saliency("attention").__class__(queries).score(seen)
    assert torch.allclose(found, expected, atol=1e-6)


def test_sample_is_even_and_covers_all_rows_with_loss():
    loss = torch.zeros(1, 100, dtype=torch.bool)
    loss[0, 60:92] = True
    assert sample(loss, torch.ones_like(loss), 32).tolist() == [list(range(60, 92))]
    assert sample(loss, torch.ones_like(loss), 4).tolist() == [[64, 72, 80, 88]]
    none = torch.zeros_like(loss)
    assert sample(none, torch.ones_like(loss), 2).tolist() == [[25, 75]]


def test_last_query():
    seen = view()
    attention, _ = whole_attention(seen)
    last = torch.stack([attention[0, :, 12].sum(0), attention[1, :, 9].sum(0)])
    expected = last / last.sum(1, keepdim=True)
    assert torch.allclose(get_saliency("last-query").score(seen), expected, atol=1e-6)


def test_update_value_and_norm():
    seen = view()
    moved = (seen.output - seen.hidden).norm(dim=-1) / seen.hidden.norm(dim=-1)
    assert torch.allclose(get_saliency("update").score(seen), moved)
    size = seen.value.abs().sum(-1).sum(1) * seen.real
    assert torch.allclose(
        get_saliency("value").score(seen), size / size.sum(1, keepdim=True), atol=1e-6
    )
    assert torch.allclose(get_saliency("norm").score(seen), seen.hidden.norm(dim=-1))


def test_random_is_drawn_from_the_seed_and_the_step():
    model, inputs = make("llama"), batch((40, 40), answers=2)

    def rows(seed: int) -> list[list[list[int]]]:
        found = []
        settings = {"keep": 0.3, "saliency": "random", "backward": "sparse", "seed": seed}
        with ft.attach(model, **settings) as sparse:
            for _ in range(2):
                model(**inputs).loss.backward()
                found.append(sparse.ledger.step.kept.tolist())
        return found

    first = rows(0)
    assert first == rows(0)
    assert first != rows(1)
    assert first[0] != first[1]


def test_scores_never_hold_a_square():
    length = 2048
    seen = view(length=length)
    with LiveStorages() as meter:
        get_saliency("attention").score(seen)
        get_saliency("last-query").score(seen)
    # 4 heads × 32 queries × 2048 keys a sample, a few times over; a square would be 134 MB.
    assert meter.peak < 5 * 2 * 4 * 32 * length * 4 + 10 * seen.query.numel() * 4


def test_an_own_rule_is_taken():
    class Newest(ft.Saliency):
        name = "newest"
        paper = "here"

        def score(self, view: ft.View) -> Tensor:
            at = torch.arange(view.real.shape[1], dtype=torch.float32)
            return at.expand(view.real.shape)

    model = make("llama")
    ids = torch.randint(3, VOCABULARY, (1, 40))
    labels = torch.where(torch.arange(40) == 39, ids, -100)
    with ft.attach(model, keep=0.25, saliency=Newest(), backward="sparse") as sparse:
        model(input_ids=ids, labels=labels).loss.backward()
        kept = sparse.ledger.step.kept
    assert kept.tolist() == [[0, 1, 2, 3, 34, 35, 36, 37, 38, 39]]


def test_published_selects_by_its_rule_and_changes_the_forward():
    model, inputs = make("llama", torch.float64), batch((40, 31), answers=5)
    plain = model(**inputs, use_cache=False).loss
    model.train()
    with ft.attach(model, saliency="published", loss="model") as sparse:
        loss = model(**inputs).loss
        loss.backward()
        kept = sparse.ledger.rows()
    assert len(kept) == 3
    for rows in kept:
        assert rows.shape[1] >= 8
        assert set(rows[0].tolist()) >= {0, 1, 2, 3, 39}
        assert set(rows[1].tolist()) >= {0, 1, 2, 3, 30}
    assert abs(float(loss.detach() - plain.detach())) > 1e-6
    q = model.model.layers[2].self_attn.q_proj.weight.grad
    assert bool(q.abs().max() > 0)
