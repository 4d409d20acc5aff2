"""Text folders and the supply counted from them or stated by the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError, InputWarning
from apportion.mixture.supply import Supply, count, parse_supply
from apportion.mixture.text import documents, find_text

FRENCH = "Le chat dort.\nIl rêve.\n\n\nLa pluie tombe.\n"
HINDI = ["नमस्ते दुनिया", "बिल्ली सो रही है"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "text"
    (root / "romance").mkdir(parents=True)
    (root / "indic").mkdir()
    (root / ".cache").mkdir()
    (root / "manifest.json").write_text("{}")
    (root / "romance" / "fr.txt").write_text(FRENCH, encoding="utf-8")
    lines = [json.dumps({"text": "Ciao, gatto.", "id": 1}), "", json.dumps("Piove.")]
    (root / "romance" / "it.jsonl").write_text("\n".join(lines))
    pd.DataFrame({"text": [HINDI[0], None, " ", HINDI[1]]}).to_parquet(
        root / "indic" / "hi.parquet"
    )
    return root


def test_files_and_documents(corpus: Path) -> None:
    files = find_text(corpus)
    assert [(f.family, f.language) for f in files] == [
        ("indic", "hi"),
        ("romance", "fr"),
        ("romance", "it"),
    ]
    assert list(documents(files[0].path)) == HINDI
    assert list(documents(files[1].path)) == ["Le chat dort.\nIl rêve.", "La pluie tombe."]
    assert list(documents(files[2].path)) == ["Ciao, gatto.", "Piove."]


def test_bytes_and_characters(corpus: Path) -> None:
    supply = count(corpus)
    french = next(c for c in supply.counts if c.language == "fr")
    texts = ["Le chat dort.\nIl rêve.", "La pluie tombe."]
    assert french.documents == 2
    assert french.characters == sum(map(len, texts))
    assert french.bytes == sum(len(text.encode()) for text in texts) == french.characters + 1
    assert french.tokens is None
    assert supply.families == ("indic", "romance")
    for use in (dict, list, len, bool, lambda s: s["indic"], lambda s: s.aligned(["indic"])):
        with pytest.raises(InputError, match="counts bytes only: count it again with tokenizer="):
            use(supply)
    assert "tokens" not in supply.to_frame()


def test_tokens_estimated_from_bytes_per_token(corpus: Path) -> None:
    sizes = {c.language: c.bytes for c in count(corpus).counts}
    supply = count(corpus, bytes_per_token={"indic": 8.0, "romance": 4.0})
    assert supply["indic"] == sizes["hi"] / 8
    assert supply["romance"] == (sizes["fr"] + sizes["it"]) / 4
    assert supply.bytes_per_token() == pytest.approx({"indic": 8.0, "romance": 4.0})
    assert supply.languages("romance") == {"fr": sizes["fr"] / 4, "it": sizes["it"] / 4}
    with pytest.raises(InputError, match="missing: romance"):
        count(corpus, bytes_per_token={"indic": 8.0})
    with pytest.raises(InputError, match="not positive: indic: 0"):
        count(corpus, bytes_per_token=0.0)
    with pytest.raises(InputError, match="not both"):
        count(corpus, tokenizer="x", bytes_per_token=4.0)


def byte_tokenizer(path: Path) -> Any:
    """A tokenizer whose tokens are bytes, saved with truncation and padding switched on."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra sweep")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: k for k, char in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(path))
    return tokenizer


@pytest.mark.parametrize("as_folder", [False, True])
def test_tokens_counted_by_a_tokenizer(corpus: Path, tmp_path: Path, as_folder: bool) -> None:
    byte_tokenizer(tmp_path / "tokenizer.json")
    supply = count(corpus, tmp_path if as_folder else tmp_path / "tokenizer.json")
    for one in supply.counts:
        assert one.tokens == one.bytes
    assert supply.bytes_per_token() == {"indic": 1.0, "romance": 1.0}
    assert supply.to_frame()["bytes_per_token"].tolist() == [1.0, 1.0, 1.0]


def test_tokenizers_that_cannot_be_used(corpus: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra sweep")
    with pytest.raises(InputError, match="is missing"):
        count(corpus, tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(InputError, match=r"expected a tokenizer\.json of the tokenizers library"):
        count(corpus, broken)
    blind = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"z": 0}, merges=[]))
    blind.save(str(broken))
    with pytest.raises(InputError, match=r"hi\.parquet: the tokenizer .* finds no tokens"):
        count(corpus, broken)


def test_one_language_in_two_files(corpus: Path) -> None:
    before = count(corpus, bytes_per_token=1.0).languages("romance")["fr"]
    (corpus / "romance" / "fr.jsonl").write_text('{"text": "Oui."}\n')
    supply = count(corpus, bytes_per_token=1.0)
    assert supply.languages("romance")["fr"] == before + 4
    assert len(supply.counts) == 3


def test_saved_and_loaded(corpus: Path, tmp_path: Path) -> None:
    supply = count(corpus, bytes_per_token=4.0)
    supply.save(tmp_path / "supply.json")
    again = parse_supply(str(tmp_path / "supply.json"))
    assert again == supply
    assert again.counts == supply.counts
    assert again.method == supply.method
    bytes_only = count(corpus)
    bytes_only.save(tmp_path / "bytes.json")
    assert Supply.load(tmp_path / "bytes.json").counts == bytes_only.counts


