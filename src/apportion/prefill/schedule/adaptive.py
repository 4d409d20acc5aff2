"""Memory that goes where layers hold on to what they have."""

from __future__ import annotations

import math

from apportion.prefill.schedule.base import At, Schedule


class Adaptive(Schedule):
    """m_t = a, then 2a, then min(M, (t + 1) a L softmax(r)_l).

    r_l is the running mean of the layer's retention ratio: of the entries that it kept after a
    chunk, the share that was old memory. Layers that keep old entries get more room. A layer may
    shrink from one step to the next, where its ratio falls; the sum over the layers is at most that
    of the linear schedule.
    """

    name = "adaptive"
    looks_back = True

    def share(self, at: At) -> float:
        linear = (at.step + 1) / at.steps
        if at.step < 2 or not at.retention:
            return linear
        top = max(at.retention)
        weights = [math.exp(r - top) for r in at.retention]
        return min(1.0, linear * at.layers * weights[at.layer] / sum(weights))
