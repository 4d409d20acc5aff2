"""The bivariate mixing law of Ge et al.: tokens and the own ratio, at one model size.

Published as (A / r^alpha) (B / s^beta + C). A multiplies both B and C, so data determine only A B
and A C; A = 1 is fixed here and B and C absorb it. Refused: all three, with an arbitrary scale that
no interval could make sense of.
"""

from __future__ import annotations

from apportion.mixture.laws.base import LOG_ZERO, Need, Parameter
from apportion.mixture.laws.powers import BETA, B, Power, PowerLaw

_SCALE = (0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 1.0, 1.5, 2.0)
_SHARE = (-0.02, 0.02, 0.06, 0.1, 0.15, 0.22, 0.35, 0.6)


class BiMix(PowerLaw):
    """L_i(r_i, s) = (B_i / s^beta_i + C_i) / r_i^alpha_i, at one N.

    Ge et al., "BiMix: A Bivariate Data Mixing Law for Language Model Pretraining", arXiv
    2405.14908, with their A_i = 1 absorbed into B_i and C_i. s are training tokens in billions, r_i
    the family's own ratio. B, C >= 0 in nats per token, alpha in [-1, 3], beta in [0, 4]. Diverges
    at r_i = 0, so runs without the family say nothing about it. It is the family law without its
    term in N: runs of several sizes do not belong in one fit.
    """

    name = "bimix"
    formula = "(C + B / D^beta) * p^(-alpha)"
    paper = "Ge et al., arXiv 2405.14908"
    needs: frozenset[Need] = frozenset({"tokens", "ratio"})
    fixed: frozenset[Need] = frozenset({"params"})
    amplitudes = (
        Parameter("C", "loss of endless data at p = 1, nats per token", "amplitude", LOG_ZERO, 5.0),
        B,
    )
    powers = (
        Power(BETA, "tokens", (1,), _SCALE),
        Power(
            Parameter("alpha", "exponent of the family's own ratio", "exponent", -1.0, 3.0),
            "ratio",
            (0, 1),
            _SHARE,
        ),
    )
