"""What a plan predicts against whole steps that are measured, and what it leaves untouched."""

from __future__ import annotations

import copy
import csv
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from apportion import finetune as ft
from apportion import models
from apportion.errors import InputError
from apportion.finetune import probe
from apportion.finetune.plan import plan
from apportion.finetune.ways import WAYS
from apportion.meter import LiveStorages
from finetune.tiny import make

LENGTH = 64
SIX = {
    "llama": {},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention", "full_attention"] * 2},
    "mixtral": {},
}
BY_NAME = {way.name: way for way in WAYS}


def six(kind: str, **more) -> torch.nn.Module:
    return make(kind, num_hidden_layers=6, **SIX[kind], **more)


def lora(model: torch.nn.Module) -> torch.nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft's own, of transformers' names
        return peft.get_peft_model(model, config)


def measured(model, way, batch, loss_share) -> int:
    """Weights, optimizer states, and the most that a real step of the whole model holds."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    inner = models.unwrap(model)
    inputs = probe.inputs_for(inner, batch, LENGTH, loss_share)
    with probe.undisturbed(inner), probe.prepared(inner, way.settings, way.checkpoints):
        # The first step makes the optimizer's states.
        for meter in (nullcontext(), LiveStorages()):
            with meter:
                model(**inputs, use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    states = sum(x.numel() * x.element_size() for s in optimizer.state.values() for x in s.values())
    return sum(p.numel() * p.element_size() for p in model.parameters()) + states + meter.peak


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", SIX)
def test_predicted_bytes_are_those_of_a_real_step(kind, adapted):
    model = lora(six(kind)) if adapted else six(kind)
    found = plan(model, batch=2, length=LENGTH, loss_share=0.2, rounds=1)
    assert {o.name for o in found.options} == set(BY_NAME)
    for option in found.options:
        real = measured(model, BY_NAME[option.name], 2, 0.2)
        # How many tokens an expert gets differs from layer to layer.
        tolerance = 0.05 if kind == "mixtral" else 0.015
        assert option.peak_bytes == pytest.approx(real, rel=tolerance), option.name
        assert sum(option.bytes.values()) == option.peak_bytes
        assert option.seconds > 0


def test_frozen_layers_below_and_above_trained_ones():
    model = six("llama")
    model.model.embed_tokens.requires_grad_(False)
    for number in (0, 1, 4):
        model.model.layers[number].requires_grad_(False)
    kinds = probe.kinds_of(model)
    assert [kind.members for kind in kinds] == [(0, 1), (2, 3, 5), (4,)]
    assert [kind.reached for kind in kinds] == [False, True, True]
    for option in plan(model, batch=2, length=LENGTH, rounds=1).options:
        real = measured(model, BY_NAME[option.name], 2, 1.0)
        assert option.peak_bytes == pytest.approx(real, rel=0.02), option.name


def test_the_peak_is_at_the_top_or_at_the_bottom():
    # Adapters: gradients are small, so bytes only fall on the way down.
    top = plan(lora(six("llama")), batch=2, length=LENGTH, rounds=1)
    checkpointing = next(o for o in top.options if o.checkpointing)
    assert checkpointing.peak_at == "backward of layer 5"
    bottom = plan(six("llama"), batch=1, length=8, rounds=1)
    checkpointing = next(o for o in bottom.options if o.checkpointing)
    assert checkpointing.bytes["gradients"] > checkpointing.bytes["activations"]


def state_of(model) -> dict:
    return {
        "layers": list(model.model.layers),
        "container": model.model.layers,
        "config": copy.deepcopy(model.config.to_dict()),
        "flags": [dict(vars(m)) for m in model.modules()],
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()],
        "random": torch.get_rng_state(),
    }


def same(before, after) -> bool:
    return (
        all(a is b for a, b in zip(before["layers"], after["layers"], strict=True))
        and before["container"] is after["container"]
        and before["config"] == after["config"]
        and [f.keys() for f in before["flags"]] == [f.keys() for f in after["flags"]]
        and [f.get("training") for f in before["flags"]]
        == [f.get("training") for f in after["flags"]]
        and before["hooks"] == after["hooks"]
        and torch.equal(before["random"], after["random"])
    )


def test_the_model_is_left_as_it_was():
    model = six("gemma3_text")
    model.model.layers[1].eval()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradient = torch.ones_like(model.model.norm.weight)
    model.model.norm.weight.grad = gradient
    before = state_of(model)
    plan(model, batch=1, length=16, rounds=1)
    assert same(before, state_of(model))
    assert model.model.norm.weight.grad is gradient
    assert all(p.grad is None for n, p in model.named_parameters() if n != "model.norm.weight")
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())


def test_an_exception_inside_leaves_it_too(monkeypatch):
    model = six("gemma3_text")
    before = state_of(model)
    calls = []

    def fail(module, args):
        calls.append(len(model.model.layers))
        if len(calls) > 3:
            raise RuntimeError("out of memory")

    hook = model.model.layers[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        plan(model, batch=1, length=16, rounds=1)
    hook.remove()
    assert set(calls) == {2}
    assert same(before, state_of(model))


def test_best_is_the_best_gradient_then_the_fastest_that_fits():
    model = six("llama")
    everything = plan(model, batch=2, length=LENGTH, rounds=1)
    assert everything.best.cosine == 1
    assert everything.best.seconds == min(o.seconds for o in everything.options if o.cosine == 1)
    assert everything.attached.settings == {"keep": 1.0}
    exact = [o for o in everything.options if o.cosine == 1]
    leanest = min(exact, key=lambda o: o.peak_bytes)
    tight = plan(model, batch=2, length=LENGTH, rounds=1, memory=leanest.peak_bytes)
    assert tight.best.name == leanest.name
    assert tight.best.fits
    assert not next(o for o in tight.options if o.name == "plain").fits
    assert [o.fits for o in tight.options] == sorted((o.fits for o in tight.options), reverse=True)


def test_a_budget_too_small_names_the_least_that_works():
    model = six("llama")
    free = plan(model, batch=8, length=LENGTH, rounds=1)
    least = min(free.options, key=lambda o: o.peak_bytes)
    # Enough for fewer samples.
    tight = plan(model, batch=8, length=LENGTH, rounds=1, memory=least.peak_bytes * 2 // 3)
    assert tight.smaller_batch in range(1, 8)
    with pytest.raises(InputError, match=f"batch={tight.smaller_batch}") as refused:
        _ = tight.best
    amount = str(refused.value).split("memory of ")[1].split(" at least")[0]
    assert plan(model, batch=8, length=LENGTH, rounds=1, memory=amount).best.name == least.name
    fewer = plan(
        model,
        batch=tight.smaller_batch,
        length=LENGTH,
        rounds=1,
        memory=least.peak_bytes * 2 // 3,
    )
    assert fewer.best.fits
    hopeless = plan(model, batch=8, length=LENGTH, rounds=1, memory="1kB")
    assert hopeless.smaller_batch == 0
    with pytest.raises(InputError, match="smaller batch or length"):
        _ = hopeless.attached


def test_sparse_is_offered_only_where_few_tokens_carry_loss():
    names = {o.name for o in plan(six("llama"), batch=1, length=16, rounds=1).options}
    assert not any("sparse" in name for name in names)
    for share, expected in ((0.2, 2), (0.3, 1)):
        few = plan(six("llama"), batch=1, length=16, rounds=1, loss_share=share).options
        assert sum("sparse" in o.name for o in few) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": 0}, "batch of 1 at least, got 0"),
        ({"length": 1}, "length of 2 at least"),
        ({"length": 129}, "at most 128"),
        ({"loss_share": 0.0}, r"loss_share in \(0, 1\]"),
        ({"loss_share": 1.5}, "got 1.5"),
        ({"memory": "lots"}, "amount of bytes"),
        ({"rounds": 0}, "rounds of 1"),
    ],
)
def test_bad_input_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        plan(six("llama"), **({"batch": 1, "length": 16} | given))


def test_models_that_cannot_be_planned_are_refused():
    frozen = six("llama").requires_grad_(False)
    with pytest.raises(InputError, match="requires_grad=False"):
        plan(frozen, batch=1, length=16)
    model = six("llama")
    with ft.attach(model), pytest.raises(InputError, match="detach"):
        plan(model, batch=1, length=16)


def test_a_way_that_the_model_refuses_is_left_out_with_its_reason():
    found = plan(six("llama", attention_dropout=0.1), batch=1, length=16, rounds=1, loss_share=0.2)
    assert set(found.refused) == {"sparse, keep 0.5", "sparse, keep 0.25"}
    assert "attention_dropout" in found.refused["sparse, keep 0.5"]
    assert len(found.options) == 5
    assert found.to_dict()["options"][0]["name"] == found.best.name


def test_progress_reaches_the_end():
    seen = []
    plan(six("llama"), batch=1, length=16, rounds=1, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_expected_cosines_are_those_that_were_measured():
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "finetune_modes.csv"
    with path.open(encoding="utf-8", newline="") as handle:
        measured = {(r["data"], r["side"]): r["cosine"] for r in csv.DictReader(handle)}
    sides = {
        "8-bit rows": ("every token", "ladder 8bit"),
        "4-bit rows": ("every token", "ladder 4bit"),
        "sparse, keep 0.5": ("completions", "sparse 0.5"),
        "sparse, keep 0.25": ("completions", "sparse 0.25"),
    }
    expected = {way.name: way.cosine for way in WAYS if way.source != "exact"}
    assert set(expected) == set(sides)
    for name, side in sides.items():
        # The last run's, rounded down.
        assert -0.01 <= expected[name] - float(measured[side]) <= 0, name


def test_a_probe_holds_more_weights_than_caches_do(monkeypatch):
    model = six("llama")
    each = probe.bytes_of(model.model.layers[0])

    def layers() -> int:
        (kind,) = probe.kinds_of(model)
        return len(probe.excerpt_for(model, kind, [kind]).layers)

    assert layers() == 6  # all there are: together they are far below
    for wanted, expected in ((0, 2), (3 * each, 3), (3 * each + 1, 4), (100 * each, 6)):
        monkeypatch.setattr(probe, "COLD_BYTES", wanted)
        assert layers() == expected
