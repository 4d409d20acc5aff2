"""The published mixture laws, one file each; `LAWS` is the whole list.

Every law with a term in D also comes with repeated tokens discounted: "family+repetition".
"""

from __future__ import annotations

import re

from apportion.errors import InputError
from apportion.mixture.laws.additive import Additive, AdditivePooled
from apportion.mixture.laws.base import Conditions, Law, Parameter, SeparableLaw
from apportion.mixture.laws.bimix import BiMix
from apportion.mixture.laws.chinchilla import Chinchilla
from apportion.mixture.laws.family import Family
from apportion.mixture.laws.fernandes import Fernandes
from apportion.mixture.laws.mixing import Mixing
from apportion.mixture.laws.repetition import RD, Repetition, with_repetition
from apportion.mixture.laws.transfer import Atlas, Transfer

LAWS: dict[str, type[Law]] = {
    "family": Family,
    "chinchilla": Chinchilla,
    "additive": Additive,
    "additive-pooled": AdditivePooled,
    "bimix": BiMix,
    "fernandes": Fernandes,
    "mixing": Mixing,
    "transfer": Transfer,
    "atlas": Atlas,
}

__all__ = [
    "LAWS",
    "Additive",
    "AdditivePooled",
    "Atlas",
    "BiMix",
    "Chinchilla",
    "Conditions",
    "Family",
    "Fernandes",
    "Law",
    "Mixing",
    "Parameter",
    "Repetition",
    "SeparableLaw",
    "Transfer",
    "get_law",
    "with_repetition",
]

_NUMBER = r"[0-9.]+(?:e[+-]?[0-9]+)?"
_REPETITION = re.compile(
    rf"(?P<inner>.+)\+repetition(?:\((?:rd=(?P<rd>{_NUMBER}))?,?(?:rn=(?P<rn>{_NUMBER}))?\))?"
)


def get_law(law: str | Law) -> Law:
    """The law of that name, or the law itself.

    Args:
        law: a key of `LAWS`; with `"+repetition"` behind it, repeated tokens are discounted. The
            constants can be given: `"family+repetition(rd=12.5,rn=5.3)"`. The `name` of every law
            leads back to it.

    Raises:
        InputError: no law has that name, or the law cannot be wrapped.
    """
    if isinstance(law, Law):
        return law
    name = str(law)
    if name in LAWS:
        return LAWS[name]()
    match = _REPETITION.fullmatch(name)
    if match is None or match["inner"] not in LAWS:
        raise InputError(
            f"expected a law out of {', '.join(LAWS)}, with '+repetition' behind it if wanted "
            f"(for example 'family+repetition'); got {law!r}"
        )
    rd = RD if match["rd"] is None else float(match["rd"])
    rn = None if match["rn"] is None else float(match["rn"])
    return with_repetition(LAWS[match["inner"]](), rd, rn)
