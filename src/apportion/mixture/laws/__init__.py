"""The published mixture laws, one file each; `LAWS` is the whole list."""

from __future__ import annotations

from apportion.errors import InputError
from apportion.mixture.laws.base import Conditions, Law, Parameter, SeparableLaw
from apportion.mixture.laws.bimix import BiMix
from apportion.mixture.laws.chinchilla import Chinchilla
from apportion.mixture.laws.family import Family

LAWS: dict[str, type[Law]] = {
    "family": Family,
    "chinchilla": Chinchilla,
    "bimix": BiMix,
}

__all__ = [
    "LAWS",
    "BiMix",
    "Chinchilla",
    "Conditions",
    "Family",
    "Law",
    "Parameter",
    "SeparableLaw",
    "get_law",
]


def get_law(law: str | Law) -> Law:
    """The law of that name, or the law itself.

    Raises:
        InputError: no law has that name.
    """
    if isinstance(law, Law):
        return law
    if law not in LAWS:
        raise InputError(f"expected a law out of {', '.join(LAWS)}; got {law!r}")
    return LAWS[law]()
