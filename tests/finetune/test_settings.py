"""What is refused when attaching, and what a byte budget allows."""

from __future__ import annotations

import pytest
import torch

from apportion import finetune as ft
from apportion.errors import InputError
from apportion.finetune.fitted import rows_for, stored_bytes
from finetune.tiny import batch, gradients, make

REFUSED = [
    ({"keep": 0}, r"expected keep in \(0, 1\], got 0; for example keep=0.25"),
    ({"keep": -0.1}, r"keep in \(0, 1\], got -0.1"),
    ({"keep": 1.5}, r"keep in \(0, 1\], got 1.5"),
    ({"keep": True}, r"keep in \(0, 1\], got True"),
    ({"keep": float("nan")}, r"keep in \(0, 1\], got nan"),
    ({"keep": "lots"}, "expected an amount of bytes such as 1.5GB"),
    ({"exact": 2.0}, r"exact in \(0, 1\], got 2.0"),
    ({"rest": "2bit"}, "rest of '8bit', '4bit', 'drop'; got rest='2bit'"),
    ({"backward": "none"}, "backward of 'full', 'sparse', 'auto'"),
    ({"choose": "later"}, "choose of 'start', 'forward', 'backward'"),
    ({"per": "head"}, "per of 'model', 'layer'"),
    ({"loss": "fast"}, "loss of 'chunked', 'model'"),
    ({"saliency": "loudness"}, "saliency of 'attention', 'last-query'.*got 'loudness'"),
    ({"rest": "drop", "backward": "full"}, "use backward='sparse', or keep=1"),
    ({"rest": "drop", "choose": "forward"}, "choose='start' with rest='drop'"),
    ({"choose": "backward", "per": "model"}, "per='layer' with choose='backward'"),
    ({"keep": "2MB", "rest": "drop"}, "rest='8bit' or '4bit' with a byte budget"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_refused(settings, said):
    model = make("llama")
    with pytest.raises(InputError, match=said):
        ft.attach(model, **settings)


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_top_p_outside_its_range(share):
    with pytest.raises(InputError, match=r"TopP's share in \(0, 1\]"):
        ft.TopP(share)


def test_a_model_without_decoder_layers_is_refused_by_name():
    with pytest.raises(InputError, match=r"hook of gradient checkpointing.*got Linear"):
        ft.attach(torch.nn.Linear(2, 2))


def test_flash_attention_is_refused_for_a_sparse_backward():
    model = make("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(InputError, match=r"got 'flash_attention_2'.*attn_implementation='sdpa'"):
        ft.attach(model)


def test_router_logits_are_refused_by_name():
    model, inputs = make("mixtral"), batch()
    with ft.attach(model), pytest.raises(InputError, match=r"output_router_logits.*loss='model'"):
        model(**inputs, output_router_logits=True)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep", [0.1, 0.5, 1.0])
def test_bytes_in_closed_form_are_those_held(bits, dtype, keep):
    model, inputs = make("llama", dtype), batch((40, 33))
    with ft.attach(model, keep=keep, exact=keep, rest=f"{bits}bit", backward="full") as sparse:
        model(**inputs)
    exact = {0.1: 4, 0.5: 20, 1.0: 40}[keep]
    expected = stored_bytes(40, exact, 2, 48, bits, dtype.itemsize, 3)
    assert sum(sparse.ledger.stored.values()) == expected


def test_a_budget_is_filled_and_never_exceeded():
    model, inputs = make("llama"), batch((40, 33), answers=4)
    whole = 3 * 2 * 40 * 48 * 4
    for budget in (18_000, 25_000, 40_000, whole, 10 * whole):
        with ft.attach(model, keep=f"{budget}B") as sparse:
            model(**inputs).loss.backward()
            held = sum(sparse.ledger.stored.values())
            row = 3 * 2 * (48 * 4 + 8)
            assert held <= budget
            assert held == whole or held > budget - row


def test_a_budget_too_small_says_the_least_that_works():
    model, inputs = make("llama"), batch((40, 33), answers=4)
    with ft.attach(model, keep="2kB"), pytest.raises(InputError) as refused:
        model(**inputs)
    least = stored_bytes(40, 4, 2, 48, 4, 4, 3)
    assert f"{least / 1000:.4g} kB" in str(refused.value)
    assert rows_for(least, 40, 2, 48, 4, 4, 3) == 4


def test_top_p_follows_the_saliency_up_to_its_cap():
    model, inputs = make("llama"), batch((40, 40), answers=2)
    widths = {}
    for share, cap in ((0.3, 1.0), (0.8, 1.0), (0.8, 0.2)):
        settings = {"saliency": "last-query", "backward": "sparse"}
        with ft.attach(model, keep=ft.TopP(share, cap), **settings) as sparse:
            model(**inputs).loss.backward()
            widths[share, cap] = sparse.ledger.step.kept.shape[1]
    assert widths[0.3, 1.0] < widths[0.8, 1.0]
    assert widths[0.8, 0.2] == 8


def fine_rows(sizes: tuple[int, ...], answers: int | None, **settings) -> list[list[int]] | None:
    """Rows that the first layer stores in 8 bits, sample by sample."""
    model = make("llama")
    with ft.attach(model, **{"backward": "full", **settings}) as sparse:
        model(**batch(sizes, answers=answers))
        step = sparse.ledger.step
        found = step.fine_for(step.exact_for(None))
    return None if found is None else found.tolist()


def test_rows_with_loss_are_stored_in_8_bits():
    # 40 rows: 4 sinks exact, a fifth in 8 bits; loss on 5 rows, then the latest before the end.
    found = fine_rows((40, 40), answers=5)
    assert [len(rows) for rows in found] == [8, 8]
    for rows in found:
        assert set(range(34, 39)) <= set(rows)
        assert not set(rows) & set(range(4))
        assert rows == sorted(rows)


def test_padding_is_not_among_them():
    found = fine_rows((40, 30), answers=4)
    assert set(found[1]) <= set(range(4, 30))


@pytest.mark.parametrize(
    "settings",
    [{"answers": None}, {"answers": 5, "rest": "8bit"}, {"answers": 5, "exact": 0.2},
     {"answers": 5, "keep": 1.0}, {"answers": 5, "backward": "sparse"},
     {"answers": 5, "keep": "60kB"}],
)  # fmt: skip
def test_no_rows_in_8_bits_where_they_gain_little_or_others_were_asked_for(settings):
    assert fine_rows((40, 40), **settings) is None


def test_a_fifth_in_8_bits_brings_the_gradient_nearer(monkeypatch):
    model, inputs = make("llama"), batch((60, 60), answers=8)
    exact = gradients(model, model(**inputs).loss)

    def error() -> float:
        with ft.attach(model, backward="full"):
            found = gradients(model, model(**inputs).loss)
        return sum(float((found[n] - exact[n]).square().sum()) for n in exact if "layers" in n)

    with_fine = error()
    monkeypatch.setattr("apportion.finetune.settings.FINE_UP_TO", 0.0)
    assert with_fine < 0.8 * error()
