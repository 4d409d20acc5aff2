"""A folder with the files that the examples in the help name, and command lines run in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import apportion.mixture as mx
from apportion.cli import run
from mixture.synthetic import synthetic_runs, synthetic_theta
from sweeptext import write_text

FAMILIES = ("romance", "germanic", "slavic")


@dataclass(frozen=True)
class Done:
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as strict JSON."""
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, a fit of them, text and whatever else the examples start from."""
    folder = tmp_path_factory.mktemp("files")
    theta = synthetic_theta("family", 3, seed=3)
    table, _ = synthetic_runs(families=3, runs=60, noise=0.002, seed=3, theta=theta, seeds=2,
                              params=(1e5, 5e5, 2e6), tokens=(1e6, 4e6, 2e7))  # fmt: skip
    table = replace(table, families=FAMILIES, targets=FAMILIES)
    mx.write_runs(table, folder / "runs.csv")
    mx.fit(table, bootstrap=40).save(folder / "fit.json")
    one, _ = synthetic_runs("mixing", families=3, runs=40, noise=0.002, seed=1,
                            params=(1e6,), tokens=(1e9,))  # fmt: skip
    index = {"index": np.arange(40)}
    names = [f"the_pile_{name}" for name in FAMILIES]
    pd.DataFrame(index | {f"train_{n}": one.ratios[:, k] for k, n in enumerate(names)}).to_csv(
        folder / "mixtures.csv", index=False
    )
    pd.DataFrame(
        index | {f"metric/{n}_val_loss": one.losses[:, k] for k, n in enumerate(names)}
    ).to_csv(folder / "losses.csv", index=False)
    supply = {"romance": 2e10, "germanic": 3e10, "slavic": 1.5e10}
    (folder / "supply.json").write_text(json.dumps(supply), encoding="utf-8")
    ratios = {"ratios": {"romance": 0.4, "germanic": 0.35, "slavic": 0.25}}
    (folder / "ratios.json").write_text(json.dumps(ratios), encoding="utf-8")
    write_text(folder / "text")
    return folder


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, as the working folder."""
    folder = tmp_path / "work"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def apportion(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Runs a command line in this process."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = run(arguments)
        written = capsys.readouterr()
        return Done(code, written.out, written.err)

    return call


@pytest.fixture
def program(here: Path) -> Callable[..., Done]:
    """Runs a command line as its own process, as a shell does."""

    def call(*arguments: str, **environment: str) -> Done:
        code = "from apportion.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, **environment},
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of seconds with its tokenizer, in a folder."""
    pytest.importorskip("transformers")
    from finetune.saved import save_model

    return save_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def model(here: Path, saved_model: Path) -> Path:
    """It, in the working folder."""
    (here / "model").symlink_to(saved_model)
    return here / "model"


def words(text: str) -> str:
    """Text with every run of blanks as one."""
    return re.sub(r"\s+", " ", text)
