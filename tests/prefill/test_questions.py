"""Questions that observe a read: whom they see, and who sees them."""

from __future__ import annotations

import pytest
from torch import Tensor

from apportion.prefill.engine import Chunk, Engine
from apportion.prefill.scorers import Scorer, get_scorer
from apportion.prefill.scorers.base import Scores, View
from prefill.decoders import build
from prefill.engines import EVERYTHING, QUESTIONS, chunks, engine_of, ids_of, near, read


class Listening(Scorer):
    """Ranks by place, and notes the questions' queries of every layer."""

    name = "listening"
    paper = "here"
    asks = True

    def __init__(self) -> None:
        self.heard: list[Tensor] = []

    def score(self, view: View) -> Scores:
        assert view.questions is not None
        self.heard.append(view.questions)
        return get_scorer("streaming").score(view)


@pytest.mark.parametrize("budget", [3, EVERYTHING])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gemma2"])
def test_text_does_not_see_questions(name, budget):
    model = build(name)
    ids, real = ids_of(30, 19)
    with_, without = (
        read(engine_of(model, "streaming"), ids, real, 7, budget, asked)
        for asked in (QUESTIONS, [])
    )
    assert near(with_[real], without[real], 1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gemma2", "smollm3"])
def test_questions_do_not_see_each_other(name):
    model = build(name)
    ids, real = ids_of(30, 19)

    def heard(asked: list[Tensor]) -> list[Tensor]:
        scorer = Listening()
        read(engine_of(model, scorer), ids, real, 15, EVERYTHING, asked)
        return scorer.heard

    together, ends = heard(QUESTIONS), [0, 3, 4, 9]
    for number, question in enumerate(QUESTIONS):
        alone = heard([question])
        assert len(alone) == len(together) > 1
        for a, b in zip(alone, together, strict=True):
            own = b[:, :, :, ends[number] : ends[number + 1]]
            assert a.shape == own.shape
            # A sample that has not begun has nothing to be asked about, but its question.
            assert near(own, a, 1e-5)


class Noting(Engine):
    """Notes the queries of every layer."""

    def _attention(self, module, query, *args, **more):
        self.queries.append(query)
        return super()._attention(module, query, *args, **more)


def test_an_observing_question_sees_what_it_sees_when_it_is_asked():
    model, scorer = build("gemma3_text"), Listening()
    ids, _ = ids_of(30)
    engine = Noting(model, scorer)
    engine.queries = []
    engine.read(chunks(ids, None, 30, EVERYTHING, 3, QUESTIONS[:1])[0])
    fork = engine.fork(0)
    fork.queries = []
    fork.read(Chunk(QUESTIONS[0][None], 30, None))
    # Of the layers that are scored; the last one here.
    assert len(scorer.heard) == 1
    assert near(scorer.heard[0].flatten(1, 2), fork.queries[2], 1e-5)