def test_the_users_forms(tmp_path: Path) -> None:
    expected = {"romance": 3e9, "indic": 4e8}
    (tmp_path / "s.json").write_text('{"romance": "3B", "indic": 4e8}')
    for given in (
        "romance=3B, indic=400M",
        {"romance": 3e9, "indic": "400M"},
        {"romance": 3_000_000_000, "indic": np.float64(4e8)},
        tmp_path / "s.json",
        str(tmp_path / "s.json"),
        Supply(expected),
    ):
        supply = parse_supply(given)
        assert dict(supply) == expected
        np.testing.assert_array_equal(supply.aligned(["indic", "romance"]), [4e8, 3e9])
    with pytest.raises(InputError, match="none for slavic"):
        supply.aligned(["slavic", "indic"])


@pytest.mark.parametrize(
    "given",
    [
        "romance=",
        "romance=3B,indic",
        "romance=3B,romance=4B",
        "=3B",
        "romance=-1",
        "romance=0",
        "romance=nan",
        {},
        {"romance": None},
        {"romance": True},
        {"romance": [1]},
        {"romance": float("inf")},
        {"romance": 10**400},
        "absent.json",
        "romance",
    ],
)
def test_wrong_supplies(given: Any) -> None:
    with pytest.raises(InputError):
        parse_supply(given)


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "{",
        "{}",
        '{"kind": "apportion supply", "version": 2}',
        '{"kind": "apportion supply", "version": 1}',
        '{"kind": "apportion supply", "version": 1, "tokens": {}, "texts": []}',
        '{"kind": "apportion supply", "version": 1, "tokens": {"a": "x"}, "texts": []}',
        '{"kind": "apportion supply", "version": 1, "tokens": {"a": 1}, "texts": [{"a": 1}]}',
        '{"kind": "apportion supply", "version": 1, "tokens": {"a": 1}, "texts": [{"family": "a", '
        '"language": "b", "documents": -1, "bytes": 1, "characters": 1, "tokens": 1}]}',
    ],
)
def test_wrong_supply_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "supply.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"supply\.json"):
        Supply.load(path)


def write(corpus: Path, name: str, content: bytes) -> Path:
    path = corpus / "romance" / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("es.txt", b"", "found an empty file"),
        ("es.txt", b" \n\n\t\n", "found only blanks"),
        ("es.txt", b"hola\nni\xf1o\n", r"line 2: .* not UTF-8 at offset 7"),
        ("es.txt", b"\xef\xbb\xbfhola\nni\xf1o\n", r"line 2: .* not UTF-8 at offset 10"),
        ("es.txt", b"hola\nh\0la", "zero byte at offset 6"),
        ("es.txt", "hola".encode("utf-16"), "zero byte at offset 3"),
        ("es.jsonl", b'{"text": "a"}\n{"text": ', "line 2: expected one JSON object a line"),
        ("es.jsonl", b'{"body": "a"}\n', "line 1: expected the key 'text', found the keys: body"),
        ("es.jsonl", b'{"text": 3}\n', "line 1: expected text under 'text', found int"),
        ("es.jsonl", b'{"text": "\\ud800"}\n', "half of a surrogate pair"),
        ("es.jsonl", b"[" * 100_000 + b"\n", "line 1: expected one JSON object a line"),
        ("es.parquet", b"PAR1 no", "expected a Parquet file"),
    ],
)
def test_text_that_cannot_be_used(corpus: Path, name: str, content: bytes, said: str) -> None:
    path = write(corpus, name, content)
    with pytest.raises(InputError, match=said) as caught:
        count(corpus)
    assert str(path) in str(caught.value)


def test_parquet_without_text(corpus: Path) -> None:
    path = corpus / "indic" / "bn.parquet"
    pd.DataFrame({"body": ["x"]}).to_parquet(path)
    with pytest.raises(InputError, match="expected a column 'text', found: body"):
        count(corpus)
    pd.DataFrame({"text": [1]}).to_parquet(path)
    with pytest.raises(InputError, match="expected text in column 'text', found int64"):
        count(corpus)


def test_folders_that_are_no_corpus(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        find_text(tmp_path / "absent")
    with pytest.raises(InputError, match="is a file"):
        find_text(corpus / "manifest.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no family folders"):
        find_text(tmp_path / "empty")
    (corpus / "de.txt").write_text("Hallo")
    with pytest.raises(InputError, match=r"de\.txt belongs to no family: move it"):
        find_text(corpus)
    (corpus / "de.txt").unlink()
    (corpus / "slavic").mkdir()
    with pytest.raises(InputError, match=r"slavic has no \.txt"):
        find_text(corpus)


def test_other_files_are_passed_over_and_said(corpus: Path) -> None:
    (corpus / "romance" / "fr.txt.gz").write_bytes(b"x")
    (corpus / "romance" / ".DS_Store").write_bytes(b"x")
    with pytest.warns(InputWarning, match=r"not read, .*: fr\.txt\.gz$"):
        assert len(find_text(corpus)) == 3
