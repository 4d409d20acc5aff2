"""Probes that tests share: the same engine of the same model holds the same bytes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from apportion.prefill.costs import Costs
from apportion.prefill.described import plain_scorer
from apportion.prefill.engine import Engine

_FOUND: dict[Any, Costs] = {}


@pytest.fixture(scope="module", autouse=True)
def shared_probes() -> Generator[None]:
    """Imported where readers of one model come and go, and probing is not what is tested."""

    def known(engine: Engine, batch: int = 1, questions: Sequence[int] = ()) -> Costs:
        scorer = str(plain_scorer(engine.scorer))
        kind = (engine.sinks, engine.compact, engine.late, engine.store)
        key = (id(engine.model), scorer, kind, batch, tuple(questions))
        if key not in _FOUND:
            _FOUND[key] = Costs(engine, batch, questions)
        return _FOUND[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("apportion.prefill.reader.Costs", known)
        yield
