"""All figures of `mixture`; each function returns a `matplotlib.figure.Figure`.

`save` writes one to .svg, .png or .pdf; `svg` gives the text to set into a page.
"""

from __future__ import annotations

from apportion.mixture.figures.figure import save, svg
from apportion.mixture.figures.plot_diagnosis import plot_cross_effects, plot_gamma
from apportion.mixture.figures.plot_fit import plot_heldout, plot_losses
from apportion.mixture.figures.plot_ratios import plot_ratios

__all__ = [
    "plot_cross_effects",
    "plot_gamma",
    "plot_heldout",
    "plot_losses",
    "plot_ratios",
    "save",
    "svg",
]
