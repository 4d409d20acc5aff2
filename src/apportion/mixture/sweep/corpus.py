"""The tokenized corpus of a sweep: one vocabulary, packed blocks, held-out blocks.

A byte-level BPE is trained on equal bytes of every family, each language's text is
packed into blocks of ``length`` + 1 tokens (the last token of a block is the first
of the next, so every token is a target once), and stretches of consecutive blocks
spread over the text are held out for validation before any run sees them. The
held-out split is the family's own and never changes with the training ratios.

Within a family, languages count in proportion to size^exponent, in training and in
validation alike. Letters and their marks stay together in the pre-tokenizer: the
usual pattern cuts Indic words at every vowel sign.

The cache holds ``tokenizer.json``, one ``FAMILY.{train,valid}.npy`` of uint16 per
family and ``corpus.json``, written last: without it, or with another key, the
corpus is built again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt16

from apportion.errors import InputError, option, require
from apportion.files import atomic_write
from apportion.mixture.sweep.shares import block_counts
from apportion.mixture.text import TextFile, digest_text, find_text, pieces

FORMAT = 1
STRETCH = 16
"""Blocks held out in a row: long enough that validation is not interleaved with training."""
WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+"


@dataclass(frozen=True)
class CorpusSettings:
    """What besides the text decides the tokens.

    ``vocab`` entries; ``length`` tokens a block; ``validation_tokens`` held out per
    family (at most a tenth of it); ``language_exponent`` 1 for languages in proportion
    to their size, 0 for equal shares; ``sample_bytes`` of each family for the tokenizer.
    """

    vocab: int = 1024
    length: int = 128
    validation_tokens: int = 32_768
    language_exponent: float = 1.0
    sample_bytes: int = 2_000_000

    def __post_init__(self) -> None:
        if not 257 <= self.vocab <= 65_536:
            raise InputError(f"vocab: expected 257 to 65536 entries; got {self.vocab}")
        if self.length < 8 or self.validation_tokens < self.length:
            raise InputError(
                "length: expected at least 8 tokens, and validation_tokens of a block or more; "
                f"got {self.length} and {self.validation_tokens}"
            )


@dataclass(frozen=True)
class FamilyTokens:
    """Blocks of one family: ``train[k]`` are the blocks of language k, (blocks, length + 1)."""

    languages: tuple[str, ...]
    weights: Float[np.ndarray, " languages"]
    train: tuple[UInt16[np.ndarray, "_ time"], ...]
    valid: UInt16[np.ndarray, "held time"]
    bytes_per_token: float

    @property
    def unique_tokens(self) -> int:
        """Training tokens before any repeats."""
        return sum(part.shape[0] * (part.shape[1] - 1) for part in self.train)


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus; ``digest`` names the text, ``tokenizer`` its vocabulary."""

    settings: CorpusSettings
    digest: str
    tokenizer: str
    families: Mapping[str, FamilyTokens]


def prepare_corpus(folder: Path, cache: Path, settings: CorpusSettings | None = None) -> Corpus:
    """Tokenize the text in ``folder`` into ``cache``, or take what is there if nothing changed.

    Raises InputError for text that cannot be used (see ``mixture.text``), for a family too
    small to hold out a split, and for a cache that cannot be written.
    """
    settings = settings or CorpusSettings()
    texts = find_text(folder)
    digest = digest_text(texts)
    meta = _read_meta(cache)
    if meta is None or meta["digest"] != digest or meta["settings"] != asdict(settings):
        _build(texts, digest, cache, settings)
    return load_corpus(cache)


def load_corpus(cache: Path) -> Corpus:
    """Corpus from its cache folder, token arrays memory-mapped."""
    meta = _read_meta(cache)
    if meta is None:
        raise InputError(f"{cache}: no prepared corpus; expected corpus.json; run the sweep again")
    families: dict[str, FamilyTokens] = {}
    for name, entry in meta["families"].items():
        train = np.load(cache / f"{name}.train.npy", mmap_mode="r")
        bounds = np.cumsum(entry["blocks"])[:-1]
        families[name] = FamilyTokens(
            languages=tuple(entry["languages"]),
            weights=np.array(entry["weights"], dtype=np.float64),
            train=tuple(np.split(train, bounds)),
            valid=np.load(cache / f"{name}.valid.npy", mmap_mode="r"),
            bytes_per_token=float(entry["bytes_per_token"]),
        )
    return Corpus(CorpusSettings(**meta["settings"]), meta["digest"], meta["tokenizer"], families)


