"""Small invented languages for the tests of the sweep."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from apportion.mixture.sweep import CorpusSettings, PlannedRun, Recipe

TINY = CorpusSettings(vocab=300, length=16, validation_tokens=256, sample_bytes=20_000)
RECIPE = Recipe(batch=4, compile=False)
SHAPE = "16x1x2x24"
FAMILIES = {"alpha": {"aa": 30_000, "ab": 15_000}, "beta": {"ba": 40_000}, "gamma": {"ga": 20_000}}


def write_text(folder: Path) -> Path:
    """Three families of made-up words, each of its own letters, in ``folder``."""
    letters = {"alpha": "abcde", "beta": "klmno", "gamma": "абвгд"}
    for number, (family, languages) in enumerate(FAMILIES.items()):
        (folder / family).mkdir(parents=True)
        for place, (language, size) in enumerate(languages.items()):
            rng = np.random.default_rng((number, place))
            words = ["".join(rng.choice(list(letters[family]), 4)) for _ in range(40)]
            lines: list[str] = []
            while sum(map(len, lines)) < size:
                lines.append(" ".join(rng.choice(words, 12)) + "\n")
            (folder / family / f"{language}.txt").write_text("".join(lines), "utf-8")
    return folder


def planned(name: str, ratios: tuple[float, float, float], tokens: int = 3200) -> PlannedRun:
    """One planned run over the three families."""
    return PlannedRun(name, SHAPE, tokens, 0, dict(zip(FAMILIES, ratios, strict=True)), "test")
