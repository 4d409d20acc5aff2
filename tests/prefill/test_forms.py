"""Linear forms fitted to what was seen, and the sizes that tell them apart."""

from __future__ import annotations

import numpy as np
import pytest

from apportion.prefill.engine import Engine
from apportion.prefill.forms import Forms, Layout, Sizes, fitted, growing, independent
from apportion.prefill.points import Points, Way
from apportion.prefill.probe import Probe
from apportion.prefill.scorers import base, get_scorer
from finetune import tiny

RANDOM = np.random.default_rng(0)


def design(rows=20, features=5):
    return np.concatenate([np.ones((rows, 1)), RANDOM.integers(0, 900, (rows, features))], axis=1)


def test_the_highest_of_several_forms_comes_back_exactly():
    x = design()
    true = RANDOM.integers(0, 4000, (12, 6)).astype(float)
    found = fitted(x, [dict(enumerate(row)) for row in (x @ true.T).astype(int).tolist()])
    far = np.array([1.0, 40_000, 3, 70_000, 0, 12_345])
    assert found(far) == pytest.approx((true @ far).max(), rel=1e-9)
    for point in x:
        assert found(point) == pytest.approx((true @ point).max(), rel=1e-9)


def test_forms_that_never_are_the_highest_are_left_out():
    x = design()
    true = np.array([[9.0, 9, 9, 9, 9, 9], [1, 9, 9, 9, 9, 9], [0, 10, 0, 0, 0, 0]])
    found = fitted(x, [dict(enumerate(row)) for row in (x @ true.T).astype(int).tolist()])
    assert np.allclose(found.rows[found.rows[:, 0].argsort()], true[[2, 0]])


def test_no_sites_no_bytes():
    assert fitted(design(), [{}] * 20)(np.ones(6)) == 0


def test_a_site_that_some_forwards_have_not_come_by_is_told_from_the_others():
    x = design(30)
    value = x @ np.array([5.0, 1, 0, 2, 0, 7])
    seen = [{"there": int(v)} if k % 3 else {} for k, v in enumerate(value)]
    assert fitted(x, seen)(np.array([1.0, 9000, 0, 0, 0, 0])) == pytest.approx(9005, rel=1e-9)


def test_what_is_not_linear_is_not_undercut():
    x = design(40)
    wavy = (x @ np.array([5.0, 1, 0, 2, 0, 7])) * (1 + 0.2 * RANDOM.random(40))
    found = fitted(x, [{0: int(v)} for v in wavy])
    large = wavy > wavy.max() / 2
    held = np.array([found(point) for point in x])
    assert (held[large] >= wavy[large] - 1).all()
    assert (found.rows >= 0).all()
    slightly = (x @ np.array([5.0, 1, 0, 2, 0, 7])) + RANDOM.integers(0, 6, 40)
    found = fitted(x, [{0: int(v)} for v in slightly])
    assert all(found(point) >= v - 1 for point, v in zip(x, slightly, strict=True))


def test_a_growing_form_has_no_negative_number():
    x = design(40)
    found = growing(x, x @ np.array([5.0, 1, -3, 2, 0, 7]))
    assert (found >= 0).all()
    assert np.allclose(growing(x, x @ np.array([5.0, 1, 3, 2, 0, 7])), [5, 1, 3, 2, 0, 7])


def test_independent_forwards_span_what_all_candidates_do():
    x = design(200, 7)
    x[:, 3] = 2 * x[:, 1] + x[:, 2]  # says nothing new
    other = np.concatenate([design(199, 3), [[1, 2, 5000, 7]]])
    chosen = independent([x, other], 2)
    assert len(chosen) == len(set(chosen))
    assert np.linalg.matrix_rank(x[chosen]) == np.linalg.matrix_rank(x) == 7
    assert np.linalg.matrix_rank(other[chosen]) == 4
    assert len(chosen) <= 7 + 4 + 2


def test_features_follow_the_blocks_that_scorers_make():
    layout = Layout(8, 0, get_scorer("mean"), capped=False)
    rows, entries = 300, 5000
    step = base.block_rows(8, rows + entries)
    assert step < rows
    found = Sizes(rows, entries).features(layout)
    assert step * (rows + entries) in found
    assert rows * (rows + entries) not in found
    # With few heads a block is filled only by very many entries, and counts as never filled.
    found = Sizes(rows, 100).features(Layout(8, 0, get_scorer("mean"), capped=False))
    assert rows * 400 in found
    assert Sizes(9, 100).features(Layout(8, 0, None, capped=False)).tolist() == [
        1, 9, 100, 0, 0, 0, 81, 900,
    ]  # fmt: skip


def points_of(kind, way, scorer="snapkv", asked=(), **more):
    engine = Engine(tiny.make(kind, num_hidden_layers=3, **more), get_scorer(scorer))
    probe = Probe(engine, 1, asked)
    points = Points(engine, probe, capped=False)
    return points, points.of(points.nearest(way)), probe


def test_points_go_the_way_that_they_are_for():
    wide = {"sliding_window": 300}
    for way in (Way(False), Way(True), Way(True, windowed=True), Way(False, windowed=True)):
        points, found, probe = points_of("gemma3_text", way, **wide)
        assert points.nearest(way) == way
        sliding = [k for k in points.running if probe.windows[k] is not None]
        assert sliding
        for point in found:
            assert any(point.held.values()) == way.begun
            for layer in sliding:
                assert point.held[layer] <= 299
                assert (point.held[layer] + point.rows > 300) == way.windowed


def test_windows_that_no_probe_fits_are_taken_for_exceeded():
    points, _, _ = points_of("gemma3_text", Way(True), sliding_window=3)
    assert points.nearest(Way(True)).windowed
    points, _, _ = points_of("gemma3_text", Way(True), sliding_window=4096)
    assert not points.nearest(Way(True)).windowed
    # A first chunk beyond a wide window is as one behind memory, and not probed.
    assert points.nearest(Way(False, windowed=True)).begun


def test_some_points_fill_a_block_and_some_do_not():
    points, found, _ = points_of("llama", Way(True), scorer="mean", num_attention_heads=16)
    heads = points.layout(1, fork=False).heads
    filled = [p.rows > base.block_rows(heads, p.rows + p.held[1]) for p in found]
    assert 3 <= sum(filled) < len(found) - 3


def test_no_forms():
    assert Forms(np.zeros((0, 3)))(np.ones(3)) == 0
