"""Fixtures that a file of tests asks for by `pytestmark`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from apportion.prefill.costs import Costs
from apportion.prefill.described import plain_scorer
from apportion.prefill.engine import Engine

_FOUND: dict[Any, Costs] = {}


@pytest.fixture(scope="module")
def unmetered() -> Generator[None]:
    """For where bytes don't matter: counting them takes half of a tiny model's time."""

    def nothing(device: torch.device, held: object = ()) -> object:
        return nullcontext(SimpleNamespace(peak=0))

    with pytest.MonkeyPatch.context() as patch:
        for module in ("context", "decode"):
            patch.setattr(f"apportion.prefill.{module}.meter_of", nothing)
        yield


@pytest.fixture(scope="module")
def shared_probes() -> Generator[None]:
    """For where readers of one model come and go, and probing is not what is tested.

    The same engine of the same model holds the same bytes.
    """

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
