"""Prompts around a context, how tokens are drawn, and answers as they stream."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import nn

from apportion.errors import InputError, command_line
from apportion.prefill import Reader
from apportion.prefill.answer import ask
from apportion.prefill.decode import Sampling, draw
from apportion.prefill.prompt import Prompt
from finetune.saved import CHATML, VOCABULARY, WORDS, sentence, tokenizer
from finetune.tiny import make

GEMMA = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML
STORY = " ".join(sentence(k) for k in range(6))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return make("llama", vocab_size=VOCABULARY, max_position_embeddings=256)


def reader_of(model: nn.Module, template: str | None = CHATML, **options) -> Reader:
    given = {"memory": 32, "chunk": 64, **options}
    return Reader(model, tokenizer(template), **given)


# Prompts


@pytest.mark.parametrize("template", [CHATML, SYSTEM, GEMMA])
def test_a_template_is_split_where_the_context_goes(template):
    made = tokenizer(template)
    prompt = Prompt(made)
    question = prompt.question("who jumps?")
    split = [*prompt.opening(), *prompt.context(STORY), *question.tolist()]
    message = {"role": "user", "content": f"{STORY}\n\nwho jumps?"}
    whole = made.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert made.decode(split) == whole
    # Special tokens of the template are those tokens, not their letters.
    ids = made(whole, add_special_tokens=False)["input_ids"]
    special = set(made.all_special_ids)
    assert [k for k in split if k in special] == [k for k in ids if k in special]
    assert prompt.opening()[0] in special


def test_without_a_template_the_form_is_plain():
    made = tokenizer(None)
    prompt = Prompt(made)
    assert prompt.opening() == []
    split = [*prompt.opening(), *prompt.context("a lazy dog"), *prompt.question("who?").tolist()]
    assert made.decode(split) == "a lazy dog\n\nQuestion: who?\nAnswer:"


def test_a_first_token_is_there_where_the_tokenizer_puts_it():
    from tokenizers.processors import TemplateProcessing

    made = tokenizer(None)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    prompt = Prompt(made)
    assert prompt.opening() == [1]
    assert 1 not in prompt.context("text")
    assert 1 not in prompt.question("why?").tolist()


def test_words_of_a_template_in_a_context_are_text_as_the_user_wrote_it(model):
    """The context is put in after the template was made, so it can't rearrange it."""
    prompt = Prompt(tokenizer())
    odd = "{{ m }} \u2063question\u2063 {% endfor %}"
    assert prompt.tokenizer.decode(prompt.context(odd)) == odd
    assert prompt.tokenizer.decode(prompt.question(odd).tolist()).startswith(f"\n\n{odd}<|im_end|>")


def test_the_opening_is_what_sinks_keep(model):
    context = reader_of(model, sinks=2).read(STORY)
    assert context.ids is not None
    opening = Prompt(tokenizer()).opening()
    assert context.ids[0, : len(opening)].tolist() == opening
    for held in context.engine.memory:
        assert held is not None
        assert (held.order[:, :, :2] == torch.arange(2)).all()
    more = context.tokens
    context.extend("and more")
    assert context.ids[0, more:].tolist() == Prompt(tokenizer()).context("and more")


# Drawing


def logits_of(*shares: float) -> torch.Tensor:
    return torch.tensor(shares).log()


