"""Memory that grows with an inverse of the step."""

from __future__ import annotations

from apportion.prefill.schedule.base import At, Schedule, concave, convex


class InverseConvex(Schedule):
    """m_t = M / (N - t): nearly nothing until the last chunks."""

    name = "inverse-convex"

    def share(self, at: At) -> float:
        return convex(at)


class InverseConcave(Schedule):
    """m_t = M + a - M / (t + 1): nearly all after a few chunks."""

    name = "inverse-concave"

    def share(self, at: At) -> float:
        return concave(at)
