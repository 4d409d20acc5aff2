"""Scores beside baselines, losses and probes, each against a plain calculation of the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from apportion import prefill as pf
from apportion.errors import InputError
from apportion.prefill.context import Context
from apportion.prefill.evaluation import (
    Case,
    attention_shares,
    evaluate,
    forgetting,
    loss_after,
    loss_of,
    retention,
    run,
    wilson,
)
from apportion.prefill.evaluation.held import exactly, say
from apportion.prefill.reader import Reader
from finetune.tiny import VOCABULARY, make
from prefill.worded import prose, tokenizer

TOKENIZER = tokenizer()
MOST = 2


@pytest.fixture(scope="module")
def model():
    return make("llama", seed=1).eval()


def plainly(model, ids, most=MOST):
    """What greedy decoding says after some tokens, each from a forward of its own."""
    said = []
    for _ in range(most):
        token = int(model(torch.tensor([[*ids, *said]])).logits[0, -1].argmax())
        if token == TOKENIZER.eos_token_id:
            break
        said.append(token)
    return TOKENIZER.decode(said, skip_special_tokens=True)


def prompt(text, question, opening="", last=None):
    """Token ids of the chat around a text, or its end."""
    ids = TOKENIZER(text)["input_ids"]
    before = TOKENIZER("<s>")["input_ids"]
    if last is not None:
        ids = ids[-(last - len(before)) :]
    return [*before, *ids, *TOKENIZER(f"{question} </s> <s> {opening}")["input_ids"]]


@pytest.fixture(scope="module")
def cases(model):
    """Questions whose right answer is what full context says, and two that have none."""
    found = []
    for seed in range(2):
        text = prose(38 + seed, seed)
        for number in range(2):
            question, opening = prose(3, 100 + 2 * seed + number), ("", "w5")[number]
            answer = plainly(model, prompt(text, question, opening)) or "nothing"
            found.append(Case(text, question, answer, opening, "echo", 38, (0.25, 0.75)[number]))
    assert len({case.answer for case in found}) > 2
    return found


def correct(rows):
    """Method and known to right answers at each depth."""
    return {(r.method, r.memory, r.chunk, r.known, r.depth): r.correct for r in rows}


def test_full_context_and_last_tokens_are_plain_prefills(model, cases):
    rows = evaluate(
        model,
        TOKENIZER,
        cases,
        {"all": {"memory": 60, "chunk": 16, "schedule": "fixed"}, "17": 17, "whole": None},
        known="none",
        max_new_tokens=MOST,
    )
    found = correct(rows)
    for depth in (0.25, 0.75):
        assert found["full", 0, 0, "", depth] == 2
        assert found["whole", 0, 0, "", depth] == 2
        assert found["all", 60, 16, "none", depth] == 2
        for name, memory, kept in (("17", 17, 17), ("last M", 60, 64)):
            right = [
                plainly(model, prompt(case.text, case.question, case.opening, kept)) == case.answer
                for case in cases
                if case.depth == depth
            ]
            assert found[name, memory, 0, "", depth] == sum(right)
    # Seventeen tokens are not enough, or nothing would be tested.
    assert sum(row.correct for row in rows if row.method == "17") < 4
    assert len(rows) == 2 * 6
    assert {row.length for row in rows} == {38}


@pytest.mark.parametrize("template", ["chat", "none"])
def test_what_is_read_and_asked(model, monkeypatch, template):
    text, words = prose(30), tokenizer() if template == "chat" else tokenizer(template=None)
    read, asked = [], []

    def watched_read(reader, ids):
        read.append(ids.tolist())
        return exactly(reader, ids)

    def watched_say(reader, held, question, most):
        asked.append(question.tolist())
        return say(reader, held, question, most)

    monkeypatch.setattr(run, "exactly", watched_read)
    monkeypatch.setattr(run, "say", watched_say)
    options = {"memory": 10, "chunk": 7, "sinks": 2}
    case = Case(text, "w9 w10", "w11", opening="w5 w6")
    evaluate(model, words, [case], {"x": options, "last": 6, "one": 1}, max_new_tokens=1)
    ids = words(text)["input_ids"]
    if template == "chat":
        before, after = [1], "w9 w10 </s> <s> w5 w6"
    else:
        before, after = [], "Question: w9 w10 Answer: w5 w6"
    kept = [30, 12 - len(before), 19 - len(before), 6 - len(before), 1]
    assert read == [[*before, *ids[-k:]] for k in kept]
    assert asked == [words(after)["input_ids"]] * 6


def test_last_tokens_count_sinks_and_opening(model, cases):
    seen = []
    rows = pf.evaluate(
        model,
        TOKENIZER,
        cases[:1],
        {"a": {"memory": 10, "chunk": 7, "sinks": 2}, "b": {"memory": 10, "chunk": 5, "sinks": 2}},
        max_new_tokens=1,
        each=seen.append,
    )
    assert seen == rows
    names = [(row.method, row.memory, row.chunk) for row in rows]
    assert names == [
        ("full", 0, 0),
        ("last M", 10, 0),
        ("last M + c", 10, 7),
        ("last M + c", 10, 5),
        ("a", 10, 7),
        ("b", 10, 5),
    ]
    # Exactly read tokens that are held: bytes of the last M are those of M + sinks.
    held = [
        exactly(Reader(model, memory=1, chunk=1), torch.arange(3, 3 + n)).engine.bytes()
        for n in (12, 19)
    ]
    assert rows[1].peak_bytes > held[0]
    assert rows[2].peak_bytes - rows[1].peak_bytes >= held[1] - held[0]


def test_evicting_readers_answer_as_they_do_when_asked_by_hand(model, cases):
    options = {"memory": 9, "chunk": 14, "schedule": "linear", "chunks": "fixed", "scorer": "query"}
    rows = evaluate(model, TOKENIZER, cases, {"IM": options}, baselines=False, max_new_tokens=MOST)
    reader = Reader(model, TOKENIZER, **options)
    for row in rows:
        right = 0
        for case in (case for case in cases if case.depth == row.depth):
            ids = reader.question(case.question)
            ids = torch.cat([ids, torch.tensor(TOKENIZER(case.opening)["input_ids"]).long()])
            said = reader.read(case.text, [ids]).ask(ids, max_new_tokens=MOST)
            assert said.known
            right += case.answer == said.text
        assert (row.correct, row.trials) == (right, 2)
    assert (rows[0].scorer, rows[0].memory, rows[0].chunk) == ("query", 9, 14)


def test_what_is_read_how_often(model, cases, monkeypatch):
    reads, take = [], Context.take

    def watched(self, text, mask, progress):
        reads.append((text.shape[1], len(self.questions)))
        return take(self, text, mask, progress)

    monkeypatch.setattr(Context, "take", watched)
    lengths = [39 + seed for seed in range(2)]  # the opening's token among them

    def read(known, **options):
        reads.clear()
        options = {"memory": 12, "chunk": 20, **options}
        rows = evaluate(model, TOKENIZER, cases, {"x": options}, known, False, max_new_tokens=MOST)
        return list(reads), {row.known for row in rows}

    each = [(n, 1) for n in lengths for _ in range(2)]
    assert read("each") == (each, {"each"})
    assert read("together") == ([(n, 2) for n in lengths], {"together"})
    assert read("none") == ([(n, 0) for n in lengths], {"none"})
    # A scorer that asks nothing is not read with again for every question.
    assert read("each", scorer="h2o") == ([(n, 0) for n in lengths], {"none"})
    parts = [(20, 0), (19, 0), (20, 0), (20, 0)]
    assert read("none", parts=2) == (parts, {"none"})


def test_extended_contexts_keep_their_questions(model, cases):
    options = {"memory": 9, "chunk": 14, "parts": 2}
    (row, _) = evaluate(model, TOKENIZER, cases, {"x": options}, "each", False, MOST)
    right = 0
    reader = Reader(model, TOKENIZER, memory=9, chunk=14)
    for case in (case for case in cases if case.depth == row.depth):
        ids = torch.tensor([[1, *TOKENIZER(case.text)["input_ids"]]])
        first, *more = ids.tensor_split(2, dim=1)
        context = reader.read(first, [case.question])
        for part in more:
            context.extend(part)
        right += context.ask(case.question, max_new_tokens=MOST).text == case.answer
    assert row.correct == right


def test_a_row(model):
    text = prose(40)
    right = plainly(model, prompt(text, "w9"))
    triples = [(text, "w9", right), (text, "w9", "elsewhere"), (prose(60), "w9", "elsewhere")]
    (row,) = evaluate(model, TOKENIZER, triples, {}, max_new_tokens=MOST)
    assert (row.task, row.length, row.depth) == ("own", round((41 + 41 + 61) / 3), None)
    assert (row.method, row.known, row.correct, row.trials) == ("full", "", 1, 3)
    assert row.share == 1 / 3
    assert (row.low, row.high) == wilson(1, 3)
    assert row.seconds > 0
    # Keys and values of 61 entries and the question, at least, in 3 layers of 2 heads of 12.
    assert row.peak_bytes > 61 * 3 * 2 * 2 * 12 * 4


def test_a_prompt_without_a_chat_template(model):
    plain = tokenizer(template=None)
    text, question = prose(30), prose(4, 1)
    ids = plain(f"{text} Question: {question} Answer: w5")["input_ids"]
    right = plainly(model, ids)
    case = Case(text, question, right, opening="w5")
    (row,) = evaluate(model, plain, [case], {}, max_new_tokens=MOST)
    assert row.correct == 1


def test_bad_requests(model):
    triple = (prose(30), "w9", "w5")
    with pytest.raises(InputError, match="known of each, together, none; got 'all'"):
        evaluate(model, TOKENIZER, [triple], {}, known="all")
    with pytest.raises(InputError, match="max_new_tokens of 1 or more, got 0"):
        evaluate(model, TOKENIZER, [triple], {}, max_new_tokens=0)
    with pytest.raises(InputError, match="expected a case at least"):
        evaluate(model, TOKENIZER, [], {})
    with pytest.raises(InputError, match="expected memory"):
        evaluate(model, TOKENIZER, [triple], {"x": {"memory": 0}})
    with pytest.raises(InputError, match="expected parts"):
        evaluate(model, TOKENIZER, [triple], {"x": {"memory": 9, "chunk": 9, "parts": 0}})


def random_ids(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def losses(model, ids):
    """Of all tokens but the first, in one forward."""
    logits = model(ids).logits.double()
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


@pytest.mark.parametrize("chunk", [1, 7, 24])
def test_loss_of_a_whole_text(model, chunk):
    ids = random_ids(1, 24)
    reader = Reader(
        model, memory=64, schedule="fixed", chunk=chunk, scorer="streaming", chunks="fixed"
    )
    found = loss_of(reader, ids)
    assert found.tokens == 23
    assert found.mean == pytest.approx(float(losses(model, ids).mean()), rel=1e-5)
    # The context goes on as one that was read without looking at the loss.
    other = reader.read(ids)
    torch.testing.assert_close(found.context.logits, other.logits, atol=1e-6, rtol=1e-5)
    assert len(found.context.trace) == len(other.trace)


# Padding ends within a chunk, and with one.
@pytest.mark.parametrize("padding", [11, 9])
def test_loss_of_a_batch_leaves_padding_out(model, padding):
    ids = random_ids(2, 40)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    reader = Reader(model, memory=64, schedule="fixed", chunk=9, scorer="streaming", chunks="fixed")
    found = loss_of(reader, ids, mask)
    wanted = torch.cat(
        [losses(model, ids[:1, padding:]).flatten(), losses(model, ids[1:]).flatten()]
    )
    assert found.tokens == len(wanted) == 39 - padding + 39
    assert found.mean == pytest.approx(float(wanted.mean()), rel=1e-5)


def test_loss_in_bounded_memory_is_that_of_each_chunk_on_its_own(model):
    ids = random_ids(1, 30)
    # Without memory and sinks a chunk knows nothing of those before.
    reader = Reader(model, memory=1, chunk=10, scorer="local", chunks="fixed", sinks=0)
    parts = [losses(model, ids[:, k : k + 10]).flatten() for k in (0, 10, 20)]
    between = [
        functional.cross_entropy(model(ids[:, k - 10 : k]).logits[:, -1].double(), ids[:, k])[None]
        for k in (10, 20)
    ]
    wanted = torch.cat([*parts, *between])
    found = loss_of(reader, ids)
    assert found.tokens == 29
    assert found.mean == pytest.approx(float(wanted.mean()), rel=1e-5)


def test_a_single_token_has_no_loss(model):
    with pytest.raises(InputError, match="two tokens or more"):
        loss_of(Reader(model, memory=8, chunk=8), random_ids(1, 1))


@pytest.mark.parametrize("ahead", [1, 2, 13])
def test_loss_after_a_context(model, ahead):
    ids = random_ids(1, 40 + ahead)
    wanted = float(losses(model, ids)[0, -ahead:].mean())
    reader = Reader(model, memory=64, schedule="fixed", chunk=16)
    context = reader.read(ids[:, :40])
    before = [x.clone() for held in context.engine.memory for x in (held.keys, held.order)]
    assert loss_after(context, ids[0, 40:]) == pytest.approx(wanted, rel=1e-5)
    assert loss_after(context, ids[0, 40:]) == pytest.approx(wanted, rel=1e-5)
    after = [x for held in context.engine.memory for x in (held.keys, held.order)]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert loss_after(exactly(reader, ids[0, :40]), ids[0, 40:]) == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(InputError, match="tokens after it"):
        loss_after(context, ids[0, :0])


def test_exact_reads_go_beyond_what_the_model_was_trained_for(model, monkeypatch):
    monkeypatch.setattr("apportion.prefill.evaluation.held.CHUNK", 48)
    ids = random_ids(1, 150)  # of 128 positions
    held = exactly(Reader(model, memory=1, chunk=1), ids[0])
    assert held.engine.lengths() == [150] * 3
    assert held.tokens == 150
    torch.testing.assert_close(held.logits, model(ids).logits[:, -1], atol=1e-4, rtol=1e-4)


def test_forgetting_curve(model):
    ids = random_ids(1, 40)
    everything = Reader(model, memory=60, chunk=8, schedule="fixed").read(ids)
    assert forgetting(everything, 4) == pytest.approx(np.full((3, 4), 0.25))
    # Four sinks and the last sixteen.
    options = {"memory": 16, "chunk": 8, "sinks": 4, "schedule": "fixed", "chunks": "fixed"}
    newest = Reader(model, scorer="streaming", **options).read(ids)
    assert forgetting(newest, 10) == pytest.approx(
        np.tile(np.array([4, 0, 0, 0, 0, 0, 4, 4, 4, 4]) / 20, (3, 1))
    )
    first = Reader(model, scorer="prefix", **options).read(ids)
    assert forgetting(first, 2) == pytest.approx(np.tile([1.0, 0.0], (3, 1)))
    # Padding holds no place in memory.
    mask = torch.ones(2, 40, dtype=torch.int64)
    mask[0, :30] = 0
    padded = Reader(model, scorer="streaming", **options)
    padded = padded.read(ids.repeat(2, 1), attention_mask=mask)
    # All ten of one sample, twenty of the other.
    assert forgetting(padded, 10) == pytest.approx(
        np.tile(np.array([4, 0, 0, 0, 0, 0, 4, 6, 8, 8]) / 30, (3, 1))
    )
    with pytest.raises(InputError, match="parts=0"):
        forgetting(newest, 0)


def test_only_compressed_layers_are_looked_at():
    sliding = make("gemma3_text").eval()
    context = Reader(sliding, memory=9, chunk=8).read(random_ids(1, 40))
    assert forgetting(context).shape == (1, 10)
    assert retention(context).shape == (5, 1)
    assert attention_shares(context, torch.arange(3, 8)).shape == (1, 3)


def test_retention(model):
    reader = Reader(
        model, memory=12, chunk=8, scorer="streaming", schedule="fixed", chunks="fixed", sinks=4
    )
    # Of 16 kept, eight are new; at first all are.
    found = retention(reader.read(random_ids(1, 30)))
    wanted = np.array([0, 8 / 16, 8 / 16, 10 / 16])
    assert found == pytest.approx(np.tile(wanted[:, None], (1, 3)))


def test_attention_shares_are_those_of_the_whole_matrix():
    model = make("llama", attention="eager").eval()
    ids = random_ids(2, 40)
    rows = torch.arange(5, 11)
    context = Reader(model, memory=64, schedule="fixed", chunk=16, sinks=3).read(ids)
    before = [held.keys.clone() for held in context.engine.memory]
    found = attention_shares(context, rows)
    whole = torch.cat([ids, rows.expand(2, -1)], dim=1)
    wanted = []
    for attention in model(whole, output_attentions=True).attentions:
        seen = attention[:, :, 40:].double()
        parts = (seen[..., :3], seen[..., 3:40], seen[..., 40:])
        wanted.append([float(part.sum(dim=-1).mean()) for part in parts])
    assert found == pytest.approx(np.array(wanted), abs=1e-5)
    assert found.sum(axis=1) == pytest.approx(1)
    after = [held.keys for held in context.engine.memory]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert context.engine.lengths() == [40] * 3
    with pytest.raises(InputError, match="rows to look at it"):
        attention_shares(context, rows[:0])