def drawn(logits: torch.Tensor, sampling: Sampling, count: int = 4000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    found = torch.tensor([draw(logits, sampling, generator) for _ in range(count)])
    return torch.bincount(found, minlength=len(logits)) / count


def test_without_temperature_it_is_the_likeliest():
    assert drawn(logits_of(0.2, 0.5, 0.3), Sampling(), 5).tolist() == [0, 1, 0]


def test_shares_are_those_of_the_logits_by_temperature():
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    for temperature in (1.0, 0.5, 2.0):
        wanted = shares ** (1 / temperature)
        found = drawn(logits_of(*shares.tolist()), Sampling(temperature))
        assert torch.allclose(found, wanted / wanted.sum(), atol=0.03)


def test_a_tiny_temperature_is_nearly_none():
    assert drawn(logits_of(0.2, 0.5, 0.3), Sampling(1e-44), 5).tolist() == [0, 1, 0]
    assert drawn(torch.tensor([0.0, 3e4, 60.0]), Sampling(1e-3), 5).tolist() == [0, 1, 0]


def test_top_p_draws_from_the_likeliest_that_reach_it():
    logits = logits_of(0.05, 0.5, 0.15, 0.3)
    for top_p, kept in ((0.4, [1]), (0.6, [1, 3]), (0.9, [1, 2, 3]), (1.0, [0, 1, 2, 3])):
        found = drawn(logits, Sampling(1.0, top_p))
        assert found.nonzero().flatten().tolist() == kept
        wanted = torch.tensor([0.05, 0.5, 0.15, 0.3])[kept]
        assert torch.allclose(found[kept], wanted / wanted.sum(), atol=0.03)


def test_wrong_sampling_is_refused(model):
    context = reader_of(model).read(STORY)
    for name, values in {
        "temperature": (-1.0, math.nan, math.inf),
        "top_p": (0.0, 1.5, math.nan),
        "max_new_tokens": (0, -3),
    }.items():
        for value in values:
            with pytest.raises(InputError, match=rf"expected .* such as {name}=.* got {value}"):
                context.ask("who?", **{name: value})
    with command_line({}), pytest.raises(InputError, match=r"--temperature 0\.7"):
        context.ask("who?", temperature=-1.0)
    with command_line({}), pytest.raises(InputError, match="--max-new-tokens"):
        context.ask("who?", max_new_tokens=0)
    with pytest.raises(InputError, match="sample"):
        context.ask("who?", sample=1)


# Answers


def test_an_answer_is_the_models_own_greedy_one(model):
    """Where everything fits into memory, it is what the model says to the whole prompt."""
    reader = reader_of(model, memory=180)
    answer = reader.read(sentence(3)).ask("who jumps?", max_new_tokens=6)
    made = reader.tokenizer
    message = {"role": "user", "content": f"{sentence(3)}\n\nwho jumps?"}
    prompt = Prompt(made)
    ids = [*prompt.opening(), *prompt.context(sentence(3)), *prompt.question("who jumps?").tolist()]
    assert made.decode(ids) == made.apply_chat_template(
        [message], tokenize=False, add_generation_prompt=True
    )
    expected: list[int] = []
    with torch.no_grad():
        model.eval()
        while len(expected) < 6:
            token = int(model(torch.tensor([ids + expected])).logits[0, -1].argmax())
            if token == 2:
                break
            expected.append(token)
    assert answer.ids == expected
    assert answer.text == made.decode(expected, skip_special_tokens=True)
    assert str(answer) == answer.text
    assert answer.kept_share == 1
    assert 0 < answer.first_s <= answer.seconds
    assert answer.peak_bytes > 0


def test_asking_leaves_the_context_as_it_was(model):
    context = reader_of(model).read(STORY)
    before = [(held.keys.clone(), held.order.clone()) for held in context.engine.memory if held]
    how = {"max_new_tokens": 5, "temperature": 1.0, "top_p": 0.9}
    first = context.ask("who jumps?", seed=1, **how)
    context.ask("when?", seed=2, **how)
    again = context.ask("who jumps?", seed=1, **how)
    assert again.ids == first.ids
    for (keys, order), held in zip(before, context.engine.memory, strict=True):
        assert held is not None
        assert torch.equal(keys, held.keys)
        assert torch.equal(order, held.order)
    others = {tuple(context.ask("who jumps?", seed=k, **how).ids) for k in range(2, 8)}
    assert len(others) > 1


def test_the_stopping_token_ends_an_answer_and_is_no_part_of_it(model):
    context = reader_of(model).read(STORY)
    ids = context.ask("who?", max_new_tokens=8).ids
    model.generation_config.eos_token_id = ids[3]
    try:
        assert context.ask("who?", max_new_tokens=8).ids == ids[: ids.index(ids[3])]
    finally:
        model.generation_config.eos_token_id = 2


def test_a_question_that_was_known_is_said_so_and_reread_makes_it_known(model):
    reader = reader_of(model)
    context = reader.read(STORY, questions=["who jumps?"])
    assert context.ask("who jumps?", max_new_tokens=2).known
    unknown = context.ask("when?", max_new_tokens=4)
    assert not unknown.known
    assert unknown.kept_share == pytest.approx(36 / context.tokens)
    again = context.ask("when?", max_new_tokens=4, reread=True)
    assert again.known
    knowing = reader.read(STORY, questions=["when?"]).ask("when?", max_new_tokens=4)
    assert again.ids == knowing.ids
    assert [len(ids) for ids in context.questions] == [len(reader.question("who jumps?"))]


def test_questions_that_are_none_or_too_long(model):
    reader = reader_of(model)
    context = reader.read(STORY)
    for empty in ("", "  \n", torch.tensor([], dtype=torch.int64)):
        with pytest.raises(InputError, match="expected a question"):
            context.ask(empty)
    with pytest.raises(InputError, match="the model's 256 positions behind 36 entries of memory"):
        context.ask("why? " * 200)
    with pytest.raises(InputError, match="256 positions"):
        context.ask("why?", max_new_tokens=256)
    # A known one is refused before anything is read.
    began = time.perf_counter()
    with pytest.raises(InputError, match="256 positions behind 36 entries"):
        reader.read(STORY * 1000, questions=["who?", "why? " * 200])
    assert time.perf_counter() - began < 5
    # Where all of a text is less than memory, there is more room.
    text = sentence(1)
    room = 256 - len(reader.with_prompt().opening()) - len(reader.with_prompt().context(text))
    long = torch.full((room - 1,), 7)
    wide = reader_of(model, memory=180)
    assert wide.read(text, questions=[long]).ask(long, max_new_tokens=1).known
    with pytest.raises(InputError, match="256 positions"):
        wide.read(text, questions=[torch.full((room,), 7)])
    with pytest.raises(InputError, match="256 positions behind"):
        reader_of(model, positions="original").read(STORY * 4, questions=["who?"])
    with pytest.raises(InputError, match="no tokenizer"):
        Reader(model, memory=32, chunk=16).read(torch.ones(1, 40, dtype=torch.int64)).ask("why?")


# Streaming


def test_pieces_are_the_answer_and_come_as_it_grows(model):
    context = reader_of(model).read(STORY)
    pieces: list[str] = []
    answer = context.ask("who?", max_new_tokens=12, temperature=1.5, seed=4, stream=pieces.append)
    assert "".join(pieces) == answer.text
    assert len(pieces) > 3
    assert all(pieces)


def test_characters_are_whole_when_they_come(model, monkeypatch):
    """A character of several tokens is shown when the last of its bytes has come."""
    from apportion.prefill import answer as module
    from apportion.prefill.decode import Generated

    reader = reader_of(model)
    context = reader.read(STORY)
    ids = reader.with_prompt().context("né 🦊!")
    assert len(ids) > len("né 🦊!")

    def speak(engine, question, start, most, stop, sampling, each, held):
        for end in range(1, len(ids) + 1):
            each(ids[:end])
        return Generated(ids, 0.1, 0.2)

    monkeypatch.setattr(module, "generate", speak)
    pieces: list[str] = []
    assert ask(context, "who?", stream=pieces.append).text == "né 🦊!"
    assert "".join(pieces) == "né 🦊!"
    assert not [piece for piece in pieces if "\ufffd" in piece]
    # What never becomes a character is shown in the end.
    broken = ids[: ids.index(reader.with_prompt().context("🦊")[0]) + 1]
    pieces.clear()
    ids[:] = broken
    assert ask(context, "who?", stream=pieces.append).text == "né \ufffd"
    assert "".join(pieces) == "né \ufffd"


def test_the_words_of_the_tests_are_in_the_vocabulary():
    assert all(tokenizer().decode(tokenizer()(word)["input_ids"]) == word for word in WORDS)


# The peak is the question's own in the short ones, the last token's in the long ones.
@pytest.mark.parametrize(
    ("most", "stops_at"),
    [(1, None), (2, None), (7, None), (7, 4), (7, 1), (60, None), (90, 60)],
)
def test_the_peak_of_an_answer_is_that_of_all_its_forwards(model, most, stops_at, monkeypatch):
    """Only the first and the last forward are counted; a meter around all of them sees no more."""
    from apportion.meter import LiveStorages
    from apportion.prefill import decode

    context = reader_of(model).read(STORY)
    question = torch.arange(3, 9)
    said: list[int] = []

    def draw(logits, sampling, generator):
        said.append(len(said))
        return 0 if stops_at == len(said) else 5

    monkeypatch.setattr(decode, "draw", draw)
    for held in (context.held(), ()):
        said.clear()
        fork = context.engine.fork(0)
        with LiveStorages(held) as meter:
            found = decode.generate(
                fork, question, context.tokens, most, {0}, decode.Sampling(), None, held
            )
        assert len(found.ids) == (most if stops_at is None else stops_at - 1)
        assert found.peak_bytes == pytest.approx(meter.peak, abs=64)
