"""Memory that grows with a power of the step."""

from __future__ import annotations

from apportion.prefill.schedule.base import At, Schedule, power


class Square(Schedule):
    """m_t = t^2 (M - a) / (N - 1)^2 + a: small for long, then fast."""

    name = "square"

    def share(self, at: At) -> float:
        return power(at, 2.0)


class SquareRoot(Schedule):
    """m_t = t^(1/2) (M - a) / (N - 1)^(1/2) + a: large early."""

    name = "sqrt"

    def share(self, at: At) -> float:
        return power(at, 0.5)
