"""Tasks made from real text: what is hidden stands where it should, once, and can be checked."""

from __future__ import annotations

import re
from pydoc_data import topics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InputError
from apportion.prefill.evaluation import (
    Case,
    Haystack,
    cloze,
    matches,
    needle,
    recall,
    wilson,
)
from apportion.prefill.evaluation.case import cases_of
from prefill.worded import tokenizer

# Real prose: paragraphs of the language reference, a line each.
TEXT = "\n".join(
    re.sub(r"\s+", " ", paragraph).strip()
    for name in sorted(topics.topics)
    for paragraph in topics.topics[name].split("\n\n")
    if len(paragraph) > 200 and not paragraph.startswith("     ")
)


@pytest.fixture(scope="module")
def hay():
    """Words stand for tokens."""
    return Haystack(TEXT, tokenizer())


def words(text: str) -> int:
    return len(text.split())


def test_pieces_are_the_text(hay):
    assert "".join(hay.pieces) == TEXT
    assert len(hay.pieces) > 500
    assert hay.starts[-1] == words(TEXT)
    assert all(piece.strip() for piece in hay.pieces)
    assert [hay.count(piece) for piece in hay.pieces[:50]] == [
        b - a for a, b in zip(hay.starts[:50], hay.starts[1:51], strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two! Three", ["One. ", "Two! ", "Three"]),
        ("v3.9 is out.\nNext line\n\nLast.", ["v3.9 is out.\n", "Next line\n\n", "Last."]),
        ("He said “no.” Then left.", ["He said “no.” ", "Then left."]),
        ("  a", ["a"]),
    ],
)
def test_sentences(text, pieces):
    assert Haystack(text, tokenizer()).pieces == pieces


def test_cuts_end_with_the_sentence_that_fills_them(hay):
    for start in (0, 17, 200):
        for tokens in (1, 100, 1500):
            cut = hay.cut(start, tokens)
            found = words(hay.hide(cut, []))
            assert cut.start == start
            assert found >= tokens
            assert found - words(hay.pieces[cut[-1]]) < tokens
    whole = hay.cut(0, hay.starts[-1])
    assert hay.hide(whole, []) == TEXT
    assert hay.anywhere(hay.starts[-1], Random(3)) == whole


def test_a_cut_from_anywhere_fits():
    class Last(Random):
        def randint(self, a, b):
            return b

    hay = Haystack("One two. Three four. Five six seven. Eight.", tokenizer())
    assert hay.anywhere(4, Last()) == range(2, 4)
    assert hay.anywhere(5, Last()) == range(1, 3)
    assert hay.anywhere(8, Last()) == range(4)


def test_a_text_that_is_too_short_is_refused(hay):
    with pytest.raises(InputError, match=r"of \d+ tokens to cut a context from, got one of"):
        hay.anywhere(hay.starts[-1] + 1, Random(0))
    with pytest.raises(InputError, match="expected a text, got an empty one"):
        Haystack(" \n ", tokenizer())
    with pytest.raises(InputError, match="to cut a context from"):
        cloze(hay, hay.starts[-1] + 1, 0.5, 0)


def test_hidden_in_the_order_given_and_between_sentences(hay):
    cut = hay.cut(10, 300)
    bare = hay.hide(cut, [])
    text = hay.hide(cut, [(0.0, "FIRST. "), (1.0, "LAST. "), (0.5, "ONE. "), (0.5, "TWO. ")])
    assert text.startswith("FIRST. ")
    assert re.search(r"[.!?]\S*\s+ONE\. TWO\. ", text)
    assert text.endswith("LAST. ")
    assert re.sub(r"(FIRST|LAST|ONE|TWO)\. ", "", text) == bare
    # The last piece of a text has no blank behind it.
    short = Haystack("One. Two.", tokenizer())
    assert short.hide(short.cut(0, 2), [(1.0, "N.")]) == "One. Two. N."


@pytest.mark.parametrize("length", [200, 1000])
@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_needle(hay, length, depth):
    case = needle(hay, length, depth, 3)
    assert case == needle(hay, length, depth, 3)
    assert case != needle(hay, length, depth, 4)
    assert (case.task, case.length, case.depth) == ("needle", length, depth)
    assert re.fullmatch(r"[1-9]\d{4}", case.answer)
    assert case.text.count(case.answer) == 2
    place = re.fullmatch(r"What is the pass key of (\w+)\?", case.question)[1]
    assert case.opening == f"The pass key of {place} is"
    sentence = f"{case.opening} {case.answer}. Remember it: {case.answer}.\n"
    assert case.text.count(sentence) == 1
    # Real text around it, unchanged, as long as asked for and as deep to within a sentence.
    assert case.text.replace(sentence, "").strip() in TEXT
    assert words(case.text) >= length
    if depth < 1:
        assert words(case.text) - words(Haystack(case.text, tokenizer()).pieces[-1]) < length
    before = words(case.text[: case.text.index(sentence)])
    assert abs(before - depth * length) < 60


