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

BINS = 512
# Residuals are told apart over so many decades. Where there is no rounding, those that are exactly zero are taken for
# this part of the largest.
TINY = 1e-30
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
    narrowed to eight σ. Residuals below `rounding` count as that. Where there is no peak, all residuals are the core.
    """
    from lrpca.kernels.peak import share_among_bins

    top = float(np.max(residuals, initial=0.0))
    if top <= rounding:
        return Core(rounding, 1.0)
    top = min(top, most_counted(rounding) if rounding else _far_beyond(residuals))
    unit = unit_of(top)
    sizes = np.clip(np.asarray(residuals, np.float64), rounding or TINY * unit, top) / unit
    least, most = float(sizes.min()), float(sizes.max())
    low, width = bins_between(least, most)
    # Every entry is shared by the two nearest bins, so that rounding of an entry moves the result by rounding.
    counts = np.zeros(BINS + 1)
    share_among_bins(np.log(sizes), low, width, counts)
    found = core_of_bins(counts, least, most, len(residuals), is_complex=is_complex)
    if found is None:
        return Core(unit * float(np.sqrt(np.mean(sizes**2))), 1.0)
    return Core(unit * found.sigma, found.share)


def most_counted(rounding: Any) -> Any:
    """Return what larger residuals are counted as, a number or a tensor: fill values of 1e37 are outliers of any size.

    Counted as they are, they would leave clean residuals in few bins, or none.
    """
    return rounding / TINY


def _far_beyond(residuals: Any) -> float:  # residuals (m,)
    """Return the same where there is no rounding: as far above the median as what is taken for zero is below it."""
    return float(np.median(residuals[residuals > 0])) / math.sqrt(TINY)


def unit_of(top: float) -> float:
    """Return what residuals up to some size are measured in: a power of two, so that scaled data give the same bits."""
    return 2.0 ** math.floor(math.log2(top))


def bins_between(least: float, most: float) -> tuple[float, float]:
    """Return the logarithm of the first bin, and the logarithmic width of all: fits of any scale cost the same."""
    low = math.log(least)
    return low, max((math.log(most) - low) / BINS, 1e-12) * (1 + 1e-9)


def core_of_bins(
    counts: Any,  # (BINS + 1,) entries by bins
    least: float,
    most: float,
    number: int,
    *,
    is_complex: bool = False,
) -> Core | None:
    """Return the peak of residuals that were counted between the least and the largest; None where there is no peak."""
    from lrpca.kernels.peak import find_peak

    low, width = bins_between(least, most)
    centres = np.exp(low + width * np.arange(BINS + 1))
    dimension, few = 2 if is_complex else 1, _LEAST_SHARE * number
    settings = (dimension, _GUESSES, _PEAK, _WINDOW, _REFINEMENTS, _EM_STEPS, _EM_TOLERANCE)
    sigma, members = find_peak(counts, centres, centres**2, most, few, *settings)
    return None if members < few or not members else Core(sigma, members / number)


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
