"""Intervals: the bootstrap over runs, and profiles of single parameters.

The bootstrap draws exponential weights (the Bayesian bootstrap, Rubin 1981) instead of counts: no
draw loses a whole model size, which would leave an exponent undetermined. Runs that share a
mixture are drawn together, because what a mixture does to a loss beyond the law comes back in each
of its runs; and all families of a draw share one set of weights, so that sums and differences over
families (totals, gains) keep their dependence.

Each draw spreads less than the truth does by the q parameters that the fit absorbs; the deviations
are stretched by sqrt(n / (n - q)).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apportion.mixture.runs import RunTable

# With fewer mixtures than this, drawing them whole says little; runs are drawn one by one instead.
_FEWEST_MIXTURES = 8


def bootstrap_weights(runs: RunTable, samples: int, seed: int) -> Float[np.ndarray, "samples runs"]:
    """Weights of every run in every bootstrap sample; each row sums to the number of runs."""
    generator = np.random.default_rng(seed)
    groups = runs.mixtures()
    if groups.max() + 1 < _FEWEST_MIXTURES:
        groups = np.arange(len(runs))
    drawn = generator.exponential(size=(samples, groups.max() + 1))[:, groups]
    return drawn * (len(runs) / drawn.sum(axis=1, keepdims=True))


def spread_factor(runs: int, parameters: int) -> float:
    """How far bootstrap deviations are stretched for the parameters that the fit absorbed."""
    return float(np.sqrt(runs / max(1, runs - parameters)))


def percentiles(
    point: Float[np.ndarray, "*shape"],
    samples: Float[np.ndarray, "samples *shape"],
    level: float,
    stretch: float = 1.0,
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Lower and upper end of the central interval, deviations from `point` stretched."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(samples, [tail, 1.0 - tail], axis=0)
    return point + stretch * (low - point), point + stretch * (high - point)
