"""The command line itself: help, exit codes, streams."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import warnings

import pytest

import apportion as package
from apportion.cli import run
from apportion.cli.mixture import COMMANDS
from apportion.errors import InputError, InputWarning

EXAMPLES = [
    pytest.param(name, line, id=f"{name}-{k}")
    for name, (_, lines) in COMMANDS.items()
    for k, line in enumerate(lines)
]
VERBS = "fit predict optimize diagnose compare design sweep count export report"


def test_help_shows_the_capabilities(apportion):
    done = apportion("--help")
    assert done.code == 0
    assert re.search(r"^ +mixture +\S", done.out, flags=re.MULTILINE)
    assert done.err == ""


def test_every_verb_is_there(apportion):
    done = apportion("mixture", "--help")
    assert done.code == 0
    listed = re.findall(r"^  (\w+)  ", done.out, flags=re.MULTILINE)
    assert set(VERBS.split()) == set(listed)


def test_version(apportion):
    assert apportion("--version").out.strip() == f"apportion {package.__version__}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_json_and_its_examples_whole(apportion, name):
    done = apportion("mixture", name, "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert COMMANDS[name][1]
    for line in COMMANDS[name][1]:
        assert line.startswith(f"apportion mixture {name} ")
        assert f"  $ {line}\n" in done.out


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_the_examples_run(apportion, here, name, line):
    if name == "sweep":
        pytest.skip("covered by test_sweep, on text and a plan of seconds instead of hours")
    if "--shape" in line:
        pytest.importorskip("torch")
    if "--tokenizer" in line:
        tokenizer = pytest.importorskip("tokenizers").ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(["some words, абвгд"], vocab_size=270)
        tokenizer.save(str(here / "tokenizer.json"))
    arguments = shlex.split(line.replace("--bootstrap 1000", "--bootstrap 40"))[1:]
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    done = apportion(*arguments)
    assert done.code == 0, done.err
    assert done.out
    changed = {p.name for p in here.rglob("*") if before.get(p) != p.stat().st_mtime_ns} - {"text"}
    named = {arguments[k + 1] for k, word in enumerate(arguments) if word in ("-o", "--out")}
    assert {name for name in changed if "." in name} == named
    for path in named:
        assert re.search(rf"^wrote .* to {re.escape(path)}$", done.out, flags=re.MULTILINE)
        told = apportion(*arguments, "--json").json
        assert told["wrote"] == [path]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["mixture", "nonsense"],
        ["mixture", "fit"],
        ["mixture", "fit", "runs.csv", "--nonsense"],
        ["mixture", "fit", "runs.csv", "--bootstrap", "many"],
        ["mixture", "fit", "runs.csv", "--format", "excel"],
        ["mixture", "predict", "fit.json", "--params", "1B"],
    ],
)
def test_wrong_usage_leaves_with_2(apportion, arguments):
    done = apportion(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "Usage: apportion" in done.err
    assert "Traceback" not in done.err


def test_no_arguments_show_the_help(apportion):
    done = apportion()
    assert "Usage: apportion" in done.out + done.err
    assert "mixture" in done.out + done.err


def test_a_shell_sees_the_same(program):
    fine = program("mixture", "predict", "fit.json", "--params", "2M", "--tokens", "20M",
                   "--ratios", "romance=.3,germanic=.3,slavic=.4", "--json")  # fmt: skip
    assert fine.code == 0, fine.err
    assert [row["family"] for row in fine.json["losses"]] == ["romance", "germanic", "slavic"]
    wrong = program("mixture", "fit", "nowhere.csv")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("error: ")
    assert "nowhere.csv" in wrong.err
    assert "Traceback" not in wrong.err
    assert program("mixture", "fit").code == 2


def test_no_colour_and_no_folding_in_a_pipe(program):
    plain = program("mixture", "fit", "runs.csv", TERM="xterm-256color")
    assert plain.code == 0
    assert "\x1b" not in plain.out + plain.err
    heading = next(line for line in plain.out.splitlines() if line.startswith("family  "))
    assert "parameter" in plain.out
    assert "irreducible loss at p = 1, nats per token" in plain.out
    assert heading == heading.rstrip()
    narrow = program("mixture", "fit", "runs.csv", COLUMNS="60")
    assert max(map(len, narrow.out.splitlines())) <= 60


def test_notes_about_the_input_go_to_stderr(apportion, here):
    text = (here / "runs.csv").read_text(encoding="utf-8").splitlines()
    head, first = text[0].split(","), text[1].split(",")
    place = head.index("ratio_slavic")
    first[place] = str(float(first[place]) + 5e-4)
    (here / "off.csv").write_text("\n".join([text[0], ",".join(first), *text[2:]]) + "\n")
    done = apportion("mixture", "fit", "off.csv", "--json")
    assert done.code == 0, done.err
    sums, untested = done.err.splitlines()
    assert sums.startswith("note: ")
    assert "sum" in sums
    assert "hypothesis 1" in untested
    assert done.json["runs"] == 60


def test_warnings_are_shown_and_the_filters_put_back(monkeypatch, capsys):
    from apportion.mixture import fitfile

    def warn(path):
        warnings.warn("look out", InputWarning, stacklevel=2)
        raise InputError("no good")

    monkeypatch.setattr("apportion.mixture.load", warn)
    before = (list(warnings.filters), warnings.showwarning)
    arguments = ["--params", "1", "--tokens", "1", "--ratios", "a=1"]
    assert run(["mixture", "predict", "fit.json", *arguments]) == 1
    assert capsys.readouterr().err == "note: look out\nerror: no good\n"
    assert (list(warnings.filters), warnings.showwarning) == before
    assert fitfile.load is not warn


def test_ctrl_c_says_what_is_left(monkeypatch, capsys):
    def stop(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("apportion.mixture.load", stop)
    arguments = ["--params", "1", "--tokens", "1", "--ratios", "a=1"]
    assert run(["mixture", "predict", "fit.json", *arguments]) == 130
    written = capsys.readouterr()
    assert written.out == ""
    assert "whole or not at all" in written.err


def test_a_reader_that_leaves_is_no_error(here):
    code = "from apportion.cli import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code, "mixture", "fit", "runs.csv", "-o", "kept.json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=here,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""
    assert (here / "kept.json").exists()


def test_the_help_is_light():
    code = (
        "import sys; from apportion.cli import run; run(['--help']); "
        "heavy = {'numpy', 'scipy', 'pandas', 'pydantic', 'torch', 'matplotlib', 'rich'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    times = []
    for _ in range(3):
        began = time.process_time(), os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        after = os.times()
        assert (done.returncode, done.stderr) == (0, "")
        times.append(
            after.children_user + after.children_system
            - began[1].children_user - began[1].children_system
        )  # fmt: skip
    # Processor time: what else the machine does must not decide.
    assert min(times) < 0.5
