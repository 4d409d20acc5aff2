"""Memory that grows by the same amount with every chunk: the default."""

from __future__ import annotations

from apportion.prefill.schedule.base import At, Schedule


class Linear(Schedule):
    """m_t = a (t + 1), a = M / N."""

    name = "linear"

    def share(self, at: At) -> float:
        return (at.step + 1) / at.steps
