"""Intervals: the bootstrap over runs, and profiles of single parameters.

The bootstrap draws exponential weights (the Bayesian bootstrap, Rubin 1981) instead of counts: no
draw loses a whole model size, which would leave an exponent undetermined. Runs that share a
mixture are drawn together, because what a mixture does to a loss beyond the law comes back in each
of its runs; and all families of a draw share one set of weights, so that sums and differences over
families (totals, gains) keep their dependence.

Refused: stretching the deviations by sqrt(n / (n - q)) for the q fitted parameters. With
exponential weights and this objective the plain percentiles already cover a little more than they
say (`benchmarks/mixture_coverage.py`).
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


def percentiles(
    samples: Float[np.ndarray, "samples *shape"], level: float
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Lower and upper end of the central interval of bootstrap values."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(samples, [tail, 1.0 - tail], axis=0)
    return low, high
