"""`apportion prefill` and `apportion ask` on a model of seconds."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from apportion.cli import ask as ask_command
from apportion.cli import prefill as prefill_command
from apportion.prefill import loading
from cli.conftest import words
from finetune.saved import sentence, tokenizer

EXAMPLES = [
    pytest.param(line, id=f"{name}-{k}")
    for name, lines in (("ask", ask_command.EXAMPLES), ("prefill", prefill_command.EXAMPLES))
    for k, line in enumerate(lines)
]
READING = ("--memory", "32", "--chunk", "16", "--dtype", "float32")
QUICK = (*READING, "--max-new-tokens", "4")
BOOK = "\n".join(sentence(k) for k in range(5))


@pytest.fixture
def model(here, model):
    """Beside it what the examples read."""
    (here / "book.txt").write_text(BOOK)
    (here / "log.txt").write_text(BOOK)
    (here / "papers").mkdir()
    (here / "papers" / "one.txt").write_text(BOOK)
    (here / "q.jsonl").write_text('{"question": "who jumps?"}\n')
    (here / "manual.html").write_text(f"<html><script>x</script><pre>{BOOK}</pre></html>")
    return model


@pytest.fixture
def typed(monkeypatch):
    def give(text: bytes | str) -> None:
        data = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return give


def refused(done, *said):
    assert done.code == 1, done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    for text in said:
        assert text in done.err


# Help and examples


@pytest.mark.parametrize(("name", "examples"), [
    ("ask", ask_command.EXAMPLES), ("prefill", prefill_command.EXAMPLES),
])  # fmt: skip
def test_help_has_its_options_with_defaults_and_examples(apportion, name, examples):
    assert re.search(rf"^ +{name} +\S", apportion("--help").out, flags=re.MULTILINE)
    done = apportion(name, "--help")
    assert done.code == 0
    for line in examples:
        assert f"  $ {line}\n" in done.out
    told = words(done.out)
    options = (
        "context question budget store memory chunk schedule chunks scorer positions dtype errors"
    )
    more = {
        "ask": "max-new-tokens temperature top-p seed reread save-to documents questions executor",
        "prefill": "out seed",
    }
    for option in f"{options} {more[name]} json".split():
        assert f"--{option}" in told
    for default in ("2048", "1024", "linear", "decremental", "compact", "auto"):
        assert f"default: {default}" in told


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_run(apportion, here, model, typed, line):
    if "book.safetensors --" in line:
        kept = apportion("prefill", "model/", "-c", "book.txt", "-o", "book.safetensors", *READING)
        assert kept.code == 0, kept.err
    command, _, redirected = line.partition(" < ")
    typed((here / redirected).read_text() if redirected else "who jumps?\n")
    given = shlex.split(re.sub(r"--memory \S+", "", command))[1:]
    reading = () if "book.safetensors --" in line else READING
    quick = ("--max-new-tokens", "4") if given[0] == "ask" else ()
    done = apportion(*given, *reading, *quick)
    assert done.code == 0, done.err
    assert done.out
    if "-o" in given:
        assert (here / given[given.index("-o") + 1]).is_file()


# Answers


def test_an_answer_on_stdout_and_what_it_took_on_stderr(apportion, model):
    done = apportion("ask", "model", "--context", "book.txt", "-q", "who jumps?", *QUICK)
    assert done.code == 0, done.err
    assert done.out.endswith("\n")
    read, told = done.err.splitlines()
    assert re.fullmatch(
        r"read [\d,]+ tokens in \d+ chunks, \S+ s \(\S+ tokens/s\); memory of 32 tokens, chunk of "
        r"16; \d+\.\d\d% of the context is kept in \S+ [kM]?B; peak \S+ [kM]?B beyond the weights "
        r"\(predicted \S+ [kM]?B\)",
        read,
    )  # fmt: skip
    assert re.fullmatch(
        r"first token after \S+ s(, \S+ tokens/s)?, peak \S+ [kM]?B, \d+\.\d\d% of the context in "
        r"memory", told
    )  # fmt: skip
    answer = apportion("ask", "model", "-c", "book.txt", "-q", "who jumps?", *QUICK, "--json").json
    assert done.out == answer["answers"][0]["answer"] + "\n"


def test_one_json_document_with_everything(apportion, model):
    done = apportion("ask", "model", "-c", "book.txt", "-q", "who jumps?", "-q", "when?", *QUICK,
                     "--json")  # fmt: skip
    assert done.code == 0, done.err
    told = done.json
    assert told["model"] == "model"
    assert told["context"] == "book.txt"
    assert told["memory"] == 32
    assert told["chunk"] == 16
    assert told["scorer"] == "query"
    assert told["known_questions"] == 2
    assert told["tokens"] > 80
    assert 0 < told["kept_share"] < 0.4
    assert told["peak_bytes"] > told["memory_bytes"] > 0
    assert [answer["question"] for answer in told["answers"]] == ["who jumps?", "when?"]
    for answer in told["answers"]:
        assert answer["known"] is True
        assert answer["tokens"] <= 4
        assert 0 < answer["first_token_seconds"] <= answer["seconds"]
        assert answer["kept_share"] == told["kept_share"]
        assert answer["peak_bytes"] > 0
    assert "not known" not in done.err


def test_several_questions_are_named(apportion, model):
    done = apportion("ask", "model", "-c", "book.txt", "-q", "who jumps?", "-q", "when?", *QUICK)
    assert re.search(r"^> who jumps\?\n(.|\n)*^> when\?\n", done.out, flags=re.MULTILINE)


def test_sampling_options_are_passed_on(apportion, model):
    def answer(*more):
        done = apportion("ask", "model", "-c", "book.txt", "-q", "who?", *QUICK, "--json", *more)
        return done.json["answers"][0]["answer"]

    hot = ("--temperature", "2", "--top-p", "0.95")
    seeds = [answer(*hot, "--seed", str(k)) for k in (1, 1, 2)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) > 1
    # The likeliest token alone is left.
    assert answer("--temperature", "2", "--top-p", "1e-9", "--seed", "3") == answer()


def test_options_of_reading_are_passed_on(apportion, model):
    told = apportion("prefill", "model", "-c", "book.txt", "-o", "x.safetensors", "--memory", "40",
                     "--chunk", "20", "--schedule", "square", "--chunks", "fixed", "--scorer",
                     "random", "--positions", "original", "--seed", "3", "--dtype", "bfloat16",
                     "--json").json  # fmt: skip
    names = ("memory", "chunk", "schedule", "chunk_sizes", "scorer", "positions")
    assert [told[k] for k in names] == [40, 20, "square", "fixed", "random", "original"]
    assert told["wrote"] == ["x.safetensors"]
    from apportion.prefill.saved import read_with

    assert read_with("x.safetensors")["dtype"] == "bfloat16"
    assert read_with("x.safetensors")["settings"]["seed"] == 3


def test_a_page_is_read_as_one_sees_it(apportion, model):
    page, text = (apportion("ask", "model", "-c", name, "-q", "who?", *QUICK, "--json").json
                  for name in ("manual.html", "book.txt"))  # fmt: skip
    assert page["tokens"] == text["tokens"]


def test_a_stream_is_read_as_it_comes(apportion, model, typed, monkeypatch):
    typed(BOOK)
    monkeypatch.setattr("apportion.prefill.documents._ends", lambda handle: False)
    rest = ("-q", "who?", *QUICK, "--json")
    told = apportion("ask", "model", "-c", "-", *rest).json
    assert told["tokens"] == apportion("ask", "model", "-c", "book.txt", *rest).json["tokens"]
    typed("")
    refused(apportion("ask", "model", "-c", "-", "-q", "who?", *QUICK), "an empty one")


def test_without_questions_they_are_asked_for(apportion, model, typed):
    typed("who jumps?\n  when? \n\nnot asked\n")
    done = apportion("ask", "model", "-c", "book.txt", *QUICK)
    assert done.code == 0, done.err
    assert done.err.count("first token after") == 2
    assert done.err.count("was not known while reading") == 2
    assert "--reread" in done.err
    # A question that can't be answered ends nothing.
    typed("x " * 400 + "\nwho jumps?")
    done = apportion("ask", "model", "-c", "book.txt", *QUICK)
    assert done.code == 0
    assert "error: expected question and answer to fit the model's 256 positions" in done.err
    assert done.err.count("first token after") == 1
    typed(b"caf\xe9?\n")
    done = apportion("ask", "model", "-c", "book.txt", *QUICK)
    assert done.code == 1
    assert "UTF-8" in done.err


def test_a_budget_chooses_and_is_kept(apportion, model):
    asking = ("-c", "book.txt", "-q", "who jumps?", "--dtype", "float32", "--budget", "400kB")
    done = apportion("ask", "model", *asking, "--max-new-tokens", "4", "--json", "--save-to",
                     "b.safetensors")  # fmt: skip
    assert done.code == 0, done.err
    told = done.json
    assert told["peak_bytes"] <= told["predicted_bytes"] <= 400_000
    assert max(answer["peak_bytes"] for answer in told["answers"]) <= 400_000
    assert told["chunk_sizes"] == "bytes"
    free = apportion("ask", "model", *asking[:4], *QUICK, "--json").json
    assert free["peak_bytes"] <= free["predicted_bytes"] <= 1.05 * free["peak_bytes"] + 1100
    assert re.search(r"peak \S+ kB beyond the weights \(predicted \S+ kB\)", done.err)
    assert f"memory of {told['memory']} tokens, chunk of {told['chunk']};" in done.err
    # What is kept keeps its figures.
    again = apportion("ask", "model", "-c", "b.safetensors", "-q", "who jumps?", "--json",
                      "--max-new-tokens", "4").json  # fmt: skip
    for name in ("memory", "chunk", "peak_bytes", "predicted_bytes"):
        assert again[name] == told[name]
    refused(apportion("ask", "model", *asking[:-1], "10kB"), "--budget", "kB")
    refused(apportion("ask", "model", *asking[:-1], "lots"), "lots")


# Kept contexts


def test_a_kept_context_is_asked_as_if_it_had_been_read_now(apportion, here, model):
    reading = ("model", "--context", "book.txt", *READING)
    kept = apportion("prefill", *reading, "--out", "book.safetensors")
    assert kept.code == 0, kept.err
    assert kept.out == "\nwrote the context to book.safetensors\n"
    assert kept.err.startswith("read ")
    asking = ("-q", "who jumps?", "--max-new-tokens", "6", "--json")
    later = apportion("ask", "model", "--context", "book.safetensors", *asking)
    assert later.code == 0, later.err
    assert later.err.startswith("was read before: ")
    (answer,) = later.json["answers"]
    assert answer["known"] is False
    assert "was not known while reading" in later.err
    again = apportion("ask", "model", "-c", "book.safetensors", *asking, "--reread").json
    assert again["answers"][0]["known"] is True
    knowing = apportion("ask", *reading, *asking).json
    assert again["answers"][0]["answer"] == knowing["answers"][0]["answer"]
    # The dtype is that of the file, whatever is quick here.
    assert apportion("ask", "model", "-c", "book.safetensors", *asking, "--dtype", "bfloat16"
                     ).code == 1  # fmt: skip
    # Known questions are kept as such.
    assert apportion("prefill", *reading, "-q", "who jumps?", "-o", "book.safetensors").code == 0
    known = apportion("ask", "model", "-c", "book.safetensors", *asking).json
    assert known["known_questions"] == 1
    assert known["answers"] == [
        knowing["answers"][0] | {k: v for k, v in known["answers"][0].items() if k not in
                                 ("question", "answer", "known", "tokens", "kept_share")}
    ]  # fmt: skip


def test_ask_can_keep_what_it_read(apportion, here, model):
    done = apportion("ask", "model", "-c", "book.txt", "-q", "who?", *QUICK, "--save-to",
                     "kept.safetensors")  # fmt: skip
    assert done.code == 0, done.err
    assert "wrote the context to kept.safetensors" in done.err
    assert "wrote" not in done.out
    told = apportion("ask", "model", "-c", "kept.safetensors", "-q", "who?", "--json", "--save-to",
                     "again.safetensors").json  # fmt: skip
    assert told["answers"][0]["known"] is True
    assert told["wrote"] == ["again.safetensors"]
    assert (here / "again.safetensors").read_bytes() == (here / "kept.safetensors").read_bytes()


def test_what_was_read_already_takes_no_options_of_reading(apportion, model):
    assert (
        apportion("prefill", "model", "-c", "book.txt", "-o", "b.safetensors", *READING).code == 0
    )
    refused(apportion("ask", "model", "-c", "b.safetensors", "-q", "x", "--memory", "1k"),
            "expected no --memory with b.safetensors, which was read already")  # fmt: skip
    refused(apportion("prefill", "model", "-c", "b.safetensors", "-o", "c.safetensors"),
            "was read already; ask it: apportion ask model --context b.safetensors")  # fmt: skip


def test_contexts_of_other_models_and_damaged_ones(apportion, here, model):
    assert (
        apportion("prefill", "model", "-c", "book.txt", "-o", "b.safetensors", *READING).code == 0
    )
    torch.manual_seed(9)
    config = AutoConfig.from_pretrained("model")
    AutoModelForCausalLM.from_config(config).save_pretrained("other")
    tokenizer().save_pretrained("other")
    refused(apportion("ask", "other", "-c", "b.safetensors", "-q", "x"), "another revision")
    data = (here / "b.safetensors").read_bytes()
    (here / "b.safetensors").write_bytes(data[: len(data) // 2])
    refused(apportion("ask", "model", "-c", "b.safetensors", "-q", "x"), "damaged")
    refused(apportion("ask", "model", "-c", "other/model.safetensors", "-q", "x"),
            "a safetensors file of something else")  # fmt: skip


@pytest.mark.parametrize("command", [["prefill", "-o"], ["ask", "-q", "x", "--save-to"]])
def test_nothing_of_worth_is_written_over(apportion, here, model, command):
    name, *rest = command
    whole = (here / "model" / "model.safetensors").read_bytes()
    for target, said in (
        ("book.txt", "this command reads it"),
        ("model/model.safetensors", "it holds the weights of a model"),
        ("runs.csv", "it holds a table"),
        ("missing/b.safetensors", "cannot write"),
        ("text", "got a folder"),
    ):
        refused(apportion(name, "model", "-c", "book.txt", *rest, target, *READING), said, target)
    assert (here / "book.txt").read_text() == BOOK
    assert (here / "model" / "model.safetensors").read_bytes() == whole
    # Nor a context by a command that writes something else.
    assert (
        apportion("prefill", "model", "-c", "book.txt", "-o", "b.safetensors", *READING).code == 0
    )
    done = apportion("mixture", "fit", "runs.csv", "-o", "b.safetensors")
    assert "it holds a context" in done.err


# Ctrl-C


@contextmanager
def stopped_after(chunks: int) -> Iterator[None]:
    """Ctrl-C comes when so many chunks are read."""
    from apportion.prefill.progress import Bar

    done = []

    def advance(self, tokens):
        done.append(tokens)
        if len(done) == chunks:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bar, "advance", advance)
        yield


def test_ctrl_c_keeps_what_is_read_so_far(apportion, here, model):
    with stopped_after(3):
        done = apportion("prefill", "model", "-c", "book.txt", "-o", "part.safetensors", *READING)
    assert done.code == 130
    assert done.out == ""
    stopped = re.search(r"stopped after (\d+) tokens; what is read so far is in part", done.err)
    assert stopped is not None
    assert "apportion ask model --context part.safetensors" in done.err
    told = apportion("ask", "model", "-c", "part.safetensors", "-q", "who?", "--json").json
    assert told["tokens"] == int(stopped[1])
    assert told["chunks"] == 3


def test_ctrl_c_without_a_place_says_how_to_keep_it(apportion, here, model):
    before = set(here.iterdir())
    asking = ("ask", "model", "-c", "book.txt", "-q", "who?", *QUICK)
    with stopped_after(2):
        done = apportion(*asking)
    assert done.code == 130
    assert "with --save-to FILE they would be kept" in done.err
    assert set(here.iterdir()) == before
    with stopped_after(2):
        done = apportion(*asking, "--save-to", "p.safetensors")
    assert done.code == 130
    assert (here / "p.safetensors").is_file()


def test_a_real_ctrl_c_in_a_shell(here, model):
    """An endless text, stopped by the signal that the keyboard sends."""
    # A test run in the background of a shell would hand on that the signal is ignored.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from apportion.cli import main; main()"
    )
    arguments = ["prefill", "model", "-c", "-", "-o", "part.safetensors", "--dtype", "float32",
                 "--memory", "32", "--chunk", "200"]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=here, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        try:
            feed(process, 200_000)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            err = process.stderr.read()
            assert process.wait(60) == 130, err
        finally:
            process.kill()
    assert b"what is read so far is in part.safetensors" in err
    assert b"Traceback" not in err
    assert (here / "part.safetensors").is_file()


def feed(process: subprocess.Popen, most: int) -> None:
    """More than a pipe holds and a piece takes: then the first piece has been read."""
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    end, fed = time.monotonic() + 240, 0
    while fed < most:
        assert time.monotonic() < end
        assert process.poll() is None
        try:
            fed += os.write(process.stdin.fileno(), (BOOK + "\n").encode())
        except BlockingIOError:
            time.sleep(0.02)


# Wrong input


def test_wrong_contexts(apportion, here, model):
    asking = ("-q", "who?", *QUICK)
    refused(apportion("ask", "model", "-c", "nowhere.txt", *asking), "there is no nowhere.txt")
    refused(
        apportion("ask", "model", "-c", "no.safetensors", *asking), "there is no no.safetensors"
    )
    refused(apportion("ask", "model", "-c", "text", *asking), "got the folder text")
    for empty in ("", " \n\n"):
        (here / "empty.txt").write_text(empty)
        refused(apportion("ask", "model", "-c", "empty.txt", *asking), "a text, got an empty one")
    (here / "latin.txt").write_bytes(b"caf\xe9 " * 50)
    refused(apportion("ask", "model", "-c", "latin.txt", *asking), "offset 3 (0xe9)",
            "--errors replace")  # fmt: skip
    assert apportion("ask", "model", "-c", "latin.txt", *asking, "--errors", "replace").code == 0
    (here / "picture").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    refused(apportion("ask", "model", "-c", "picture", *asking), "got a PNG image")


def test_wrong_questions(apportion, model, typed):
    asking = ("ask", "model", "-c", "book.txt", *QUICK)
    refused(apportion(*asking, "-q", " "), "expected a question, got an empty one")
    refused(apportion(*asking, "-q", "caf\udce9"), "expected a question in UTF-8")
    refused(apportion(*asking, "--json"), "expected --question with --json")
    refused(apportion("ask", "model", "-c", "-", *QUICK), "expected --question with --context -")
    refused(apportion(*asking, "-q", "why? " * 100), "256 positions")


def test_wrong_options(apportion, model):
    asking = ("ask", "model", "-c", "book.txt", "-q", "who?")
    refused(apportion(*asking, *READING, "--scorer", "best"), "'snapkv'", "'best'")
    refused(apportion(*asking, *READING, "--schedule", "steep"), "'linear'", "'steep'")
    refused(apportion(*asking, *READING, "--memory", "lots"), "lots")
    refused(apportion(*asking, *READING, "--memory", "0"), "0")
    refused(apportion(*asking, *READING, "--memory", "1k"), "256 positions", "--memory 236")
    for wrong in (("--chunks", "odd"), ("--positions", "odd"), ("--dtype", "int8"),
                  ("--errors", "ignore"), ("--max-new-tokens", "few")):  # fmt: skip
        assert apportion(*asking, *wrong).code == 2
    for wrong, said in ((("--temperature", "-1"), "--temperature 0.7"),
                        (("--temperature", "nan"), "--temperature 0.7"),
                        (("--top-p", "0"), "--top-p 0.9"),
                        (("--max-new-tokens", "0"), "--max-new-tokens 64")):  # fmt: skip
        done = apportion(*asking, *QUICK, *wrong)
        assert done.code == 1
        assert said in done.err
    refused(apportion("ask", "model", "-q", "who?"), "--context FILE, or --documents FILES")
    assert apportion("prefill", "model", "-c", "book.txt").code == 2


def test_any_length_goes_with_any_memory_and_chunk(apportion, here, model):
    (here / "short.txt").write_text("a lazy dog")
    for context, memory, chunk in (
        ("short.txt", "100", "50"),
        ("short.txt", "1", "1"),
        ("book.txt", "2", "200"),
        ("short.txt", "200", "3"),
    ):
        sizes = ("--memory", memory, "--chunk", chunk)
        done = apportion("ask", "model", "-c", context, "-q", "who?", *QUICK, *sizes)
        assert done.code == 0, done.err


@pytest.mark.parametrize(("kind", "more"), [
    ("bloom", {"n_layer": 2, "n_head": 4, "hidden_size": 32}),
    ("gpt2", {"n_layer": 2, "n_head": 4, "n_embd": 32}),
    ("opt", {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "ffn_dim": 32,
             "word_embed_proj_dim": 32}),
    ("mamba", {"num_hidden_layers": 2, "hidden_size": 32, "state_size": 8}),
])  # fmt: skip
def test_models_that_cannot_be_read_with_are_refused_by_name(apportion, here, model, kind, more):
    config = AutoConfig.for_model(kind, vocab_size=300, **more)
    made = AutoModelForCausalLM.from_config(config)
    made.save_pretrained("odd")
    tokenizer().save_pretrained("odd")
    done = apportion("ask", "odd", "-c", "book.txt", "-q", "who?", *QUICK)
    refused(done, type(made).__name__, "Llama")


def test_folders_that_are_no_models(apportion, here, model):
    for folder in ("text", "nowhere", "book.txt"):
        refused(apportion("ask", folder, "-c", "book.txt", "-q", "who?", *QUICK), folder)


# The dtype that is quick


@pytest.mark.parametrize("slower", [torch.float32, torch.bfloat16])
def test_auto_takes_the_quicker_dtype(monkeypatch, slower):
    real = torch.Tensor.__matmul__

    def matmul(a, b):
        if a.dtype == slower:
            time.sleep(0.05)
        return real(a[:8, :8], b[:8, :8])

    monkeypatch.setattr(torch.Tensor, "__matmul__", matmul)
    monkeypatch.setattr(loading, "_PROBE_S", 0.2)
    quick = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}[slower]
    assert loading.quick_dtype(torch.device("cpu")) == quick


def test_the_probe_takes_about_a_second():
    began = time.perf_counter()
    assert loading.quick_dtype(torch.device("cpu")) in (torch.float32, torch.bfloat16)
    assert time.perf_counter() - began < 5


def test_auto_is_what_a_reader_is_loaded_in(model, monkeypatch):
    monkeypatch.setattr(loading, "quick_dtype", lambda device: torch.bfloat16)
    reader = loading.load_reader("model", memory=32, chunk=16)
    assert {p.dtype for p in reader.model.parameters()} == {torch.bfloat16}
    assert reader.settings.memory == 32


def test_json_keeps_stdout_to_itself_in_a_shell(program, model):
    done = program("ask", "model", "-c", "book.txt", "-q", "who?", *QUICK, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["answers"]
