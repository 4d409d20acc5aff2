"""Languages of the five families: their script, and the locale names catalogues use for them.

A paragraph counts as prose of a language only when enough of it is in that language's script,
so the script is part of the table. "Indic" follows the areal grouping of He et al. (ACL 2025):
Indo-Aryan and Dravidian languages together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FAMILIES = ("romance", "germanic", "slavic", "indic", "sino_tibetan")

SCRIPTS = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff\u0300-\u036f",
    "cyrillic": "\u0400-\u052f\u0300-\u036f",
    "devanagari": "\u0900-\u097f\u200c\u200d",
    "bengali": "\u0980-\u09ff\u0964\u0965\u200c\u200d",
    "gurmukhi": "\u0a00-\u0a7f\u0964\u0965\u200c\u200d",
    "gujarati": "\u0a80-\u0aff\u0964\u0965\u200c\u200d",
    "oriya": "\u0b00-\u0b7f\u0964\u0965\u200c\u200d",
    "tamil": "\u0b80-\u0bff\u200c\u200d",
    "telugu": "\u0c00-\u0c7f\u200c\u200d",
    "kannada": "\u0c80-\u0cff\u200c\u200d",
    "malayalam": "\u0d00-\u0d7f\u200c\u200d",
    "sinhala": "\u0d80-\u0dff\u200c\u200d",
    "arabic": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff\u200c\u200d",
    "han": "\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002fa1f",
    "tibetan": "\u0f00-\u0fff",
    "myanmar": "\u1000-\u109f",
}


@dataclass(frozen=True)
class Language:
    """One language: its family, its script and the shortest paragraph worth keeping (characters).

    Chinese says in 15 characters what a Latin script says in 40.
    """

    code: str
    family: str
    script: str
    shortest: int = 40

    @property
    def pattern(self) -> re.Pattern[str]:
        """Runs of letters of the language's script."""
        return _PATTERNS[self.script]


_PATTERNS = {name: re.compile(f"[{ranges}]+") for name, ranges in SCRIPTS.items()}
LATIN = _PATTERNS["latin"]

_TABLE = {
    ("romance", "latin"): "fr es pt it ca gl ro oc ast",
    ("germanic", "latin"): "en de nl da sv nb nn is af",
    ("slavic", "latin"): "pl cs sk sl hr bs sr-latn",
    ("slavic", "cyrillic"): "ru uk sr bg be mk",
    ("indic", "devanagari"): "hi mr ne",
    ("indic", "bengali"): "bn as",
    ("indic", "gurmukhi"): "pa",
    ("indic", "gujarati"): "gu",
    ("indic", "oriya"): "or",
    ("indic", "sinhala"): "si",
    ("indic", "arabic"): "ur",
    ("indic", "tamil"): "ta",
    ("indic", "telugu"): "te",
    ("indic", "kannada"): "kn",
    ("indic", "malayalam"): "ml",
    ("sino_tibetan", "han"): "zh zh-hant",
    ("sino_tibetan", "tibetan"): "dz bo",
    ("sino_tibetan", "myanmar"): "my",
}

LANGUAGES = {
    code: Language(code, family, script, 15 if script == "han" else 40)
    for (family, script), codes in _TABLE.items()
    for code in codes.split()
}

_ALIASES = {
    "c": "en",
    "no": "nb",
    "sr-latin": "sr-latn",
    "sr-el": "sr-latn",
    "sr-ec": "sr",
    "zh-tw": "zh-hant",
    "zh-hk": "zh-hant",
    "zh-hans": "zh",
}
_NOT_A_REGION = re.compile(r"-(formal|latn|arab|tarask|x-old|valencia|ijekavian\w*)$")


def normalise_locale(locale: str) -> str | None:
    """Language code of a locale name ("pt_BR", "zh-Hant", "sr@latin"), or None if not ours.

    Regional variants fold into one language; variants in another script or spelling of their own
    (such as "de-formal", which differs from "de" in a few words only) are not taken.
    """
    name = locale.split(".")[0].replace("_", "-").replace("@", "-").lower()
    name = _ALIASES.get(name, name)
    if name in LANGUAGES:
        return name
    if _NOT_A_REGION.search(name):
        return None
    base = name.split("-")[0]
    base = _ALIASES.get(base, base)
    return base if base in LANGUAGES and re.fullmatch(r"\w+-(\w\w|419)", name) else None
