"""`apportion mixture sweep` on text of seconds: table, resume, Ctrl-C, bad text."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time

import pytest

import apportion.mixture as mx
from sweeptext import FAMILIES, SHAPE

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

OPTIONS = ("--data", "text", "--out", "swept.csv", "--plan", "plan.csv", "--vocab", "300",
           "--length", "16", "--validation-tokens", "256", "--no-compile")  # fmt: skip


def write_plan(path, tokens, count=2):
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["run", "shape", "tokens", "seed", *(f"ratio_{f}" for f in FAMILIES)])
        for k in range(count):
            writer.writerow([f"r{k}", SHAPE, tokens, k, 0.2, 0.3, 0.5])


def test_a_sweep_and_its_resumption(apportion, here):
    write_plan("plan.csv", 1280)
    done = apportion("mixture", "sweep", *OPTIONS, "--workers", "1", "--json")
    assert done.code == 0, done.err
    told = done.json
    assert [row["run"] for row in told["runs"]] == ["r0", "r1"]
    assert told["wrote"] == ["swept.csv"]
    assert "r0" in done.err  # progress goes to stderr
    before = (here / "swept.csv").read_bytes()
    again = apportion("mixture", "sweep", *OPTIONS, "--json")
    assert again.json == told
    assert (here / "swept.csv").read_bytes() == before
    assert mx.read_runs("swept.csv").families == tuple(FAMILIES)


def test_text_that_is_not_text(apportion, here):
    write_plan("plan.csv", 1280)
    (here / "text" / "alpha" / "aa.txt").write_bytes(b"fine\n\xff\xfe\n")
    done = apportion("mixture", "sweep", *OPTIONS)
    assert done.code == 1
    assert done.out == ""
    assert "aa.txt" in done.err
    assert "5" in done.err
    assert not (here / "swept.csv").exists()


def test_ctrl_c_says_what_is_kept(here):
    write_plan("plan.csv", 12_800, count=40)
    # A shell starts what runs in the background with Ctrl-C ignored; here it must count.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from apportion.cli import main; main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, "mixture", "sweep",
         *OPTIONS, "--workers", "1", "--max-epochs", "9"],
        cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    table, until = here / "swept.csv", time.monotonic() + 240
    while not (table.exists() and table.read_text().count("\n") > 1):
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert out == ""
    assert "finished runs are in swept.csv" in err
    assert "Traceback" not in err
    kept = table.read_text().count("\n") - 1
    assert 1 <= kept < 40
