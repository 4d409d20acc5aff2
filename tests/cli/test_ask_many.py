"""`apportion ask --documents` on a model of seconds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

from finetune.saved import sentence

QUICK = ("--memory", "24", "--chunk", "16", "--dtype", "float32", "--max-new-tokens", "3")


@pytest.fixture
def folder(here, model):
    (here / "papers").mkdir()
    for number in range(3):
        text = "\n".join(sentence(k + number) for k in range(4))
        (here / "papers" / f"{number}.txt").write_text(text)
    (here / "q.jsonl").write_text(
        '{"question": "who jumps?"}\n{"question": "what is lazy?", "document": "1.txt"}\n'
    )
    return here


def ask(apportion, *more: str):
    given = ("ask", "model", "--documents", "papers/*.txt", "--questions", "q.jsonl")
    return apportion(*given, "-o", "answers.jsonl", *QUICK, *more)


@pytest.mark.parametrize("executor", [(), ("--workers", "2"), ("--threads", "1")])
def test_answers_go_into_a_file_in_the_order_of_the_documents(apportion, folder, executor):
    done = ask(apportion, *executor)
    assert done.code == 0, done.err
    lines = (folder / "answers.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [row["document"] for row in found] == [f"papers/{k}.txt" for k in (0, 1, 1, 2)]
    assert "4 answers, 0 documents that could not be read" in done.out
    assert "; 0 left" in done.err
    # Once more, over the file of before.
    done = ask(apportion, "--json")
    assert done.code == 0, done.err
    assert [row["answer"] for row in done.json["answers"]] == [row["answer"] for row in found]


def test_a_bad_document_leaves_a_row_and_a_code(apportion, folder):
    (folder / "papers" / "1.txt").write_bytes(b"%PDF-1.7 nothing")
    done = ask(apportion)
    assert done.code == 1
    found = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert ["error" in row for row in found] == [False, True, False]
    assert "papers/1.txt: error: " in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--documents", "papers/*.txt"), "expected --out with --documents"),
        (("--documents", "papers/*.txt", "-o", "a.jsonl"), "expected --questions FILE or"),
        (("--documents", "none/*", "-q", "who?", "-o", "a.jsonl"), "which names none"),
        (("--documents", "papers/*.txt", "-c", "q.jsonl"), "expected no --context"),
        (("--questions", "q.jsonl"), "expected --context FILE, or --documents"),
        (("-c", "q.jsonl", "-o", "a.jsonl"), "expected --documents with --out"),
        (
            ("--documents", "papers/*.txt", "-q", "a?", "-o", "papers/0.txt"),
            "it is among the documents",
        ),
        (("--documents", "papers/*.txt", "-q", "a?", "-o", "a.jsonl", "--workers", "0"),
         "expected --workers 2 or another number from 1 up"),
        (("-c", "q.jsonl", "-q", "a?", "--workers", "2"), "expected --documents with --workers"),
        (("-c", "q.jsonl", "-q", "a?", "--executor", "ray"), "with --executor"),
        (("--documents", "papers/*.txt", "-q", "a?", "-o", "a.jsonl", "--address", "auto"),
         "expected --executor ray with --address"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said(apportion, folder, given, said):
    done = apportion("ask", "model", *given, *QUICK)
    assert done.code == 1
    assert said in " ".join(done.err.split())
    assert not (folder / "a.jsonl").exists()
