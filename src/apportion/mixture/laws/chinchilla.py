"""The Chinchilla law: loss from parameters and tokens alone, blind to the mixture.

The baseline that every mixture law must beat. Refused: D times the own ratio as the tokens of the
family; that is the effective-data law with no transfer between families.
"""

from __future__ import annotations

from apportion.mixture.laws.base import Need
from apportion.mixture.laws.powers import ALPHA, BETA, A, B, E, Power, PowerLaw

_SCALE = (0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 1.0, 1.5, 2.0)


class Chinchilla(PowerLaw):
    """L(N, D) = E + A / N^alpha + B / D^beta.

    Hoffmann et al., "Training Compute-Optimal Large Language Models", NeurIPS 2022, arXiv
    2203.15556. N are parameters in millions, D training tokens in billions. E, A, B >= 0 in nats
    per token, alpha and beta in [0, 4]. Every mixture is predicted alike, zero ratios included.
    """

    name = "chinchilla"
    formula = "E + A / N^alpha + B / D^beta"
    paper = "Hoffmann et al., NeurIPS 2022, arXiv 2203.15556"
    needs: frozenset[Need] = frozenset({"params", "tokens"})
    amplitudes = (E, A, B)
    powers = (
        Power(ALPHA, "params", (1,), _SCALE),
        Power(BETA, "tokens", (2,), _SCALE),
    )
