"""Many documents: order, errors, kills, other processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from apportion.errors import InputError
from apportion.execution import LocalExecutor
from apportion.files import only_writer
from apportion.prefill import many
from apportion.prefill.asked import find_documents, questions_of, read_questions
from apportion.prefill.journal import Journal
from apportion.prefill.many import How, answer_documents
from finetune.saved import save_model, sentence

OPTIONS = {"memory": 24, "chunk": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def how(model) -> How:
    return How(str(model), "float32", OPTIONS, {"max_new_tokens": 3})


@pytest.fixture
def papers(tmp_path) -> list[str]:
    folder = tmp_path / "papers"
    folder.mkdir()
    for number in range(4):
        text = "\n".join(sentence(k + number) for k in range(4))
        (folder / f"{number}.txt").write_text(text)
    return [str(folder / f"{number}.txt") for number in range(4)]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def timeless(found: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in found]


ASKED = ["who jumps?", "what is lazy?"]


def test_answers_are_those_of_one_document_at_a_time(how, papers, tmp_path):
    from apportion.prefill.loading import load_reader

    out = tmp_path / "answers.jsonl"
    heard: list[tuple[str, int]] = []
    found = answer_documents(
        how,
        dict.fromkeys(papers, ASKED),
        out,
        each=lambda name, _, left: heard.append((name, left)),
    )
    assert rows(out) == found
    assert [(row["document"], row["question"]) for row in found] == [
        (name, question) for name in papers for question in ASKED
    ]
    assert heard == list(zip(papers, (3, 2, 1, 0), strict=True))
    reader = load_reader(how.model, "float32", **OPTIONS)
    for row in found:
        context = reader.read(Path(row["document"]).read_text(), questions=ASKED)
        answer = context.ask(row["question"], max_new_tokens=3)
        assert (row["answer"], row["tokens"]) == (answer.text, context.tokens)
        assert row["kept_share"] == answer.kept_share < 1
        assert row["peak_bytes"] == max(context.peak_bytes, answer.peak_bytes)
    assert not list(tmp_path.glob("*.part"))


def test_processes_give_the_same_in_the_same_order(how, papers, tmp_path):
    here = answer_documents(how, dict.fromkeys(papers, ASKED), tmp_path / "a.jsonl")
    there = answer_documents(
        how, dict.fromkeys(papers, ASKED), tmp_path / "b.jsonl", executor=LocalExecutor(2)
    )
    assert timeless(there) == timeless(here)


def test_a_bad_document_is_reported_and_read_alone_when_it_is_mended(how, papers, tmp_path):
    out = tmp_path / "answers.jsonl"
    good = Path(papers[1]).read_bytes()
    Path(papers[1]).write_bytes(b"\x89PNG\r\n\x1a\n")
    Path(papers[2]).unlink()
    found = answer_documents(how, dict.fromkeys(papers, ASKED[:1]), out)
    assert [sorted(row) == ["document", "error"] for row in found] == [False, True, True, False]
    assert "got a PNG" in found[1]["error"]
    assert "there is no" in found[2]["error"]

    for path in papers[1:3]:
        Path(path).write_bytes(good)
    again: list[str] = []
    found = answer_documents(
        how, dict.fromkeys(papers, ASKED[:1]), out, each=lambda name, *_: again.append(name)
    )
    assert again == papers[1:3]
    assert all("answer" in row for row in found)
    assert [row["document"] for row in found] == papers
    assert not list(tmp_path.glob("*.part"))


def test_a_kill_loses_what_is_in_flight_and_a_changed_document_is_read_again(
    how, papers, tmp_path, monkeypatch
):
    out, asked = tmp_path / "answers.jsonl", dict.fromkeys(papers, ASKED[:1])
    whole = answer_documents(how, asked, tmp_path / "whole.jsonl")
    carry_out, count = many.carry_out, [0]

    def stops(job, report):
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        return carry_out(job, report)

    monkeypatch.setattr(many, "carry_out", stops)
    with pytest.raises(KeyboardInterrupt):
        answer_documents(how, asked, out)
    assert not out.exists()
    journal = tmp_path / "answers.jsonl.part"
    # The kill came while a line was written.
    journal.write_bytes(journal.read_bytes()[:-9])
    Path(papers[0]).write_text("\n".join(sentence(k + 9) for k in range(4)))
    again: list[str] = []
    found = answer_documents(how, asked, out, each=lambda name, *_: again.append(name))
    assert again == [papers[0], papers[2], papers[3]]
    assert timeless(found[1:]) == timeless(whole[1:])
    assert rows(out) == found

    # Another call does not go on with it.
    count[0] = 2
    with pytest.raises(KeyboardInterrupt):
        answer_documents(how, asked, out)
    with pytest.raises(InputError, match="begun by one with another model"):
        answer_documents(how, dict.fromkeys(papers, ASKED), out)
    journal.write_text("mine\n")
    with pytest.raises(InputError, match="got another file"):
        answer_documents(how, asked, out)
    assert journal.read_text() == "mine\n"


def test_what_can_not_be_done_is_said_before_anything_is_read(how, papers, tmp_path):
    with pytest.raises(InputError, match="a question of one at least"):
        answer_documents(how, {name: [] for name in papers}, tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="cannot write"):
        answer_documents(how, dict.fromkeys(papers, ASKED), tmp_path / "none" / "a.jsonl")
    other = How(str(tmp_path / "missing"), "float32")
    with pytest.raises(InputError, match="expected a causal language model"):
        answer_documents(other, dict.fromkeys(papers, ASKED), tmp_path / "a.jsonl")
    # Nothing is left that another call would have to go on with.
    assert not list(tmp_path.glob("*.part"))


def test_questions_come_from_lines_and_may_name_a_document(tmp_path, papers):
    path = tmp_path / "q.jsonl"
    lines = [{"question": "who?"}, {"question": "what?", "document": "2.txt"}]
    lines.append({"question": "when?", "document": papers[0]})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    asked = questions_of(papers, read_questions(path))
    assert list(asked.values()) == [["who?", "when?"], ["who?"], ["who?", "what?"], ["who?"]]
    with pytest.raises(InputError, match="found it 0 times"):
        questions_of(papers, [("who?", "9.txt")])
    with pytest.raises(InputError, match="found it 2 times"):
        questions_of([*papers, "other/2.txt"], [("who?", "2.txt")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a JSON object a line with a question"),
        ("who?\n", "line 1, column 1: expected one JSON object with a question"),
        ('{"question": "a"}\n[]\n', "line 2: expected a JSON object with a question"),
        ('{"question": " "}', "line 1: expected a question"),
        ('{"question": "a", "document": 3}', "expected a path as document, got 3"),
        ("[" * 100_000, "line 1: expected one plain JSON object"),
        ('{"question": "\\ud800"}', "line 1: expected a question in UTF-8"),
    ],
)
def test_bad_questions_are_named_by_their_line(tmp_path, text, said):
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_questions(path)


def test_documents_are_found_by_patterns(tmp_path, papers):
    pattern = str(tmp_path / "papers" / "*.txt")
    assert find_documents([papers[2], pattern]) == [papers[2], papers[0], papers[1], papers[3]]
    (tmp_path / "papers" / "[a].txt").write_text("x")
    assert find_documents([str(tmp_path / "papers" / "[a].txt")])[0].endswith("[a].txt")
    with pytest.raises(InputError, match="which names none"):
        find_documents([str(tmp_path / "none" / "*.txt")])


def test_a_journal_survives_damage_at_any_byte(tmp_path):
    path, call = tmp_path / "a.part", {"model": "m"}
    journal = Journal(path, call)
    for number in range(3):
        journal.add({"number": number, "rows": [{"answer": "né\u2028\r\n"}]})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        again = Journal(path, call)
        assert list(again.entries) == list(range(max(0, whole[:end].count(b"\n") - 1)))
        again.add({"number": 7})
        assert list(Journal(path, call).entries) == [*list(again.entries)]
    # Lines that no journal has: what stands behind them is not believed.
    for line in (b"[]\n", b'{"number": "0"}\n', b"{}\n", b"\xff\n", b"[" * 99_999 + b"\n"):
        path.write_bytes(whole + line + b'{"number": 9}\n')
        assert list(Journal(path, call).entries) == [0, 1, 2]
        assert path.read_bytes() == whole
    journal.close()
    assert not path.exists()


def test_two_calls_never_write_one_file(how, papers, tmp_path):
    out = tmp_path / "a.jsonl"
    with only_writer(out), pytest.raises(InputError, match="another process is writing it"):
        answer_documents(how, dict.fromkeys(papers, ASKED), out)


def test_names_that_no_utf8_can_hold(how, tmp_path):
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")
    Path(name).write_text(sentence(1))
    out = tmp_path / "a.jsonl"
    answer_documents(how, {name: ASKED[:1]}, out)
    assert rows(out)[0]["document"] == name
