"""Text is checked to the byte, packed without loss, held out without overlap."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from apportion.errors import InputError
from apportion.mixture.sweep.corpus import Corpus, held_out, prepare_corpus, token_bytes
from apportion.mixture.sweep.texts import find_texts, read_pieces
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
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "holds no text"),
        (b"good text\0more", "binary file, NUL at byte 9"),
        (b"caf\xe9 au lait", "not UTF-8 at byte 3"),
        (b"\xef\xbb\xbfcaf\xe9 au lait", "not UTF-8 at byte 6"),
        ("é".encode() * 5 + b"\xc3", "not UTF-8 at byte 10"),
    ],
)
def test_a_bad_file_is_refused_with_its_byte(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "xx.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_pieces(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [('{"text": 3}', "line 2: expected an object"), ("[1, 2", "line 2: not JSON"), ("5", "line 2")],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "xx.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(InputError, match=words):
        read_pieces(path)


def test_jsonl_and_parquet_give_the_text_of_txt(tmp_path: Path) -> None:
    import pandas as pd

    texts = ["one line", "two\nlines", "drei"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    pd.DataFrame({"text": texts}).to_parquet(tmp_path / "b.parquet")
    whole = "".join(text + "\n" for text in texts)
    assert "".join(read_pieces(tmp_path / "a.jsonl")) == whole
    assert "".join(read_pieces(tmp_path / "b.parquet")) == whole
    pd.DataFrame({"words": texts}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(
        InputError, match=r"c.parquet: expected a Parquet file with a string column"
    ):
        read_pieces(tmp_path / "c.parquet")


def test_folders_without_families_or_languages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a readable folder"):
        find_texts(tmp_path / "missing")
    with pytest.raises(InputError, match="no families"):
        find_texts(tmp_path)
    (tmp_path / "romance").mkdir()
    with pytest.raises(InputError, match="romance: no text"):
        find_texts(tmp_path)
    (tmp_path / "romance/fr.txt").write_text("bonjour")
    (tmp_path / "romance/fr.jsonl").write_text('{"text": "bonjour"}')
    with pytest.raises(InputError, match="'fr' is also in"):
        find_texts(tmp_path)


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
