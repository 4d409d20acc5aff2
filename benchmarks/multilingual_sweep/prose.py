"""Which paragraphs are prose of their language: script, shape, English fallback, duplicates."""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections.abc import Iterable

from languages import LATIN, Language

# Frequent in English and rare or absent in the other languages of the five families.
_ENGLISH = frozenset(
    "the and this that with from which your will have has been when where there their what "
    "should would other these those into you are is of if".split()
)
_WORD = re.compile(r"[^\W\d_]+")
_CODE = re.compile(r"^-|^[^\W\d_]+[A-Z_]\w*\(|[/\\=<>{}|$@_#*^~]|\w\.\w|::|--")
_DIGITS = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")

LETTER_SHARE = 0.72
SCRIPT_SHARE = 0.55
CODE_SHARE = 0.2
ENGLISH_SHARE = 0.22
LONGEST = 4000


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


def select(paragraphs: Iterable[str], language: Language, seen: set[bytes]) -> list[str]:
    """Prose paragraphs whose fingerprint is not in `seen` yet; `seen` grows by them."""
    kept: list[str] = []
    for paragraph in paragraphs:
        if not is_prose(paragraph, language):
            continue
        mark = fingerprint(paragraph)
        if mark not in seen:
            seen.add(mark)
            kept.append(paragraph)
    return kept


def shuffled(paragraphs: list[str], language: Language, seed: int = 0) -> list[str]:
    """The paragraphs in an order fixed by the language and the seed.

    Any stretch of the file is then a fair sample of the language, a held-out tail too.
    """
    order = list(paragraphs)
    random.Random(f"{seed}:{language.code}").shuffle(order)
    return order
