"""What the benchmarks of reading share: the real model, a long manual, the tasks made from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from apportion import models
from apportion.prefill.evaluation import Case, Haystack, cloze, needle, recall
from harness import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import smollm2

HANDBOOK = "debian-handbook"
SHORTEST = 80
"""Characters of a paragraph: headings and captions have fewer."""
DEPTHS = (0.1, 0.5, 0.9)
PAIRS = 8


@cache
def load(dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer."""
    with models.quietly():
        return models.load(smollm2.folder(), dtype)


@cache
def manual() -> str:
    """The Debian Administrator's Handbook in English, paragraph after paragraph.

    From the Debian package, which is fetched once (nothing is installed) and read without its
    screens and listings. About 220,000 tokens.
    """
    # Scripts of another benchmark, which fetches the same package.
    sys.path.append(str(ROOT / "benchmarks" / "multilingual_sweep"))
    from fetch import candidates, update_lists
    from prepare import default_out, take_package
    from sources import SOURCES

    work = default_out().parent
    found = sorted(work.glob(f"extracted/{HANDBOOK}-*/en.txt"))
    if not found:
        update_lists()
        source = next(source for source in SOURCES if source.package == HANDBOOK)
        take_package(source, candidates([HANDBOOK])[HANDBOOK], work, keep=False)
        found = sorted(work.glob(f"extracted/{HANDBOOK}-*/en.txt"))
    return prose(found[-1])


def prose(path: Path) -> str:
    """The paragraphs of a file of one a line, without headings, each once."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(dict.fromkeys(line for line in lines if len(line) >= SHORTEST))


@cache
def haystack() -> Haystack:
    """The manual in sentences."""
    return Haystack(manual(), load()[1])


def _one_pair(hay: Haystack, length: int, depth: float, seed: int) -> Case:
    return recall(hay, length, depth, seed, PAIRS)[0]


MAKE: dict[str, Callable[[Haystack, int, float, int], Case]] = {
    "needle": needle,
    "recall": _one_pair,
    "questions": cloze,
}
NEW_TOKENS = {"needle": 12, "recall": 12, "questions": 16}


def cases(
    task: str, length: int, each: int, depths: Sequence[float] = DEPTHS, first: int = 0
) -> list[Case]:
    """Trials of a task, so many at each depth.

    Args:
        first: seed of the first; the others follow.
    """
    make = MAKE[task]
    seeds = range(first, first + each)
    return [make(haystack(), length, depth, seed) for depth in depths for seed in seeds]


def several(length: int, texts: int) -> list[Case]:
    """Pairs of which all are asked for, in so many texts."""
    found = [recall(haystack(), length, 0.5, seed, PAIRS) for seed in range(100, 100 + texts)]
    return [case for one in found for case in one]
