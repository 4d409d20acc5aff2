"""What chunks and answers will hold against what they held, to the byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from apportion.meter import LiveStorages
from apportion.prefill.costs import Ahead, Costs
from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.probe import Padding
from apportion.prefill.reader import Reader
from apportion.prefill.scorers import Scorer, Scores, get_scorer
from finetune import tiny

SLACK = 1024 + 8
"""Bytes that a prediction is above what it was fitted to, and rounding."""
KINDS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention"]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An engine, and how its chunks are."""

    kind: str
    scorer: Any
    batch: int = 1
    asked: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    padded: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def model(self):
        more: dict[str, Any] = {"num_hidden_layers": 5}
        if self.kind.startswith("gemma"):
            more["layer_types"] = KINDS
        if self.kind == "gemma2":
            more["attention"] = "eager"
        return tiny.make(self.kind, dtype=self.dtype, **more)


class Whole(Scorer):
    """As a user may write one: the whole attention at once, and more of it than is needed."""

    name = "whole"
    paper = "none"
    observes = "chunk"

    def score(self, view):
        assert view.queries is not None
        q, k = view.queries.float(), view.keys[:, :, None].float()
        scores = torch.softmax(q @ k.transpose(3, 4), dim=-1)
        wide = torch.cat([scores, scores.square()], dim=3)
        return Scores(wide.sum(dim=(2, 3)))


CASES = {
    "window": Case("llama", "snapkv"),
    "blocks": Case("llama", "roco", batch=2, dtype=torch.bfloat16),
    "questions": Case("qwen3", "query", asked=(5, 3)),
    "padding": Case("llama", "value-aware:snapkv", batch=2, padded=True),
    "windows": Case("gemma3_text", "h2o"),
    "windows and padding": Case("gemma3_text", "tova", batch=3, padded=True),
    "capped, original positions": Case("gemma2", "mean", options={"compact": False}),
    "all windows": Case("mistral", "streaming"),
    "fused projections": Case("phi3", "random", asked=(4,)),
    "late windows": Case("gemma3_text", "query", asked=(7,), options={"late": True}),
    "8 bits": Case("phi", "prefix", options={"store": "8bit"}),
    "nothing kept": Case("llama", "local", options={"sinks": 0}),
    "a scorer of one's own": Case("llama", Whole()),
}
# Chunks and budgets: short, longer, long, short again.
STEPS = ((30, 9), (140, 60), (7, 60), (700, 350), (40, 400), (300, 10))


