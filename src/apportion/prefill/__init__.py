"""Reading a long context in bounded memory: memory schedules and chunk sizes.

IM and IMDC: Zeng et al., "Memorize Step by Step: Efficient Long-Context Prefilling with Incremental
Memory and Decremental Chunk", EMNLP 2024.
"""

from __future__ import annotations

from apportion.prefill.schedule import SCHEDULES, At, Schedule

__all__ = ["SCHEDULES", "At", "Schedule"]
