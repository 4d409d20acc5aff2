"""Attaching to models as users have them: PEFT, packing, dropout, experts, autocast, evaluation."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings

import pytest
import torch

from apportion import finetune as ft
from apportion.errors import InputError
from finetune.reference import detached, given_back
from finetune.test_checkpoint import assert_close, attached, checkpointed
from finetune.tiny import batch, gradients, make

SPARSE = {"keep": 0.4, "rest": "drop", "backward": "sparse", "loss": "model"}


def adapted(kind="llama", **settings):
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **settings)
    with warnings.catch_warnings():
        # PEFT reads a property that transformers is about to rename.
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(make(kind, torch.float64), lora)


def snapshot(model):
    """Everything that attaching touches."""
    layers = [dict(layer.__dict__) for layer in model.model.layers]
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), dict(m._forward_hooks_with_kwargs))
        for m in model.modules()
    ]
    return layers, hooks, model.config._attn_implementation


@pytest.mark.parametrize("failing", [False, True])
def test_detach_restores_everything(failing):
    model = make("gemma3_text")
    before = snapshot(model)
    with contextlib.suppress(ZeroDivisionError), ft.attach(model) as sparse:
        assert snapshot(model) != before
        model(**batch()).loss.backward()
        if failing:
            raise ZeroDivisionError
    assert snapshot(model) == before
    sparse.detach()
    assert snapshot(model) == before


def test_a_refused_attach_leaves_nothing_behind():
    model = make("llama")
    own = model.forward
    model.forward = lambda *args, **kwargs: _scale(own(*args, **kwargs))
    before = snapshot(model)
    with pytest.raises(InputError, match="scales"):
        ft.attach(model)
    assert snapshot(model) == before


def _scale(output):
    output.logits = output.logits / 8
    return output


def test_attaching_twice_is_refused():
    model = make("llama")
    with ft.attach(model), pytest.raises(InputError, match=r"LlamaForCausalLM.*detach\(\) first"):
        ft.attach(model)


def test_evaluation_and_generation_are_the_models_own():
    model, inputs = make("llama"), batch()
    model.eval()
    expected = model(**inputs)
    ids = inputs["input_ids"][:1, :5]
    written = model.generate(ids, max_new_tokens=5, do_sample=False)
    with ft.attach(model, keep=0.2):
        found = model(**inputs)
        assert torch.equal(found.logits, expected.logits)
        assert torch.equal(found.loss, expected.loss)
        assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False), written)
        model.train()
        with torch.no_grad():
            assert torch.equal(model(**inputs).loss, expected.loss)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_adapters(dora, keep):
    model, inputs = adapted(use_dora=dora), batch(answers=5)
    if keep == 1.0:
        _, expected = checkpointed(model.get_base_model(), inputs)
        _, found, _ = attached(model, inputs, keep=1.0, loss="model")
        found = {name.removeprefix("base_model.model."): g for name, g in found.items()}
        assert_close(found, expected, 1e-12)
    else:
        _, found, step = attached(model, inputs, **SPARSE)
        with detached(model.get_base_model(), [step.kept] * 3):
            expected = gradients(model, model(**inputs, use_cache=False).loss)
        assert_close(found, expected, 1e-9)
    assert all("lora" in name for name in found)
    queries = [g for name, g in found.items() if ".q_proj." in name or ".k_proj." in name]
    assert all(bool(g.abs().max() > 0) for g in queries)


@pytest.mark.parametrize("rest", ["drop", "8bit"])
def test_adapter_dropout_is_the_forwards_own(rest):
    # The reference drops out all rows at once, from the same state of the generator.
    model, inputs = adapted(lora_dropout=0.1), batch((24, 24), answers=5)
    settings = {**SPARSE, "keep": 0.5, "rest": rest}
    torch.manual_seed(3)
    loss, found, step = attached(model, inputs, **settings)
    torch.manual_seed(3)
    stored = None if rest == "drop" else given_back(step, 8)
    with detached(model.get_base_model(), [step.kept] * 3, stored):
        expected_loss = model(**inputs, use_cache=False).loss
        expected = gradients(model, expected_loss)
    assert torch.allclose(loss, expected_loss.detach(), rtol=1e-12)
    assert_close(found, expected, 1e-9)


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_dropout_state_moves_on_as_without_us(keep):
    model, inputs = adapted(lora_dropout=0.1), batch()
    torch.manual_seed(3)
    model(**inputs, use_cache=False).loss.backward()
    expected = torch.rand(3)
    torch.manual_seed(3)
    with ft.attach(model, **{**SPARSE, "keep": keep}):
        model(**inputs).loss.backward()
    assert torch.equal(torch.rand(3), expected)


def test_attention_dropout_is_refused_by_name_for_a_sparse_backward():
    model = make("llama", attention_dropout=0.1)
    with pytest.raises(InputError, match=r"attention_dropout=0.1 in self_attn.*backward='full'"):
        ft.attach(model, backward="sparse")
    torch.manual_seed(0)
    _, expected = checkpointed(model, batch())
    torch.manual_seed(0)
    _, found, _ = attached(model, batch(), keep=1.0, backward="full", loss="model")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def cosine(found, expected):
    def flat(gradients):
        return torch.cat([gradients[name].flatten().to(torch.float64) for name in expected])

    return float(torch.cosine_similarity(flat(found), flat(expected), dim=0))


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mistral"])
def test_packed_segments_do_not_see_each_other(kind):
    model = make(kind, torch.float64)
    ids = batch((30,))["input_ids"]
    position = torch.cat([torch.arange(12), torch.arange(18)])[None]
    labels = torch.where(position >= 8, ids, -100)
    inputs = {"input_ids": ids, "labels": labels, "position_ids": position}
    _, found, step = attached(model, inputs, **SPARSE)
    # Each segment keeps its share: 12 of 30 rows over 12 and 18.
    assert int((step.kept < 12).sum()) in (4, 5, 6)
    assert set(step.kept[0].tolist()) >= {0, 1, 2, 3, 12, 13, 14, 15}
    with detached(model, [step.kept] * 3):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert_close(found, expected, 2e-5 if kind == "gemma3_text" else 1e-9)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("backward", ["full", "sparse"])
def test_experts_are_chosen_as_in_the_forward(kind, backward):
    # 4-bit rows alone would route some tokens to other experts.
    model, inputs = make(kind), batch((40, 31), answers=12)
    chosen = []
    for layer in model.model.layers:
        layer.mlp.experts.register_forward_pre_hook(
            lambda module, args: chosen.append(args[1].clone())
        )
    with ft.attach(model, keep=0.5, rest="4bit", backward=backward, loss="model") as sparse:
        loss = model(**inputs).loss
        first = list(chosen)
        chosen.clear()
        loss.backward()
        kept = sparse.ledger.step.kept
    again = chosen[::-1]
    assert len(first) == len(again) == 3
    for before, after in zip(first, again, strict=True):
        if backward == "sparse":
            before = before.view(2, 40, 2).gather(1, kept[..., None].expand(-1, -1, 2))
        assert torch.equal(before.reshape(-1, 2), after.reshape(-1, 2))


def test_accumulated_gradients_are_summed():
    model, first, second = make("llama", torch.float64), batch(seed=1), batch((9, 30), seed=2)
    model.zero_grad()
    for inputs in (first, second):
        model(**inputs, use_cache=False).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with ft.attach(model, keep=1.0, loss="model"):
        losses = [model(**inputs).loss for inputs in (first, second)]
        for loss in losses:
            loss.backward()
    assert_close({n: p.grad for n, p in model.named_parameters()}, expected, 1e-12)


def test_two_forwards_keep_their_own_rows():
    model, first, second = make("llama", torch.float64), batch(seed=1), batch((9, 30), seed=2)
    apart = [attached(model, inputs, **SPARSE)[1] for inputs in (first, second)]
    model.zero_grad()
    with ft.attach(model, **SPARSE):
        losses = [model(**inputs).loss for inputs in (first, second)]
        for loss in losses:
            loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, apart[0][name] + apart[1][name]), name


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_autocast_is_kept(keep):
    model, inputs = make("llama"), batch(answers=5)
    settings = {**SPARSE, "keep": keep}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, found, step = attached(model, inputs, **settings)
        if keep == 1.0:
            _, expected = checkpointed(model, inputs)
        else:
            with detached(model, [step.kept] * 3):
                expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert cosine(found, expected) > (1 - 1e-12 if keep == 1.0 else 0.999)


def test_frozen_layers_and_embeddings():
    model, inputs = make("llama", torch.float64), batch(answers=5)
    model.requires_grad_(False)
    model.model.layers[1].requires_grad_(True)
    _, found, step = attached(model, inputs, **SPARSE)
    with detached(model, [step.kept] * 3):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert_close(found, expected, 1e-9)
    assert all("layers.1." in name for name in found)


def test_parameters_that_no_row_reaches_get_zeros():
    model = make("mixtral")
    inputs = batch((4,))
    for parameter in model.parameters():
        parameter.grad = None
    with ft.attach(model, keep=0.3, backward="sparse"):
        model(**inputs).loss.backward()
    assert all(p.grad is not None for p in model.model.layers.parameters())


def test_graph_is_freed_and_says_so():
    model = make("llama")
    with ft.attach(model, keep=0.4):
        loss = model(**batch()).loss
        loss.backward(retain_graph=True)
        first = model.model.layers[0].mlp.up_proj.weight.grad.clone()
        loss.backward()
        assert torch.equal(model.model.layers[0].mlp.up_proj.weight.grad, 2 * first)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_a_backward_after_detach_is_refused():
    model = make("llama")
    for rest in ("4bit", "drop"):
        with ft.attach(model, keep=0.4, rest=rest, backward="sparse"):
            loss = model(**batch()).loss
        with pytest.raises(InputError, match=r"move loss\.backward"):
            loss.backward()


def test_a_loop_with_its_own_loss_says_the_labels():
    model, inputs = make("llama", torch.float64), batch(answers=5)
    labels = inputs.pop("labels")
    with ft.attach(model, **SPARSE) as sparse:
        with sparse.labels(labels):
            logits = model(**inputs).logits
        target = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        found = gradients(model, loss)
        kept = sparse.ledger.step.kept
    _, expected, step = attached(model, {**inputs, "labels": labels}, **SPARSE)
    assert torch.equal(kept, step.kept)
    assert_close(found, expected, 1e-6)  # the model's own loss is computed in float32


def test_without_labels_every_real_token_counts_and_the_log_says_so(caplog):
    model, inputs = make("llama"), batch()
    inputs.pop("labels")
    with caplog.at_level(logging.INFO, "apportion.finetune"), ft.attach(model) as sparse:
        for _ in range(2):
            model(**inputs).logits.sum().backward()
        assert sparse.ledger.step.tokens.loss_share == 1.0
    assert caplog.text.count("every real token counts") == 1
    assert caplog.text.count("full backward") == 1


@pytest.mark.parametrize(
    ("keep", "answers", "backward"),
    # Of 40 rows; a sparse backward pays up to 0.8 of what it keeps.
    [(0.25, 4, "sparse"), (0.25, 5, "full"), (0.5, 8, "sparse"), (0.5, 9, "full"),
     (0.25, None, "full"), (ft.TopP(0.8, cap=0.5), 8, "sparse")],
)  # fmt: skip
def test_auto_follows_the_share_of_rows_with_loss(keep, answers, backward):
    model = make("llama")
    with ft.attach(model, keep=keep) as sparse:
        model(**batch((20, 20), answers=answers)).loss.backward()
        assert sparse.ledger.step.backward == backward


def test_the_loss_does_not_depend_on_the_settings():
    model, inputs = make("qwen3"), batch(answers=5)
    expected = model(**inputs, use_cache=False).loss
    for keep in (0.1, 0.5, 1.0):
        for rest in ("4bit", "8bit", "drop"):
            for saliency in ft.SALIENCIES:
                backward = "sparse" if keep < 1 else "auto"
                settings = {"keep": keep, "rest": rest, "saliency": saliency}
                with ft.attach(model, backward=backward, loss="model", **settings):
                    assert torch.equal(model(**inputs).loss, expected)


def test_shapes_follow_from_the_ratio_alone():
    model = make("llama")
    widths = set()
    with ft.attach(model, keep=0.3, backward="sparse") as sparse:
        for seed, answers in ((0, 2), (1, 9), (2, 15)):
            model(**batch((30, 22), answers=answers, seed=seed)).loss.backward()
            widths.add(sparse.ledger.step.kept.shape)
    assert widths == {(2, 9)}


@pytest.mark.parametrize(
    ("per", "choose"),
    [
        ("model", "start"),
        ("model", "forward"),
        ("layer", "start"),
        ("layer", "forward"),
        ("layer", "backward"),
    ],
)
@pytest.mark.parametrize("saliency", list(ft.SALIENCIES))
def test_every_choice_is_the_reference_on_its_own_rows(per, choose, saliency):
    model, inputs = make("llama", torch.float64), batch(answers=5)
    settings = {"keep": 0.4, "backward": "sparse", "loss": "model", "rest": "8bit"}
    with ft.attach(model, per=per, choose=choose, saliency=saliency, **settings) as sparse:
        found = gradients(model, model(**inputs).loss)
        kept = sparse.ledger.rows()
    assert len(kept) == 3
    if per == "model":
        assert all(torch.equal(rows, kept[0]) for rows in kept)
    with detached(model, kept, stored=lambda x: x):
        expected = gradients(model, model(**inputs, use_cache=False).loss)
    assert cosine(found, expected) > 0.98


def test_copying_a_model_after_detach():
    model = make("llama")
    with ft.attach(model):
        model(**batch()).loss.backward()
    copy.deepcopy(model)


@pytest.mark.parametrize("settings", [{"keep": 1.0}, {"keep": 0.4, "backward": "sparse"}])
@pytest.mark.parametrize("loss", ["model", "chunked"])
def test_hooks_of_parameters_run_once(settings, loss):
    model, inputs, calls = make("llama"), batch(answers=5), []
    with ft.attach(model, loss=loss, **settings):
        expected = gradients(model, model(**inputs).loss)
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda g, name=name: calls.append(name) or 0.5 * g)
    with ft.attach(model, loss=loss, **settings):
        found = gradients(model, model(**inputs).loss)
    assert sorted(calls) == sorted(expected)
    for name, gradient in expected.items():
        assert torch.equal(found[name], 0.5 * gradient), name
    # And they are still there.
    gradients(model, model(**inputs, use_cache=False).loss)
    assert len(calls) == 2 * len(expected)
