"""The lower half of the layers on the convex schedule of a pair, the upper half on the concave."""

from __future__ import annotations

from apportion.prefill.schedule.base import At, Schedule, concave, convex, power


def lower(at: At) -> bool:
    """Whether the layer is in the first half; the middle one of an odd number is."""
    return at.layer < at.layers / 2


class LayerwisePower(Schedule):
    """Square below, square root above."""

    name = "layerwise-power"

    def share(self, at: At) -> float:
        return power(at, 2.0 if lower(at) else 0.5)


class LayerwiseInverse(Schedule):
    """Inverse-convex below, inverse-concave above."""

    name = "layerwise-inverse"

    def share(self, at: At) -> float:
        return convex(at) if lower(at) else concave(at)
