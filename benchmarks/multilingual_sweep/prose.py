"""Which paragraphs are prose of their language: script, shape, English fallback, duplicates."""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections.abc import Iterable

from languages import LATIN, Language

# Frequent in English and rare or absent in the other languages of the five families.
_ENGLISH_WORDS = (
    "the and this that with from which your been when where there their what should would other "
    "these those into you it some such must can each any they its only used using not then than"
)
_ENGLISH = frozenset(_ENGLISH_WORDS.split())
_WORD = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"^-|^[^\W\d_]+[A-Z_]\w*\(|[/\\=<>{}|$@_#*^~]|\w\.\w|::|--")
# The vowel sign E before its consonant: Burmese in a legacy font's order, not Unicode's.
_LEGACY_BURMESE = re.compile(r"(?<![\u1000-\u1021\u1025\u1027\u1029\u103b-\u103f])\u1031")
_DIGITS = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")

LETTER_SHARE = 0.72
SCRIPT_SHARE = 0.55
CODE_SHARE = 0.2
ENGLISH_SHARE = 0.13
LONGEST = 4000
SHINGLE = {"han": 8, "tibetan": 6}  # characters and syllables; else words, five
REPEATED_SHARE = 0.5


def _characters(pattern: re.Pattern[str], text: str) -> int:
    return sum(map(len, pattern.findall(text)))


def looks_english(text: str) -> bool:
    """Whether English function words make up the share of the words that English prose has."""
    words = [word.lower() for word in _WORD.findall(text)]
    return bool(words) and sum(word in _ENGLISH for word in words) >= ENGLISH_SHARE * len(words)


def is_prose(text: str, language: Language) -> bool:
    """Whether a paragraph is prose of the language: long enough, in its script, not code.

    Code, paths, options and tables show by few letters or by many words with signs in them. An
    untranslated paragraph shows by its script or, in Latin script, by English function words.
    """
    if not language.shortest <= len(text) <= LONGEST:
        return False
    solid = len(text) - text.count(" ")
    own = _characters(language.pattern, text)
    letters = own if language.script == "latin" else own + _characters(LATIN, text)
    if letters < LETTER_SHARE * solid or own < SCRIPT_SHARE * letters:
        return False
    if language.script == "myanmar" and _LEGACY_BURMESE.search(text):
        return False
    words = text.split()
    if language.script not in ("han", "tibetan", "myanmar") and len(words) < 5:
        return False
    if sum(bool(_CODE.search(word)) for word in words) > CODE_SHARE * len(words):
        return False
    return language.code == "en" or language.script != "latin" or not looks_english(text)


def fingerprint(text: str) -> bytes:
    """Equal for paragraphs that differ only in case, spacing or the digits they hold."""
    plain = unicodedata.normalize("NFC", text).casefold()
    plain = _DIGITS.sub("0", _SPACE.sub("", plain))
    return hashlib.blake2b(plain.encode("utf-8", "replace"), digest_size=12).digest()


def shingles(text: str, language: Language) -> list[int]:
    """Hashes of the paragraph's overlapping word sequences (of syllables or characters in scripts
    that do not separate words); a paragraph shorter than one sequence is one."""
    plain = _DIGITS.sub("0", text.casefold())
    if language.script == "han":
        parts = list(plain)
    else:
        parts = plain.split("་" if language.script == "tibetan" else None)
    length = SHINGLE.get(language.script, 5)
    starts = range(max(1, len(parts) - length + 1))
    return [
        int.from_bytes(
            hashlib.blake2b("\0".join(parts[i : i + length]).encode(), digest_size=8).digest()
        )
        for i in starts
    ]


def select(paragraphs: Iterable[str], language: Language, seen: set[bytes]) -> list[str]:
    """Prose paragraphs that say something new; `seen` grows by the fingerprints of those kept.

    Left out are those whose fingerprint is in `seen`, and near duplicates: half or more of their
    shingles stood in earlier paragraphs of the language. Otherwise a held-out part would hold the
    sentences of the training part with one word changed.
    """
    kept: list[str] = []
    known: set[int] = set()
    for paragraph in paragraphs:
        if not is_prose(paragraph, language):
            continue
        mark = fingerprint(paragraph)
        if mark in seen:
            continue
        pieces = shingles(paragraph, language)
        if sum(piece in known for piece in pieces) >= REPEATED_SHARE * len(pieces):
            continue
        seen.add(mark)
        known.update(pieces)
        kept.append(paragraph)
    return kept


def shuffled(paragraphs: list[str], language: Language, seed: int = 0) -> list[str]:
    """The paragraphs in an order fixed by the language and the seed.

    Any stretch of the file is then a fair sample of the language, a held-out tail too.
    """
    order = list(paragraphs)
    random.Random(f"{seed}:{language.code}").shuffle(order)
    return order
