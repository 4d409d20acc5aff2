"""The multilingual law of He et al.: a family's loss depends on its own sampling ratio only.

Refused: a gamma that varies with N or D. The paper finds it constant; whether it is constant on
given runs is a question for the diagnostics, not one more parameter.
"""

from __future__ import annotations

from apportion.mixture.laws.base import LOG_ZERO, Need, Parameter
from apportion.mixture.laws.powers import ALPHA, BETA, A, B, Power, PowerLaw

_SCALE = (0.03, 0.08, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5)
_SHARE = (-0.02, 0.02, 0.06, 0.1, 0.15, 0.22, 0.35, 0.6)


class Family(PowerLaw):
    """L_i(N, D, p_i) = (E_i + A_i / N^alpha_i + B_i / D^beta_i) * p_i^(-gamma_i).

    He et al., "Scaling Laws for Multilingual Language Models", ACL 2025, arXiv 2410.12883. N are
    non-embedding parameters in millions, D training tokens in billions, p_i the family's own
    sampling ratio. E, A, B >= 0 in nats per token, alpha and beta in [0, 4], gamma in [-1, 3].
    Diverges at p_i = 0, so runs without the family say nothing about it.
    """

    name = "family"
    formula = "(E + A / N^alpha + B / D^beta) * p^(-gamma)"
    paper = "He et al., ACL 2025, arXiv 2410.12883"
    needs: frozenset[Need] = frozenset({"params", "tokens", "ratio"})
    amplitudes = (
        Parameter("E", "irreducible loss at p = 1, nats per token", "amplitude", LOG_ZERO, 5.0),
        A,
        B,
    )
    powers = (
        Power(ALPHA, "params", (1,), _SCALE),
        Power(BETA, "tokens", (2,), _SCALE),
        Power(
            Parameter("gamma", "exponent of the family's own ratio", "exponent", -1.0, 3.0),
            "ratio",
            (0, 1, 2),
            _SHARE,
        ),
    )
