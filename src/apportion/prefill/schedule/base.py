"""What a memory schedule says: how many entries a layer keeps after each chunk.

A schedule is a share of the final memory M, so it knows neither bytes nor the model. A point of a
read is a step, which need not be whole: where chunks are of different sizes it is the text read so
far, in reference chunks, less one. Refused: rounding a = M / N down first, as the released code
does; with more chunks than entries it keeps nothing until the last step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

# More than the shares are off by for being floats: (1 / 49) * 49 is 1 - 2^-53, which must not cost
# an entry.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class At:
    """A point of a read.

    Attributes:
        step: the chunk that has just been read, from 0; between whole numbers where chunks are not
            of one size.
        steps: chunks of the whole read.
        layer, layers: number of the layer, and how many there are.
        retention: mean retention ratio of every layer so far: of the entries it kept, the share
            that was old memory; empty before the second chunk.
    """

    step: float
    steps: int
    layer: int = 0
    layers: int = 1
    retention: Sequence[float] = ()

    @property
    def last(self) -> bool:
        """Whether the read ends here."""
        return self.step >= self.steps - 1


class Schedule(ABC):
    """A memory schedule: shares of the final memory M, step by step.

    Attributes:
        name: as the user writes it.
        paper: where it comes from.
        looks_back: whether it needs the layers' retention ratios.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = "Zeng et al., EMNLP 2024"
    looks_back: ClassVar[bool] = False

    @abstractmethod
    def share(self, at: At) -> float:
        """Of M, after a chunk that is not the last; in (0, 1]."""

    def size(self, at: At, memory: int) -> int:
        """Entries that the layer keeps: at least one, and after the last chunk M.

        Args:
            at: the point of the read.
            memory: M, the sinks not among them.
        """
        if at.last:
            return memory
        return min(memory, max(1, math.floor((self.share(at) + _ROUNDING) * memory)))


def power(at: At, exponent: float) -> float:
    """t^q (M - a) / (N - 1)^q + a, as a share of M."""
    first = 1 / at.steps
    return (at.step / (at.steps - 1)) ** exponent * (1 - first) + first


def convex(at: At) -> float:
    """M / (N - t), as a share of M."""
    return 1 / (at.steps - at.step)


def concave(at: At) -> float:
    """M + a - M / (t + 1), as a share of M."""
    return 1 + 1 / at.steps - 1 / (at.step + 1)
