"""Text is checked to the byte, packed without loss, held out without overlap."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tokenizers

from apportion.errors import InputError
from apportion.mixture.supply import count
from apportion.mixture.sweep.corpus import Corpus, held_out, prepare_corpus, token_bytes
from apportion.mixture.text import PIECE, pieces
from sweeptext import TINY, write_text


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_text(folder / "text")
    return folder


@pytest.fixture(scope="module")
def corpus(home: Path) -> Corpus:
    return prepare_corpus(home / "text", home / "cache", TINY)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("xx.txt", b""),
        ("xx.txt", b" \n\n"),
        ("xx.txt", b"good text\0more"),
        ("xx.txt", b"caf\xe9 au lait"),
        ("xx.txt", b"\xef\xbb\xbfcaf\xe9 au lait"),
        ("xx.txt", "é".encode() * 5 + b"\xc3"),
        ("xx.jsonl", b'{"text": "fine"}\n{"text": 3}\n'),
        ("xx.jsonl", b'{"text": "fine"}\n{"body": "a"}\n'),
        ("xx.jsonl", b'{"text": "fine"}\n[1, 2\n'),
        ("xx.jsonl", b'{"text": ""}\n'),
        ("xx.parquet", b"PAR1 no"),
    ],
)
def test_sweep_and_count_refuse_a_bad_file_with_the_same_words(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / "text/alpha" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(InputError) as counted:
        count(tmp_path / "text")
    with pytest.raises(InputError) as swept:
        prepare_corpus(tmp_path / "text", tmp_path / "cache", TINY)
    assert str(swept.value) == str(counted.value)
    assert str(path) in str(swept.value)
    assert not (tmp_path / "cache/corpus.json").exists()


def test_jsonl_and_parquet_give_the_text_of_txt(tmp_path: Path) -> None:
    texts = ["one line", "two\nlines", "", "drei"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    pd.DataFrame({"text": [*texts, None]}).to_parquet(tmp_path / "b.parquet")
    whole = "".join(text + "\n" for text in texts)
    assert "".join(pieces(tmp_path / "a.jsonl")) == whole
    assert "".join(pieces(tmp_path / "b.parquet")) == whole


def test_pieces_are_the_file_cut_at_line_ends(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["é" * int(n) + "\n" for n in rng.integers(0, 9_000, 30)]
    whole = "".join([*lines, " the rest, without an end"])
    (tmp_path / "xx.txt").write_text(whole, "utf-8")
    found = pieces(tmp_path / "xx.txt")
    assert "".join(found) == whole
    assert len(found) > 3
    assert all(len(piece) > PIECE and piece.endswith("\n") for piece in found[:-1])
    assert all(len(piece) <= PIECE + 9_001 for piece in found)


def test_two_files_of_one_language_are_one_text(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    write_text(tmp_path / "split")
    path = tmp_path / "split/beta/ba.txt"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    rows = "".join(json.dumps({"text": line.rstrip("\n")}) + "\n" for line in lines[:400])
    (tmp_path / "split/beta/ba.jsonl").write_text(rows)
    path.write_text("".join(lines[400:]), "utf-8")
    one = prepare_corpus(tmp_path / "text", tmp_path / "one", TINY)
    two = prepare_corpus(tmp_path / "split", tmp_path / "two", TINY)
    assert two.families["beta"].languages == ("ba",)
    # The vocabulary is another, because it is trained on other pieces of the text.
    tokens = one.families["beta"].unique_tokens
    assert two.families["beta"].unique_tokens == pytest.approx(tokens, rel=0.15)
    assert two.digest != one.digest


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write the tokenized text to .*cache"):
        prepare_corpus(tmp_path / "text", tmp_path / "cache", TINY)


def test_a_family_too_small_to_split_is_named(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    (tmp_path / "text/gamma/ga.txt").write_text("абвг абвг\n" * 5)
    with pytest.raises(InputError, match=r"family gamma: .* tokens"):
        prepare_corpus(tmp_path / "text", tmp_path / "cache", TINY)


def test_blocks_hold_the_text_without_gaps(home: Path, corpus: Corpus) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "cache/tokenizer.json"))
    family = corpus.families["beta"]
    text = (home / "text/beta/ba.txt").read_text("utf-8")
    rows = np.concatenate([np.asarray(part) for part in (*family.train, family.valid)])
    # every block is a piece of the text, and together they are all of it but the rest of a block
    assert all(tokenizer.decode(row.tolist()).strip() in text for row in rows[::7])
    stream = len(tokenizer.encode(text).ids)
    assert rows.shape[0] == (stream - 1) // TINY.length


def test_the_split_is_held_out(corpus: Corpus) -> None:
    for family in corpus.families.values():
        total = len(family.valid) + sum(len(part) for part in family.train)
        assert len(family.valid) == min(TINY.validation_tokens // TINY.length, total // 10)


def test_bytes_per_token_is_that_of_the_split(home: Path, corpus: Corpus) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "cache/tokenizer.json"))
    sizes = token_bytes(tokenizer)
    text = "абвг kl\n"
    assert sizes[tokenizer.encode(text).ids].sum() == len(text.encode())
    family = corpus.families["gamma"]
    expected = sizes[np.asarray(family.valid)[:, 1:]].mean()
    assert family.bytes_per_token == pytest.approx(expected, rel=1e-12)


def test_marks_stay_with_their_letters(corpus: Corpus, home: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(home / "cache/tokenizer.json"))
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("हिन्दी में")]
    assert len(words) == 2


@pytest.mark.parametrize(("blocks", "wanted"), [(100, 0), (100, 1), (100, 10), (999, 90), (40, 20)])
def test_held_out_blocks_are_as_many_as_wanted(blocks: int, wanted: int) -> None:
    mask = held_out(blocks, wanted)
    assert mask.sum() == wanted
    if wanted >= 32:
        thirds = [part.sum() for part in np.array_split(mask, 3)]
        assert max(thirds) - min(thirds) <= 16


def test_the_cache_is_kept_until_text_or_settings_change(home: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    first = prepare_corpus(tmp_path / "text", tmp_path / "cache", TINY)
    stamp = (tmp_path / "cache/tokenizer.json").stat().st_mtime_ns
    prepare_corpus(tmp_path / "text", tmp_path / "cache", TINY)
    assert (tmp_path / "cache/tokenizer.json").stat().st_mtime_ns == stamp
    path = tmp_path / "text/beta/ba.txt"
    path.write_text(path.read_text("utf-8") + "klmn\n", "utf-8")
    second = prepare_corpus(tmp_path / "text", tmp_path / "cache", TINY)
    assert second.digest != first.digest
    assert (tmp_path / "cache/tokenizer.json").stat().st_mtime_ns > stamp
