"""The grid of the quality benchmark: every cell can be run, none twice; figures are drawn."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import harness
import plot_prefill
import plot_reads
import prefill_perplexity
import prefill_quality
import prefill_reads
import prefill_setup
from apportion.prefill.evaluation import Haystack
from finetune.tiny import make
from harness import record
from prefill.worded import prose, tokenizer


@pytest.fixture
def results(tmp_path, monkeypatch):
    for module in (harness, plot_prefill):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture
def small(results, monkeypatch):
    """A tiny model, and a manual of whole words."""
    words = tokenizer()
    model = make("llama", max_position_embeddings=1024).eval()
    hay = Haystack(prose(4000), words)
    for module in (prefill_quality, prefill_setup):
        monkeypatch.setattr(module, "load", lambda: (model, words))
    monkeypatch.setattr(prefill_setup, "haystack", lambda: hay)
    return results


def test_cells_fit_the_model_and_none_is_there_twice():
    cells = list(prefill_quality.grid())
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        how = cell.how()
        if isinstance(how, dict):
            assert how["memory"] * cell.share <= cell.length
            assert how["memory"] + how["chunk"] + how["sinks"] < 8192
        elif how is not None:
            assert how == cell.memory + cell.chunk + prefill_quality.SINKS < cell.length
    # The decisive ones have 32 trials or more.
    assert all(
        3 * cell.each >= 32 for cell in cells if cell.length <= 6144 and "8" not in cell.task
    )


def test_a_cell_is_run_recorded_and_not_done_again(small, monkeypatch):
    monkeypatch.setattr(prefill_quality, "NEW_TOKENS", dict.fromkeys(prefill_setup.MAKE, 1))
    cell = prefill_quality.Cell("needle", 96, "IM", 3, "query", "each")
    rows = prefill_quality.run(cell, each=1)
    assert [(row["depth"], row["trials"]) for row in rows] == [(0.1, 1), (0.5, 1), (0.9, 1)]
    assert {(row["memory"], row["chunk"], row["known"]) for row in rows} == {("32", "16", "each")}
    several = prefill_quality.Cell("recall of 8", 192, "full", each=1)
    found = prefill_quality.run(several)
    assert sum(row["trials"] for row in found) == 8

    first = next(prefill_quality.grid())
    before = len(prefill_quality.todo())
    own = dict(zip(prefill_quality.KEYS, first.key, strict=True))
    record("prefill_quality", [{**rows[0], **own}], small)
    assert len(prefill_quality.todo()) == before - 1
    assert first not in prefill_quality.todo()


def made_up(results: Path) -> None:
    for number, cell in enumerate(prefill_quality.grid()):
        own = dict(zip(prefill_quality.KEYS, cell.key, strict=True))
        rows = [
            own
            | {"depth": depth, "correct": number % 12, "trials": 11, "low": 0.1, "high": 0.9}
            | {"peak_bytes": 10**8 + cell.memory * 10**4, "seconds": 1.5}
            for depth in prefill_setup.DEPTHS
        ]
        record("prefill_quality", rows, results)


def test_the_summary_takes_depths_together_beside_full_context(results):
    made_up(results)
    rows = prefill_quality.summary()
    assert len(rows) == len(list(prefill_quality.grid()))
    # The first cell is full context with none right: nothing can be divided by that.
    assert (rows[0]["method"], rows[0]["correct"], rows[0]["of_full"]) == ("full", 0, "")
    recall = [row for row in rows if (row["task"], row["length"]) == ("recall", "3072")]
    assert (recall[0]["method"], recall[0]["correct"], recall[0]["trials"]) == ("full", 18, 33)
    assert recall[0]["of_full"] == 1
    assert recall[1]["of_full"] == round(21 / 18, 4)
    assert recall[1]["low"] < 21 / 33 < recall[1]["high"]


def test_figures_are_drawn_from_the_ledgers(results, tmp_path, capsys):
    folder = tmp_path / "figures"
    assert plot_prefill.draw(folder) == []
    assert "needle: no prefill_quality.csv yet" in capsys.readouterr().out
    made_up(results)
    places = itertools.product(("FM", "IM", "IMDC"), ("snapkv", "query", "random"), range(10))
    probes = [
        {"what": "forgetting", "place": place, "length": 6144, "method": method}
        | {"scorer": scorer, "memory": 1024, "chunk": 1024, "texts": 4}
        | {"share": 0.02 + place / 100, "lowest": 0.01, "highest": 0.2}
        for method, scorer, place in places
    ]
    record("prefill_probes", probes, results)
    drawn = plot_prefill.draw(folder)
    assert [path.name for path in drawn] == [
        "prefill-needle.svg",
        "prefill-answers.svg",
        "prefill-forgetting.svg",
    ]
    heat = drawn[0].read_text(encoding="utf-8")
    for name in ("full", "last M + c", "IM", "depth", "16k"):
        assert f">{name}<" in heat


def test_figures_of_reads(results, tmp_path, capsys):
    folder = tmp_path / "figures"
    assert plot_reads.draw(folder) == []
    assert "speed: no prefill_reads.csv yet" in capsys.readouterr().out
    for name, case in prefill_reads.CASES.items():
        sizes = {"tokens": case.tokens, "memory": case.memory, "chunk": case.chunk}
        for number, side in enumerate(case.sides):
            figures = {"seconds": 40 - 3 * number, "peak_bytes": 10**8 - number * 10**7}
            figures |= {"memory_bytes": 10**7, "forwards": 16, "largest_chunk": 1024}
            figures |= {"most_entries": 3072, "chunk_bound": 1.25, "threads": 2}
            row = {"case": name, **sizes, "side": side.name, "round": 0, **figures}
            record("prefill_reads", [row], results)
    for number, side in enumerate(("no eviction", "streaming", "snapkv")):
        sizes = {"memory": 2048, "chunk": 1024, "chunks": 2, "side": side, "rounds": 9}
        row = sizes | {"median_s": 1.0, "min_s": 1.0, "max_s": 1.0, "overhead": number / 20}
        record("prefill_overhead", [row | {"threads": 2}], results)
    names = ("speed", "bytes", "length", "overhead")
    drawn = plot_reads.draw(folder)
    assert [path.name for path in drawn] == [f"prefill-{name}.svg" for name in names]
    said = [path.read_text(encoding="utf-8") for path in drawn]
    assert ">single chunks: 1.25<" in said[0]
    assert ">1.08<" in said[0]  # 40 / 37
    assert ">90 MB<" in said[1]
    assert ">plain: 40<" in said[2]
    assert ">10 %<" in said[3]


@pytest.mark.parametrize("part", ["after", "whole"])
def test_cells_of_perplexity(part):
    cells = list(prefill_perplexity.grid(part))
    assert len(set(cells)) == len(cells)
    assert {cell[0] for cell in cells} == {part}
    assert all(
        cell[2] in (*prefill_perplexity.METHODS, "full", "last M", "last M + c") for cell in cells
    )


def test_perplexity_of_tiny_texts(small, monkeypatch):
    words = tokenizer()
    monkeypatch.setattr(prefill_perplexity, "load", prefill_setup.load)
    monkeypatch.setattr(prefill_perplexity, "manual", lambda: prose(600))
    monkeypatch.setattr(prefill_perplexity, "CONTEXT", 90)
    monkeypatch.setattr(prefill_perplexity, "AHEAD", 10)
    monkeypatch.setattr(prefill_perplexity, "WHOLE", 100)
    monkeypatch.setattr(prefill_perplexity, "CHUNK", 16)
    texts = [prefill_perplexity.tokens(start, 100) for start in range(8)]
    assert texts[0].tolist() == words(prose(600))["input_ids"][:100]
    assert texts[7].tolist() == words(prose(600))["input_ids"][-100:]
    losses = {
        method: prefill_perplexity.after(method, scorer, 8, 2)
        for method, scorer in (("full", ""), ("last M", ""), ("last M + c", ""), ("IM", "snapkv"))
    }
    assert len(set(losses.values())) == 4
    assert prefill_perplexity.whole("FM", "streaming", 8, 0) > 0
