"""Saving and loading a fit: exact, strict, and suspicious of files edited by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError
from apportion.mixture.fit import fit
from apportion.mixture.fitfile import load
from apportion.mixture.result import Fit
from mixture.synthetic import synthetic_runs


@pytest.fixture(scope="module")
def fitted() -> Fit:
    runs, _ = synthetic_runs("family", families=2, runs=30, seed=1, seeds=3)
    runs = replace(
        runs,
        unique_tokens=np.array([1e6, np.inf]),
        bytes_per_token=np.full((30, 2), 2.5),
        extra=pd.DataFrame({"part": ["a"] * 30, "speed": [1.5] * 29 + [float("nan")]}),
    )
    return fit(runs, bootstrap=20)


def test_a_saved_fit_comes_back_exactly(fitted: Fit, tmp_path: Path) -> None:
    fitted.save(tmp_path / "fit.json")
    again = load(tmp_path / "fit.json")
    np.testing.assert_array_equal(again.theta, fitted.theta)
    np.testing.assert_array_equal(again.samples, fitted.samples)
    np.testing.assert_array_equal(again.runs.unique_tokens, fitted.runs.unique_tokens)
    np.testing.assert_array_equal(again.runs.seed, fitted.runs.seed)
    assert again.law == fitted.law
    assert again.status == fitted.status
    assert again.runs.run == fitted.runs.run
    pd.testing.assert_frame_equal(
        again.predict(1e6, 1e7, [0.5, 0.5]), fitted.predict(1e6, 1e7, [0.5, 0.5])
    )
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "fit.json").read_bytes()


def edit(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
        inner: Any = content
        for part in path:
            inner = inner[part]
        inner[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("format", 2), "expected format 1, got 2"),
        (edit("law", "famly"), "expected a law out of"),
        (edit("theta", [[1.0] * 6]), "field theta: expected shape"),
        (edit("theta", [[1.0] * 6, [1.0] * 6]), "changed after it was saved"),
        (edit("theta", [[1.0] * 6, [1.0] * 5]), "rows of another length"),
        (edit("level", "ninety"), "field level"),
        (edit("surprise", 1), "field surprise"),
        (edit("runs.params", ["x"] * 30), r"field runs.params.0"),
        (edit("runs.losses", [[3.0, 3.0]] * 29), "field runs.losses"),
        (edit("level", 1.0), r"field level: .*less than 1, got '1.0'"),
        (edit("level", -0.5), "field level: .*greater than 0"),
        (edit("seed", -1), "field seed: .*greater than or equal to 0, got '-1'"),
        (edit("samples", []), "field samples"),
        (edit("samples.0.1.5", 1e300), r"field samples\.0\.1\.5: expected gamma of f1 between"),
        (edit("theta.0.3", -0.1), r"field theta\.0\.3: expected alpha of f0 between 0 and 4"),
        (edit("objective.0", -1.0), r"field objective\.0"),
        (edit("status.undetermined", [["f9", "alpha"]]), r"undetermined\.0\.0: .*got 'f9'"),
        (edit("status.undetermined", [["f0", "delta"]]), r"undetermined\.0\.1: .*got 'delta'"),
        (edit("runs.params.3", -1e6), r"field runs\.params\.3: .*greater than 0"),
        (
            edit("runs.params.3", 1e30),
            r"field runs\.params\.3: .*less than or equal to 10{15}",
        ),
        (edit("runs.tokens.0", 0.0), r"field runs\.tokens\.0"),
        (edit("runs.losses.2.1", -3.0), r"field runs\.losses\.2\.1: .*greater than 0"),
        (edit("runs.ratios.0.0", -0.1), r"field runs\.ratios\.0\.0"),
        (edit("runs.ratios.0", [0.5, 0.4]), r"field runs\.ratios\.0: .*a sum of 0\.9"),
        (edit("runs.families.1", "f0"), r"field runs\.families\.1: .*'f0' again"),
        (edit("runs.targets.1", "other"), r"field runs\.targets\.1: .*got 'other'"),
        (edit("runs.run.7", "run0"), r"field runs\.run\.7: .*'run0' again"),
        (edit("runs.run", []), r"field runs\.run:"),
        (edit("runs.seed", [1, 2]), r"field runs\.seed: expected 30 values, got 2"),
        (edit("runs.unique_tokens", [1e6]), r"field runs\.unique_tokens: expected 2 values"),
        (edit("runs.unique_tokens.0", 0.0), r"field runs\.unique_tokens\.0"),
        (edit("runs.bytes_per_token.0.0", -2.5), r"field runs\.bytes_per_token\.0\.0"),
        (edit("runs.extra.part", ["a"]), r"field runs\.extra\.part: expected 30 values, got 1"),
        *(
            (edit(key, value), "field sha256: .*changed after it was saved")
            for key, value in (
                ("apportion", "9.9.9"),
                ("format", True),
                ("level", 0.5),
                ("seed", 7),
                ("samples", None),
                ("runs.bytes_per_token.0.0", 3.0),
                ("runs.unique_tokens.1", 1e9),
                ("runs.extra.part.3", "b"),
                ("status.text", "family: converged"),
                ("status.ok", "yes"),
                ("status.notes", []),
                ("sha256", "0" * 64),
            )
        ),
        (lambda content: content.pop("sha256"), "field sha256: .*earlier version"),
        (lambda content: content.pop("samples"), "field samples"),
        (lambda content: content.pop("law"), "this JSON is something else"),
    ],
)
def test_other_versions_and_edits_are_refused(
    fitted: Fit, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tmp_path / "fit.json"
    fitted.save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_the_layout_of_the_file_is_free(fitted: Fit, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    fitted.save(path)
    content = json.loads(path.read_text())
    turned = dict(reversed(content.items()))
    path.write_text("\ufeff" + json.dumps(turned), encoding="utf-8")  # as some editors save it
    np.testing.assert_array_equal(load(path).theta, fitted.theta)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe{}", b"[1, 2]", b'{"format": NaN}'])
def test_what_is_no_fit_at_all(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "fit.json"
    path.write_bytes(damage)
    with pytest.raises(InputError, match=r"fit\.json"):
        load(path)


def test_a_missing_file_and_an_unwritable_output(fitted: Fit, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot write"):
        fitted.save(tmp_path / "no folder" / "fit.json")
