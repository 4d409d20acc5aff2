"""Selecting rows, against a plain loop; moving them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InputError
from apportion.finetune.rows import kept_count, others, put, select, take
from apportion.finetune.tokens import describe


def plain_select(score, tokens, count):
    """One sample and one row at a time."""
    chosen = []
    for b in range(score.shape[0]):
        length = score.shape[1]
        keys = []
        for t in range(length):
            same = [u for u in range(length) if tokens.segment[b, u] == tokens.segment[b, t]]

            def tier(u, b=b):
                if tokens.sink[b, u]:
                    return 2
                if tokens.loss[b, u]:
                    return 1
                return 0 if tokens.real[b, u] else -1

            better = [
                u
                for u in same
                if (-tier(u), -score[b, u].item(), u) < (-tier(t), -score[b, t].item(), t)
            ]
            keys.append((-(tier(t) - len(better) / len(same)), t))
        chosen.append(sorted(t for _, t in sorted(keys)[:count]))
    return torch.tensor(chosen)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 19), st.floats(0.01, 1.0))
def test_select_is_the_plain_loop(seed, batch, length, keep):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(0, 6, (batch, length), generator=generator).to(torch.float32)
    labels = torch.where(torch.rand(batch, length, generator=generator) < 0.3, 5, -100)
    mask = (torch.rand(batch, length, generator=generator) < 0.8).long()
    position = torch.arange(length) - torch.where(torch.arange(length) >= 7, 7, 0)
    tokens = describe((batch, length), score.device, labels, mask, position[None])
    count = kept_count(keep, length)
    found = select(score, tokens, count)
    assert torch.equal(found, plain_select(score, tokens, count))
    rest = others(found, length)
    assert rest.shape == (batch, length - count)
    assert torch.equal(
        torch.cat([found, rest], 1).sort(1).values, torch.arange(length).expand(batch, length)
    )


def test_each_packed_segment_gets_its_share():
    # The second segment's scores are a thousand times larger; both keep a quarter.
    score = torch.rand(1, 80)
    score[:, 40:] *= 1000
    position = torch.arange(80)[None] % 40
    labels = torch.full((1, 80), -100)
    tokens = describe((1, 80), score.device, labels, None, position)
    kept = select(score, tokens, 20)
    assert int((kept < 40).sum()) == 10


def test_padding_is_kept_last():
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0]])
    tokens = describe((1, 8), torch.device("cpu"), torch.full((1, 8), -100), mask)
    kept = select(torch.arange(8.0)[None], tokens, 4)
    assert kept.tolist() == [[0, 1, 2, 7]]


@pytest.mark.parametrize(
    ("keep", "length", "count"),
    [(1.0, 7, 7), (0.1, 30, 3), (0.001, 30, 1), (0.25, 512, 128), (0.25, 510, 128)],
)
def test_kept_count_rounds_up(keep, length, count):
    assert kept_count(keep, length) == count


def test_take_and_put():
    x = torch.arange(24.0).view(2, 4, 3)
    index = torch.tensor([[0, 2], [1, 3]])
    assert torch.equal(take(x, index), torch.stack([x[0, [0, 2]], x[1, [1, 3]]]))
    assert torch.equal(take(x[:1], index)[1], x[0, [1, 3]])
    assert torch.equal(take(x.unsqueeze(1), index, dim=2)[1, 0], x[1, [1, 3]])
    assert torch.equal(put(torch.zeros(2, 4, 3), index, take(x, index))[0, 2], x[0, 2])


def test_rows_with_loss_predict_a_label():
    labels = torch.tensor([[-100, 5, -100, 7], [3, -100, -100, -100]])
    tokens = describe((2, 4), labels.device, labels)
    assert tokens.loss.tolist() == [[True, False, True, False], [False] * 4]
    assert tokens.loss_share == 0.25
    shifted = describe((2, 4), labels.device, None, None, None, labels)
    assert shifted.loss.tolist() == [[False, True, False, True], [True, False, False, False]]


def test_a_classifier_reads_the_last_real_row():
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
    tokens = describe((2, 4), mask.device, torch.tensor([1, 0]), mask)
    assert tokens.loss.nonzero().tolist() == [[0, 1], [1, 3]]


def test_sinks_are_the_first_real_tokens_of_each_segment():
    mask = torch.tensor([[0, 0] + [1] * 12])
    position = torch.tensor([[0, 0, *range(6), *range(6)]])
    tokens = describe((1, 14), mask.device, None, mask, position)
    assert tokens.sink[0].nonzero().flatten().tolist() == [2, 3, 4, 5, 8, 9, 10, 11]


def test_labels_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"shape \(2, 4\).*got \(2, 5\)"):
        describe((2, 4), torch.device("cpu"), torch.zeros(2, 5))
