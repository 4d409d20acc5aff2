"""One set of properties over every saliency rule, those to come included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from apportion import finetune as ft
from finetune.tiny import batch, gradients, make

RULES = sorted(ft.SALIENCIES)
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "finetune.md"


def chosen(inputs: dict[str, torch.Tensor], rule: str, kind: str = "llama", **settings):
    """Scores of every layer, and the rows that were kept."""
    model, scores = make(kind), []

    class Recorded(ft.SALIENCIES[rule]):
        def score(self, view: ft.View) -> torch.Tensor:
            found = super().score(view)
            scores.append(found.clone())
            return found

    with ft.attach(model, saliency=Recorded(), keep=0.4, backward="sparse", **settings) as sparse:
        loss = model(**inputs).loss
        gradients(model, loss)
        return scores, sparse.ledger.rows(), float(loss.detach())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "phi3"])
def test_a_score_a_row_without_gradient_and_finite(rule, kind):
    inputs = batch((23, 17), answers=5)
    scores, _, _ = chosen(inputs, rule, kind)
    assert scores
    for score in scores:
        assert score.shape == (2, 23)
        assert score.dtype == torch.float32
        assert not score.requires_grad
        assert bool(torch.isfinite(score).all())
        assert float(score.std()) > 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_what_stands_in_the_padding_does_not_matter(rule, side):
    inputs = batch((23, 15), side=side, answers=4)
    other = {**inputs, "input_ids": inputs["input_ids"].where(inputs["attention_mask"] == 1, 7)}
    scores, rows, _ = chosen(inputs, rule)
    again, same, _ = chosen(other, rule)
    real = inputs["attention_mask"] == 1
    for a, b in zip(scores, again, strict=True):
        assert torch.allclose(a[real], b[real], atol=1e-5)
    for a, b in zip(rows, same, strict=True):
        # Fewer real rows than are kept: padding fills up, by whatever score.
        assert [set(r.tolist()) & set(q.nonzero().flatten().tolist()) for r, q in
                zip(a, real, strict=True)] == [
            set(r.tolist()) & set(q.nonzero().flatten().tolist()) for r, q in
            zip(b, real, strict=True)
        ]  # fmt: skip


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "random"])
def test_samples_do_not_see_each_other(rule):
    inputs = batch((21, 21), answers=5)
    turned = {name: x.flip(0) for name, x in inputs.items()}
    scores, rows, _ = chosen(inputs, rule)
    again, same, _ = chosen(turned, rule)
    for a, b in zip(scores, again, strict=True):
        assert torch.allclose(a, b.flip(0), atol=1e-5)
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(rows, same, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_sinks_and_rows_with_loss_are_kept_whatever_the_score(rule):
    _, rows, _ = chosen(batch((30, 30), answers=5), rule)
    for kept in rows:
        assert kept.shape == (2, 12)
        for each in kept.tolist():
            assert set(range(4)) | set(range(24, 29)) <= set(each)


@pytest.mark.parametrize("rule", RULES)
def test_the_loss_does_not_depend_on_the_rule(rule):
    inputs = batch((23, 17), answers=5)
    expected = float(make("llama")(**inputs).loss.detach())
    assert chosen(inputs, rule)[2] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("choose", ["start", "forward"])
@pytest.mark.parametrize("per", ["model", "layer"])
def test_the_same_again_is_the_same(rule, choose, per):
    inputs = batch((23, 17), answers=5)
    first, second = (chosen(inputs, rule, choose=choose, per=per)[1] for _ in range(2))
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_the_guide_and_its_source_name_it(rule):
    assert f"| `{rule}` |" in GUIDE.read_text(encoding="utf-8")
    assert ft.SALIENCIES[rule].name == rule
    assert ft.SALIENCIES[rule].paper
