"""Real training runs from the user's own text: ``sweep`` and what it is planned with."""

from apportion.execution import Executor, LocalExecutor, RayExecutor
from apportion.mixture.sweep.corpus import CorpusSettings, prepare_corpus
from apportion.mixture.sweep.plan import PlannedRun, default_plan, read_plan
from apportion.mixture.sweep.runner import SweepError, sweep
from apportion.mixture.sweep.train import Recipe

__all__ = [
    "CorpusSettings",
    "Executor",
    "LocalExecutor",
    "PlannedRun",
    "RayExecutor",
    "Recipe",
    "SweepError",
    "default_plan",
    "prepare_corpus",
    "read_plan",
    "sweep",
]