def _read_meta(cache: Path) -> dict[str, Any] | None:
    try:
        meta: Any = json.loads((cache / "corpus.json").read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("format") == FORMAT else None


def _build(texts: Sequence[TextFile], digest: str, cache: Path, settings: CorpusSettings) -> None:
    _clear(cache)
    text: dict[str, dict[str, list[str]]] = {}
    for file in texts:
        text.setdefault(file.family, {}).setdefault(file.language, []).extend(pieces(file.path))
    tokenizer = _train_tokenizer(text, settings)
    serial: str = tokenizer.to_str()
    with atomic_write(cache / "tokenizer.json") as handle:
        handle.write(serial)
    sizes = token_bytes(tokenizer)
    families: dict[str, dict[str, object]] = {}
    for family, languages in text.items():
        streams = {name: _encode(tokenizer, parts) for name, parts in languages.items()}
        families[family] = _pack(family, streams, sizes, cache, settings)
    meta = {
        "format": FORMAT,
        "digest": digest,
        "settings": asdict(settings),
        "tokenizer": hashlib.sha256(serial.encode()).hexdigest(),
        "families": families,
    }
    with atomic_write(cache / "corpus.json") as handle:
        json.dump(meta, handle, indent=1)


def _clear(cache: Path) -> None:
    """The folder, to be filled: what is in it no longer counts."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "corpus.json").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write the tokenized text to {cache}: {error.strerror or error}; "
            f"name another folder with {option('cache', ...)}"
        ) from error


def _train_tokenizer(text: Mapping[str, Mapping[str, Sequence[str]]], settings: CorpusSettings):
    tokenizers = require("tokenizers", "sweep")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS), behavior="isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=settings.vocab,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = [piece for family in text.values() for piece in _sample(family, settings)]
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def _sample(languages: Mapping[str, Sequence[str]], settings: CorpusSettings) -> list[str]:
    """About ``sample_bytes`` of one family, evenly spaced in each language's text."""
    sizes = np.array([sum(len(p.encode()) for p in text) for text in languages.values()], float)
    weights = sizes**settings.language_exponent
    budgets = weights / weights.sum() * settings.sample_bytes
    chosen: list[str] = []
    for text, size, budget in zip(languages.values(), sizes, budgets, strict=True):
        count = min(len(text), max(1, round(len(text) * budget / size)))
        chosen += [text[int(k)] for k in np.linspace(0, len(text) - 1, count)]
    return chosen


def token_bytes(tokenizer: Any) -> np.ndarray:
    """Bytes of text behind every token id: a byte-level token has one character a byte."""
    sizes = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        sizes[index] = len(token)
    return sizes


def _encode(tokenizer: Any, text: Sequence[str]) -> np.ndarray:
    parts: list[np.ndarray] = []
    for start in range(0, len(text), 64):
        batch = tokenizer.encode_batch_fast(list(text[start : start + 64]))
        parts += [np.array(encoding.ids, dtype=np.uint16) for encoding in batch]
    return np.concatenate(parts)


def _pack(
    family: str,
    streams: Mapping[str, np.ndarray],
    sizes: np.ndarray,
    cache: Path,
    settings: CorpusSettings,
) -> dict[str, object]:
    length = settings.length
    blocks = {name: _blocks(stream, length) for name, stream in streams.items()}
    blocks = {name: array for name, array in blocks.items() if len(array) >= 2}
    total = sum(len(array) for array in blocks.values())
    if total < 20:
        raise InputError(
            f"family {family}: {total * length} tokens of text, fewer than the {20 * length} that "
            "a training and a validation split need; add text or leave the family out"
        )
    weights = np.array([len(array) for array in blocks.values()], float)
    weights **= settings.language_exponent
    weights /= weights.sum()
    wanted = min(settings.validation_tokens // length, total // 10)
    train: list[np.ndarray] = []
    valid: list[np.ndarray] = []
    for array, take in zip(blocks.values(), block_counts(weights, wanted), strict=True):
        held = held_out(len(array), min(int(take), len(array) // 2))
        train.append(array[~held])
        valid.append(array[held])
    held_blocks = np.concatenate(valid)
    np.save(cache / f"{family}.train.npy", np.concatenate(train))
    np.save(cache / f"{family}.valid.npy", held_blocks)
    return {
        "languages": list(blocks),
        "weights": weights.tolist(),
        "blocks": [len(array) for array in train],
        "held": [len(array) for array in valid],
        "bytes_per_token": float(sizes[held_blocks[:, 1:]].mean()),
    }


def _blocks(stream: np.ndarray, length: int) -> np.ndarray:
    count = max(0, (len(stream) - 1) // length)
    body = stream[: count * length].reshape(count, length)
    following = stream[length : count * length + 1 : length].reshape(count, 1)
    return np.concatenate((body, following), axis=1)


def held_out(blocks: int, wanted: int) -> np.ndarray:
    """Mask of ``wanted`` held-out blocks of ``blocks``, in stretches spread evenly.

    The blocks are cut into as many equal sections as there are stretches; the middle
    of each section is held out.
    """
    mask = np.zeros(blocks, dtype=bool)
    if wanted < 1:
        return mask
    sections = -(-wanted // STRETCH)
    edges = np.linspace(0, blocks, sections + 1).astype(int)
    takes = np.diff(np.linspace(0, wanted, sections + 1).astype(int))
    for left, right, take in zip(edges[:-1], edges[1:], takes, strict=True):
        start = left + (right - left - take) // 2
        mask[start : start + take] = True
    return mask
