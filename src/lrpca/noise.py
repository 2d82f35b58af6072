"""The scale of clean residuals, read off a sample: noise level, outlier threshold.

Clean entries make a peak of |D| at zero, as wide as the noise and the present error of X; outliers lie beneath it as a
broad background. Finding that peak needs no outlier fraction, no scale and no majority.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

_OUTLIER_SIGMAS = 5.0
# A residual carries the rounding of an entry and of an inner product.
_ROUNDINGS = 16.0
# The last change is an average over entries. All of it may be in one row or column, and its largest entries several
# times above the others there.
_STILL_MOVING = 8.0

_BINS = 512
# Residuals that are exactly zero are taken for this part of the largest.
_TINY = 1e-30
# The background is taken as flat over this many σ only: outliers of 10⁴ times the signal say nothing of it.
_WINDOW = 8.0
# First guesses of σ, as parts of the window: broad first, since a narrow peak within the peak (entries that happen to
# be fitted well) is no measure of the others. A peak is one if it is narrower than a sixth of the window and holds
# more entries than chance gathers in any small interval.
_GUESSES = (3.0, 12.0, 40.0)
_PEAK = 6.0
_LEAST_SHARE = 0.03
_EM_STEPS = 80
_EM_TOLERANCE = 1e-3
_REFINEMENTS = 60


class Core(NamedTuple):
    """The peak of clean residuals: its standard deviation, and its share of the entries."""

    sigma: float
    share: float


def residual_core(
    residuals: Any,  # (m,) |D| at sampled entries
    rounding: float = 0.0,
    *,
    is_complex: bool = False,
) -> Core:
    """Return the Gaussian peak of residuals at zero, on a background that is flat nearby.

    Maximum likelihood of the mixture by expectation and maximisation on a logarithmic histogram, in a window that is
    narrowed to eight σ. Residuals below `rounding` count as that. Where no peak stands out, all residuals are the core.
    """
    sizes = np.maximum(residuals, rounding)
    top = float(sizes.max(initial=0.0))
    if top <= rounding:
        return Core(rounding, 1.0)
    # A power of two, so that scaled data give the same bits.
    unit = 2.0 ** math.floor(math.log2(top))
    histogram = _Histogram(np.maximum(sizes / unit, _TINY), 2 if is_complex else 1)
    window, core, least = histogram.top, None, _LEAST_SHARE * len(residuals)
    for _ in range(_REFINEMENTS):
        peak = None
        for guess in _GUESSES:
            fit = histogram.fit(window, window / guess)
            core = core or fit
            if fit is not None and fit.sigma <= window / _PEAK and fit.share > least:
                core = peak = fit
                break
        if peak is None or _WINDOW * peak.sigma >= 0.95 * window:
            break
        window = _WINDOW * peak.sigma
    if core is None or core.share < least:
        return Core(float(np.sqrt(np.mean(sizes**2))), 1.0)
    return Core(unit * core.sigma, core.share / len(residuals))


class _Histogram:
    """Residuals in bins of equal logarithmic width: fits of any scale cost the same few microseconds."""

    def __init__(self, sizes: Any, dimension: int) -> None:
        from lrpca.kernels.peak import share_among_bins

        self.top = float(sizes.max())
        low = math.log(float(sizes.min()))
        width = max((math.log(self.top) - low) / _BINS, 1e-12) * (1 + 1e-9)
        # Every entry is shared by the two nearest bins, so that rounding of an entry moves the result by rounding.
        self._counts = np.zeros(_BINS + 1)
        share_among_bins((np.log(sizes) - low) / width, self._counts)
        self._centres = np.exp(low + width * np.arange(_BINS + 1))
        self._squares, self._dimension = self._centres**2, dimension

    def fit(self, window: float, sigma: float) -> Core | None:
        """Return σ and the number of entries of the peak among those below `window`, or None if there are too few."""
        from lrpca.kernels.peak import fit_peak

        inside = int(np.searchsorted(self._centres, window * (1 + 1e-6), side="right"))
        counts, squares = self._counts[:inside], self._squares[:inside]
        found, members = fit_peak(counts, squares, window, sigma, self._dimension, _EM_STEPS, _EM_TOLERANCE)
        return Core(found, members) if members else None


def rounding_level(arithmetic: Any, scale: float) -> float:
    """Return the residual below which nothing is known but rounding."""
    return _ROUNDINGS * float(np.finfo(arithmetic).eps) * scale


def quantisation_step(stored: Any) -> float:
    """Return the distance of neighbouring numbers that can be stored: 1 for integers, 0 else."""
    return 1.0 if stored.kind in "iu" else 0.0


def outlier_threshold(sigma: float, stored: Any, rounding: float, moving: float = 0.0, length: int = 1) -> float:
    """Return the residual beyond which an entry counts as an outlier.

    5 σ, never below the `rounding` of the largest entries, the quantisation step of integers, or what an entry of X was
    still `moving` in the last iteration, if all of that was in one row or column of this `length`: without noise that
    is all the residual there is, and it is far from Gaussian.
    """
    floor = max(rounding, quantisation_step(stored), _STILL_MOVING * math.sqrt(length) * moving)
    return max(_OUTLIER_SIGMAS * sigma, floor)