def test_recall(hay):
    found = recall(hay, 800, 0.3, 5, pairs=6)
    assert found == recall(hay, 800, 0.3, 5, pairs=6)
    assert found[0].text != recall(hay, 800, 0.3, 6, pairs=6)[0].text
    assert len({case.text for case in found}) == 1
    text = found[0].text
    assert words(text) - words(Haystack(text, tokenizer()).pieces[-1]) < 800 <= words(text)
    assert len({case.answer for case in found}) == 6
    assert found[0].depth == 0.3
    # The others are where six evenly spread ones would be, but for the nearest to 0.3.
    assert [case.depth for case in found[1:]] == [0.083, 0.417, 0.583, 0.75, 0.917]
    for case in found:
        key = re.fullmatch(r'What number stands behind "(\w+):" in the text\?', case.question)[1]
        assert case.opening == f"{key}:"
        line = f"\n{key}: {case.answer}\n"
        assert text.count(line) == 1
        assert abs(words(text[: text.index(line)]) - case.depth * 800) < 70
    bare = re.sub(r"\n\w+: \d{5}\n\n", "", text)
    assert bare.strip() in TEXT
    assert len(recall(hay, 300, 0.5, 0, pairs=1)) == 1
    with pytest.raises(InputError, match="pairs=0"):
        recall(hay, 300, 0.5, 0, pairs=0)


@pytest.mark.parametrize("depth", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(6))
def test_cloze(hay, depth, seed):
    case = cloze(hay, 1200, depth, seed)
    assert case == cloze(hay, 1200, depth, seed)
    assert case.text in TEXT
    assert 0 <= words(case.text) - 1200 < 120
    cue = case.opening.removeprefix('"')
    assert cue not in case.question
    # One right answer: it follows the cue, and both stand once.
    assert case.text.count(cue) == 1
    assert case.text.count(f"{cue} {case.answer}") == 1
    assert len(re.findall(rf"\b{re.escape(case.answer)}\b", case.text, re.IGNORECASE)) == 1
    assert len(re.findall(rf"\b{re.escape(case.answer)}\b", TEXT, re.IGNORECASE)) <= 5
    assert len(re.findall(r"\w+", cue)) >= 8
    assert abs(words(case.text[: case.text.index(cue)]) - depth * 1200) < 120


def test_cloze_seeds_differ(hay):
    found = {cloze(hay, 1200, 0.5, seed).answer for seed in range(8)}
    assert len(found) >= 6


def test_cloze_of_a_document_without_such_sentences():
    dull = Haystack(
        "the same words again and again and again and again and so on. " * 50, tokenizer()
    )
    with pytest.raises(InputError, match="before a word used once"):
        cloze(dull, 200, 0.5, 0)


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        (" 48213.", "48213", True),
        ("It is 48213", "48213", True),
        ("148213", "48213", False),
        ("482130", "48213", False),
        ("4,821", "821", False),
        ("821.5", "821", False),
        ("3.95", "3.9", False),
        ("13.9", "3.9", False),
        ("3.9.", "3.9", True),
        ("version 3.9, and", "3.9", True),
        ("NEW   york\nit is", "New York", True),
        ("Newyork", "New York", False),
        ("it is C++.", "c++", True),
        ("a.b", "axb", False),
        ("axb", "a.b", False),
        ("", "x", False),
    ],
)
def test_matches(said, answer, right):
    assert matches(said, answer) is right


def test_wilson():
    # Table values: Newcombe, Statistics in Medicine 1998, examples (a), (c) and (d).
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share(pair):
    correct, trials = pair
    low, high = wilson(correct, trials)
    assert 0 <= low <= correct / trials <= high <= 1
    other = wilson(trials - correct, trials)
    assert other == pytest.approx((1 - high, 1 - low))


def test_cases_are_triples_too():
    case = Case("t", "q", "a", depth=0.5)
    assert cases_of([("t", "q", "a"), case]) == [Case("t", "q", "a"), case]
    with pytest.raises(InputError, match="got none"):
        cases_of([])
    for wrong, kinds in (
        ("text", "str"),
        (("t", "q", 5), "str, str, int"),
        (("t", "q"), "str, str"),
    ):
        with pytest.raises(InputError, match=rf"triples of strings.*got \({kinds}\)"):
            cases_of([wrong])
    with pytest.raises(InputError, match="got an empty answer"):
        Case("t", "q", " ")
