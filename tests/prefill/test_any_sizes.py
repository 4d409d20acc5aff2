"""Any length, chunk, memory, batch, padding, schedule and scorer: the bound holds at every step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.prefill.context import Context
from apportion.prefill.engine import Engine
from apportion.prefill.reader import Reader
from apportion.prefill.schedule import SCHEDULES
from apportion.prefill.scorers import SCORERS
from finetune import tiny
from fuzzing import examples
from prefill.decoders import build

pytestmark = pytest.mark.usefixtures("unmetered")

QUESTION = torch.tensor([5, 60, 7])


WINDOW = 6


class Watched(Engine):
    """Checks what each layer holds after every chunk."""

    def read(self, chunk, logits=1):
        if chunk.budgets is None:
            return super().read(chunk, logits)
        self.budgets = chunk.budgets
        held, before = self.lengths(), [self.real(layer) for layer in range(self.layers)]
        out = super().read(chunk, logits)
        assert bool(torch.isfinite(out[0]).all())
        text = chunk.ids.shape[1]
        come = torch.full((len(chunk.ids),), text)
        if chunk.real is not None:
            come = chunk.real.sum(dim=1)
        for layer, memory in enumerate(self.memory):
            most = self.sinks + (chunk.budgets[layer] if self.scorer.remembers else 0)
            if layer not in self.compressed:
                most = WINDOW - 1
            # As much of the text as there is room for, and nothing else while there is text.
            assert len(memory) == min(held[layer] + text, most)
            assert torch.equal(self.real(layer), (before[layer] + come).clamp(max=most))
            self.check_order(memory)
        return out

    def real(self, layer):
        """Of every sample, the entries that are no padding."""
        memory = self.memory[layer]
        if memory is None:
            return torch.tensor(0)
        if memory.real is None:
            return torch.full((len(memory.keys),), len(memory))
        return memory.real.sum(dim=1)

    def check_order(self, memory):
        """Padding in front, then places of the text in their order."""
        for b, order in enumerate(memory.order):
            real = torch.ones(len(memory)).bool() if memory.real is None else memory.real[b]
            assert real.tolist() == sorted(real.tolist())
            assert bool((order[:, real].diff(dim=1) > 0).all())


class WatchedReader(Reader):
    """Makes engines that are watched."""

    def engine(self, questions):
        made = super().engine(questions)
        made.__class__ = Watched
        return made


MODELS = {
    "llama": build("llama", num_hidden_layers=2),
    "gemma3_text": build(
        "gemma3_text", num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]
    ),
}


@dataclass
class Case:
    """A read and what comes after it."""

    model: str
    sizes: tuple[int, ...]
    side: str
    memory: int
    chunk: int
    sinks: int
    options: dict[str, str]
    questions: int
    more: int


@st.composite
def cases(draw):
    length, chunk = draw(st.integers(1, 50)), draw(st.integers(1, 25))
    return Case(
        model=draw(st.sampled_from(sorted(MODELS))),
        sizes=(length, *draw(st.lists(st.integers(1, length), max_size=2))),
        side=draw(st.sampled_from(["left", "right"])),
        memory=draw(st.integers(1, 70)),
        chunk=max(chunk, length // 6),
        sinks=draw(st.integers(0, 5)),
        options={
            "schedule": draw(st.sampled_from(sorted(SCHEDULES))),
            "chunks": draw(st.sampled_from(["fixed", "decremental"])),
            "scorer": draw(st.sampled_from(sorted(SCORERS))),
            "positions": draw(st.sampled_from(["compact", "compact", "original"])),
            "evict": draw(st.sampled_from(["layer", "layer", "forward"])),
        },
        questions=draw(st.integers(0, 2)),
        more=draw(st.sampled_from([0, 0, 1, 9, 20])),
    )


@pytest.mark.fuzz
@settings(max_examples=examples(200))
@given(cases())
def test_any_sizes(case):
    made = tiny.batch(case.sizes, side=case.side)
    reader = WatchedReader(
        MODELS[case.model], None, case.memory, case.chunk, sinks=case.sinks, **case.options
    )
    context = reader.read(made["input_ids"], [QUESTION] * case.questions, made["attention_mask"])
    assert sum(step.tokens for step in context.trace) == case.sizes[0]
    assert min(step.tokens for step in context.trace) >= 1
    check_bound(context, case)
    if case.more:
        context.extend(torch.full((len(case.sizes), case.more), 9))
        check_bound(context, case)
    # An answer may end before it begins.
    assert len(context.ask(QUESTION, max_new_tokens=2, sample=len(case.sizes) - 1).ids) <= 2


def check_bound(context: Context, case: Case) -> None:
    compressed = context.engine.compressed
    for step in context.trace:
        assert all(step.memory[layer] <= case.memory + case.sinks for layer in compressed)
    # In the end there is room for all of it.
    assert all(context.engine.budgets[layer] == case.memory for layer in compressed)
