"""The benchmark of the plan, on a model of seconds."""

from __future__ import annotations

import pytest

pytest.importorskip("peft")

import finetune_plan
from finetune_plan import Case
from harness import record


def test_settings_are_drawn_from_their_numbers():
    cases = [finetune_plan.draw(number) for number in range(30)]
    assert cases == [finetune_plan.draw(number) for number in range(30)]
    assert [case.number for case in cases] == list(range(30))
    assert sum(case.model == "smollm2" for case in cases) == 10
    assert {case.model for case in cases} == {"smollm2", *finetune_plan.KINDS}
    for name in ("batch", "length", "loss_share", "lora"):
        assert len({getattr(case, name) for case in cases}) > 1


def test_a_setting_is_predicted_measured_and_not_done_again(tmp_path):
    case = Case(7, "llama", 128, 3, 2, 32, 0.2, 4)
    assert finetune_plan.done(tmp_path) == set()
    rows = finetune_plan.trial(case, rounds=1)
    assert len(rows) == 7
    for row in rows:
        assert abs(row["bytes_error"]) < 0.05
        assert row["measured_s"] > 0
        assert row["predicted_s"] > 0
    record(finetune_plan.NAME, rows, tmp_path)
    assert finetune_plan.done(tmp_path) == {7}
