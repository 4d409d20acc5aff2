"""Fixed memory: the baseline."""

from __future__ import annotations

from apportion.prefill.schedule.base import At, Schedule


class Fixed(Schedule):
    """m_t = M from the first chunk on: what chunked eviction did before incremental memory."""

    name = "fixed"

    def share(self, at: At) -> float:
        return 1.0