@pytest.mark.parametrize("name", CASES)
def test_every_chunk_is_foreseen_to_the_byte(name):
    case = CASES[name]
    engine = Engine(case.model(), get_scorer(case.scorer), **case.options)
    costs = Costs(engine, case.batch, case.asked)
    questions = [torch.arange(3, 3 + count) for count in case.asked]
    logits, start = None, 0
    for number, (rows, budget) in enumerate(STEPS):
        ids = torch.randint(3, 97, (case.batch, rows))
        real, padding = None, Padding()
        if case.padded and number < 2:
            # The first sample begins in the middle of the second chunk.
            real = torch.ones(case.batch, rows, dtype=torch.bool)
            real[0, : rows if not number else rows // 2] = False
            padding = Padding(chunk=True)
        padded = any(held is not None and held.real is not None for held in engine.memory)
        padding = Padding(padding.chunk, padded)
        budgets = [budget] * engine.layers
        ahead = Ahead(rows, engine.lengths(), budgets, start, padding, logits is not None)
        found = costs.peak(ahead)
        held = [x for memory in engine.memory if memory is not None for x in memory.tensors]
        with LiveStorages([*held, *([] if logits is None else [logits])]) as meter:
            del held
            out, _ = engine.read(Chunk(ids, start, budgets, real, questions))
            logits = out[:, -1].clone()
            del out
        # Whether some layer's memory is padded yet is up to the scorer.
        flags = 8 * sum(engine.lengths()) * case.batch if case.padded else 0
        assert 0 <= found.bytes - meter.peak <= SLACK + flags, (number, found)
        assert costs.kept(ahead) == engine.lengths()
        assert found.memory >= 0
        assert found.activations > 0
        assert found.scores >= 0
        if not padded:
            assert sum(costs.memory(engine.lengths())) == engine.bytes() or padding.chunk
        start += rows


def test_memory_counts_everything_that_an_entry_takes():
    engine = Engine(tiny.make("llama", dtype=torch.bfloat16), get_scorer("roco"))
    costs = Costs(engine, 2)
    # Keys and values of 2 x 12 numbers, a place, three sums: for each of two samples.
    entry = 2 * 2 * (2 * 12 * 2 + 4 + 3 * 4)
    assert costs.memory([10, 0, 3]) == [10 * entry, 0, 3 * entry]
    assert costs.memory([10, 0, 3], padded=True) == [10 * (entry + 2), 0, 3 * (entry + 2)]


def test_probing_leaves_model_and_engine_as_they_were():
    model = tiny.make("gemma3_text")
    engine = Engine(model, get_scorer("random"))
    engine.read(Chunk(torch.arange(3, 20)[None], 0, [5] * 3))
    before = list(engine.memory)
    state = engine.generator.get_state()
    attributes = [set(vars(module)) for module in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    Costs(engine, 1, [3]).peak(Ahead(50, [9, 5, 5], [5] * 3))
    assert all(a is b for a, b in zip(engine.memory, before, strict=True))
    assert torch.equal(engine.generator.get_state(), state)
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert model.training
    assert model.config._attn_implementation == "sdpa"


def test_a_failing_probe_gives_the_layers_back():
    model = tiny.make("llama")
    engine = Engine(model, Failing())
    with pytest.raises(ZeroDivisionError):
        Costs(engine, 1)
    assert all("forward" not in vars(layer) for layer in model.model.layers)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Failing(Scorer):
    name = "failing"
    paper = "none"

    def score(self, view):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("kind", "batch", "sampled"),
    [("llama", 1, False), ("phi3", 1, True), ("gemma3_text", 2, False)],
)
def test_answers_are_foreseen(kind, batch, sampled):
    model = Case(kind, "snapkv").model()
    reader = Reader(model, memory=40, chunk=20, sinks=4)
    context = reader.read(torch.randint(3, 97, (batch, 60)))
    bound = reader.bound(batch, ())
    # Whatever is drawn: none of them ends an answer.
    model.generation_config.eos_token_id = model.config.eos_token_id = 10**6
    for question, tokens in ((1, 1), (5, 12), (30, 2)):
        ids = torch.arange(3, 3 + question)
        answer = context.ask(
            ids, max_new_tokens=tokens, temperature=float(sampled), sample=batch - 1
        )
        assert len(answer.ids) == tokens
        found = bound.costs.answer(context.engine.lengths(), question, tokens, sampled=sampled)
        assert answer.peak_bytes <= found <= 1.05 * answer.peak_bytes + 4 * SLACK


def test_layers_cost_their_memory_and_no_more():
    """L M + (M + c) entries layer by layer, L (M + c) and more where all let go at the end."""
    memory, chunk, sinks = 120, 60, 4
    peaks: dict[str, list[int]] = {}
    for layers in (3, 6):
        model = tiny.make("llama", num_hidden_layers=layers, max_position_embeddings=512)
        ids = torch.randint(3, 97, (1, 600), generator=torch.Generator().manual_seed(0))
        for evict in ("layer", "forward"):
            reader = Reader(
                model, memory=memory, chunk=chunk, schedule="fixed", chunks="fixed", evict=evict
            )
            peaks.setdefault(evict, []).append(reader.read(ids).peak_bytes)
    entry = 2 * (2 * 12 * 4 + 4)
    row = 2 * 2 * 12 * 4  # of a chunk: a key and a value for each of two heads
    assert peaks["layer"][1] - peaks["layer"][0] == 3 * ((memory + sinks) * entry + 4)
    more = (peaks["forward"][1] - peaks["forward"][0]) / 3
    assert more >= (memory + sinks) * entry + chunk * row
