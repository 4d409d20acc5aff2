"""`--out` replaces no input and no result of another kind."""

from __future__ import annotations

import os

import pytest

SIZE = ("--params", "2M", "--tokens", "20M")
PATHS = ("--path", "romance=a", "--path", "germanic=b", "--path", "slavic=c")
DESIGN = ("--flops", "1e14", "--params", "1M", "--tokens", "1M")


@pytest.mark.parametrize(("arguments", "read"), [
    (["fit", "runs.csv"], "runs.csv"),
    (["fit", "mixtures.csv", "losses.csv", *SIZE], "losses.csv"),
    (["fit", "runs.csv", "--unique-tokens", "supply.json"], "supply.json"),
    (["optimize", "fit.json", *SIZE], "fit.json"),
    (["optimize", "fit.json", *SIZE, "--supply", "supply.json"], "supply.json"),
    (["optimize", "fit.json", *SIZE, "--beside", "ours:ratios.json"], "ratios.json"),
    (["report", "fit.json"], "fit.json"),
    (["report", "fit.json", "--heldout", "runs.csv"], "runs.csv"),
    (["export", "ratios.json", "--to", "nemo", *PATHS], "ratios.json"),
    (["export", "ratios.json", "--to", "nemo", "--path", "romance=text/a.txt"], "text/a.txt"),
    (["design", *DESIGN, "--fit", "fit.json"], "fit.json"),
    (["count", "text"], "text/a.txt"),
    (["sweep", "--data", "text", "--plan", "plan.csv"], "plan.csv"),
], ids=lambda value: value if isinstance(value, str) else value[0])  # fmt: skip
@pytest.mark.parametrize("by", ["name", "link"])
def test_no_input_is_replaced(apportion, here, arguments, read, by):
    (here / "text" / "a.txt").write_text("text")
    (here / "plan.csv").write_text("run,shape,tokens,seed,ratio_romance\n")
    before = (here / read).read_bytes()
    out = read
    if by == "link" and arguments[0] != "count":
        os.link(here / read, here / "linked")
        out = "linked"
    done = apportion("mixture", *arguments, "-o", out)
    assert done.code == 1
    assert done.err == (
        f"error: cannot write {out}: this command reads it; name another output path\n"
    )
    assert (here / read).read_bytes() == before


@pytest.mark.parametrize(("arguments", "target", "held"), [
    (["optimize", "fit.json", *SIZE], "runs.csv", "a table"),
    (["count", "text"], "fit.json", "a fit"),
    (["fit", "runs.csv"], "ratios.json", "ratios"),
    (["design", *DESIGN, "--families", "a,b"], "runs.csv", "a table"),
    (["export", "romance=.6,slavic=.4", "--to", "nemo", *PATHS], "fit.json", "a fit"),
    (["sweep", "--data", "text"], "plan.csv", "a plan"),
    (["report", "fit.json"], "plan.csv", "a plan"),
    (["fit", "runs.csv"], "page.html", "a page"),
], ids=lambda value: value if isinstance(value, str) else value[0])  # fmt: skip
def test_no_result_of_another_kind_is_replaced(apportion, here, arguments, target, held):
    (here / "plan.csv").write_text("run,params,tokens,seed,ratio_romance,flops\n")
    (here / "page.html").write_text("<!DOCTYPE html>\n<html></html>")
    before = (here / target).read_bytes()
    done = apportion("mixture", *arguments, "-o", target)
    assert done.code == 1
    assert done.err.startswith(f"error: cannot write {target}: it holds {held}, and this command")
    assert (here / target).read_bytes() == before


def test_a_result_of_the_same_kind_and_other_files_are_replaced(apportion, here):
    (here / "nemo").write_text("a note")  # named like the trainer, which is no file
    for _ in range(2):
        for arguments, out in (
            (["optimize", "fit.json", *SIZE], "new.json"),
            (["design", *DESIGN, "--families", "a,b"], "new.csv"),
            (["count", "text"], "supplied.json"),
            (["fit", "runs.csv"], "fitted.json"),
            (["report", "fit.json", "--no-diagnosis"], "new.html"),
            (["export", "ratios.json", "--to", "nemo", *PATHS], "nemo"),
        ):
            done = apportion("mixture", *arguments, "-o", out)
            assert done.code == 0, done.err
    assert (here / "nemo").read_text() != "a note"
