"""Memory schedules, one idea a file; `SCHEDULES` lists them."""

from __future__ import annotations

from apportion.errors import InputError
from apportion.prefill.schedule.adaptive import Adaptive
from apportion.prefill.schedule.base import At, Schedule
from apportion.prefill.schedule.fixed import Fixed
from apportion.prefill.schedule.inverse import InverseConcave, InverseConvex
from apportion.prefill.schedule.layerwise import LayerwiseInverse, LayerwisePower
from apportion.prefill.schedule.linear import Linear
from apportion.prefill.schedule.power import Square, SquareRoot

SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (
        Fixed,
        Linear,
        Square,
        SquareRoot,
        InverseConvex,
        InverseConcave,
        LayerwisePower,
        LayerwiseInverse,
        Adaptive,
    )
}

__all__ = ["SCHEDULES", "At", "Schedule", "get_schedule"]


def get_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule by its name, or the schedule itself.

    Raises:
        InputError: no such schedule.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise InputError(
            f"expected a schedule of {', '.join(map(repr, SCHEDULES))}, or an object of your own "
            f"class of apportion.prefill.Schedule; got {schedule!r}"
        )
    return SCHEDULES[schedule]()
