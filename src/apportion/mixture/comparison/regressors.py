"""What every law must beat: the nearest run, a linear regression, and RegMix's boosted trees.

None of them knows scaling. They set the bar within the range of the runs, and show beyond it what
the laws' form is worth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float

from apportion.errors import InputError, require
from apportion.mixture.runs import RunTable

# RegMix (Liu et al., ICLR 2025): boosted trees of LightGBM's default size, stopped once the
# validation error has not fallen for three rounds.
_ROUNDS = 1000
_PATIENCE = 3
_BOOSTING: dict[str, Any] = {
    "boosting_type": "gbdt",
    "objective": "regression",
    "metric": ["l1", "l2"],
    "learning_rate": 1e-2,
    "seed": 42,
    "verbosity": -1,
    # Tables are small: more threads only wait for each other.
    "num_threads": 1,
}
# The share that RegMix set aside to stop the boosting: 128 of its first 1000 runs.
_STOPPING_SHARE = 0.128
# Trees with LightGBM's default of 20 runs a leaf do not split below this.
_FEWEST_FOR_TREES = 48


class Regressor(ABC):
    """A predictor of losses that is not a law; `fit` returns a fitted copy.

    Attributes:
        parameters: fitted numbers per target; None where counting them says nothing.
    """

    name: str
    parameters: int | None = None

    @abstractmethod
    def fit(self, runs: RunTable) -> Regressor:
        """Learn from runs.

        Raises:
            InputError: too few runs, or a package that is not installed.
        """

    @abstractmethod
    def predict(self, runs: RunTable) -> Float[np.ndarray, "runs targets"]:
        """Predicted losses; only N, D and the ratios of `runs` are looked at."""


class Nearest(Regressor):
    """The loss of the nearest run: nearest in log N and log D first, then in the ratios."""

    name = "nearest mixture"

    def __init__(self, runs: RunTable | None = None) -> None:
        self.runs = runs

    def fit(self, runs: RunTable) -> Nearest:
        return Nearest(runs)

    def predict(self, runs: RunTable) -> Float[np.ndarray, "runs targets"]:
        assert self.runs is not None
        size = _log_sizes(runs)[:, None] - _log_sizes(self.runs)[None]
        by_size = np.round(np.linalg.norm(size, axis=-1), 9)
        by_ratio = np.linalg.norm(runs.ratios[:, None] - self.runs.ratios[None], axis=-1)
        # Any other size is farther than every mixture of the nearest size.
        by_ratio = np.where(by_size <= by_size.min(axis=1, keepdims=True), by_ratio, np.inf)
        return self.runs.losses[by_ratio.argmin(axis=1)]


class Linear(Regressor):
    """Least squares of the log loss on log N, log D and the ratios.

    Features are centred, so that one which never varied gets no weight, not an arbitrary one.
    """

    name = "linear"

    def __init__(self) -> None:
        self.centre: Float[np.ndarray, " features"] | None = None
        self.level: Float[np.ndarray, " targets"] | None = None
        self.weights: Float[np.ndarray, "features targets"] | None = None

    def fit(self, runs: RunTable) -> Linear:
        features, log_loss = _features(runs), np.log(runs.losses)
        fitted = Linear()
        fitted.centre, fitted.level = features.mean(axis=0), log_loss.mean(axis=0)
        fitted.weights, _, rank, _ = np.linalg.lstsq(
            features - fitted.centre, log_loss - fitted.level, rcond=1e-9
        )
        fitted.parameters = int(rank) + 1
        if fitted.parameters >= len(runs):
            raise InputError(
                f"expected more runs than the {fitted.parameters} coefficients of a regression, "
                f"got {len(runs)}"
            )
        return fitted

    def predict(self, runs: RunTable) -> Float[np.ndarray, "runs targets"]:
        assert self.centre is not None
        assert self.level is not None
        assert self.weights is not None
        return np.exp(self.level + (_features(runs) - self.centre) @ self.weights)


class RegMix(Regressor):
    """LightGBM on the ratios, one model a target, with the settings that RegMix published.

    Log N and log D join the ratios when the runs vary in them; RegMix has one N and D.

    Args:
        stopping: runs that decide when the boosting stops; without them a random part of the runs
            is set aside, as RegMix did at first.
        seed: of that part.
    """

    name = "regmix (lightgbm)"

    def __init__(self, stopping: RunTable | None = None, seed: int = 0) -> None:
        self.stopping = stopping
        self.seed = seed
        self.models: list[Any] = []

    def fit(self, runs: RunTable) -> RegMix:
        lightgbm: Any = require("lightgbm", "bench")
        if len(runs) < _FEWEST_FOR_TREES:
            raise InputError(
                f"expected at least {_FEWEST_FOR_TREES} runs for boosted trees with 20 runs a "
                f"leaf, got {len(runs)}"
            )
        stopping = self.stopping
        if stopping is None:
            order = np.random.default_rng(self.seed).permutation(len(runs))
            aside = round(_STOPPING_SHARE * len(runs))
            runs, stopping = runs.take(order[aside:]), runs.take(order[:aside])
        fitted = RegMix(self.stopping, self.seed)
        for k in range(len(runs.targets)):
            data = lightgbm.Dataset(_features(runs), runs.losses[:, k])
            check = lightgbm.Dataset(_features(stopping), stopping.losses[:, k], reference=data)
            stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
            fitted.models.append(
                lightgbm.train(_BOOSTING, data, _ROUNDS, valid_sets=[check], callbacks=[stop])
            )
        return fitted

    def predict(self, runs: RunTable) -> Float[np.ndarray, "runs targets"]:
        return np.stack([model.predict(_features(runs)) for model in self.models], axis=-1)


def regressors(seed: int = 0) -> tuple[Regressor, ...]:
    """All of them, not fitted yet."""
    return Nearest(), Linear(), RegMix(seed=seed)


def _log_sizes(runs: RunTable) -> Float[np.ndarray, "runs 2"]:
    return np.log(np.stack([runs.params, runs.tokens], axis=-1))


def _features(runs: RunTable) -> Float[np.ndarray, "runs features"]:
    return np.concatenate([_log_sizes(runs), runs.ratios], axis=1)
