"""Carrying out many jobs: in local processes, or on a Ray cluster."""

from apportion.execution.base import Executor, Outcome, Task
from apportion.execution.local import LocalExecutor
from apportion.execution.on_ray import RayExecutor

__all__ = ["Executor", "LocalExecutor", "Outcome", "RayExecutor", "Task"]
