"""The mixture of `lrpca.kernels.scale`, compiled by numba: its steps are too small for NumPy."""

from __future__ import annotations

import math
from typing import Any

import numba

# How far a window reaches beyond the last bin within it.
_BEYOND = 1 + 1e-6
# A window that is not narrowed by more than this is as good as before.
_NARROWED = 0.95


# Residuals are numbers: least and largest may be found in any order, several at a time.
@numba.njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def scaled_sizes(
    residuals: Any,  # (m,)
    floor: float,
    ceiling: float,
    unit: float,
    sizes: Any,  # (m,), changed
) -> tuple[float, float]:
    """Write residuals in some unit, those beyond the floor or the ceiling as that; return the least and the largest."""
    least, most = math.inf, 0.0
    for i in range(residuals.shape[0]):
        size = min(max(residuals[i], floor), ceiling) / unit
        sizes[i] = size
        least, most = min(least, size), max(most, size)
    return least, most


@numba.njit(nogil=True, cache=True)
def share_among_bins(
    places: Any,  # (m,)
    low: float,
    width: float,
    counts: Any,  # (bins + 1,) zeros, changed
) -> None:
    """Count entries, each by the two nearest bins: the first one is at `low`, each `width` from the next."""
    last = counts.shape[0] - 2
    for i in range(places.shape[0]):
        place = (places[i] - low) / width
        left = min(int(place), last)
        share = place - left
        counts[left] += 1.0 - share
        counts[left + 1] += share


@numba.njit(nogil=True, cache=True)
def fit_peak(
    counts: Any,  # (k,)
    squares: Any,  # (k,) of the centres of the bins
    window: float,
    sigma: float,
    dimension: int,
    steps: int,
    tolerance: float,
) -> tuple[float, float]:
    """Return σ and the number of entries of the peak by EM, on a flat background; (0, 0) where there is none."""
    total = counts.sum()
    if total < 10:
        return 0.0, 0.0
    share, members = 0.5, total
    for _ in range(steps):
        # Density of the peak over that of the background: half-normal over flat, in the plane Rayleigh over disc.
        if dimension == 1:
            height, slope = math.sqrt(2 / math.pi) * window / sigma, -0.5 / sigma**2
        else:
            height, slope = (window / sigma) ** 2, -1.0 / sigma**2
        members, moment = 0.0, 0.0
        for i in range(counts.shape[0]):
            if counts[i] > 0:
                inside = share * height * math.exp(slope * squares[i])
                weight = counts[i] * inside / (inside + 1 - share)
                members += weight
                moment += weight * squares[i]
        if members <= 1e-9 * total:
            return 0.0, 0.0
        share = min(members / total, 1 - 1e-9)
        before, sigma = sigma, math.sqrt(moment / members)
        if abs(sigma - before) <= tolerance * before:
            break
    return sigma, members


@numba.njit(nogil=True, cache=True)
def find_peak(
    counts: Any,  # (k,)
    centres: Any,  # (k,) of the bins
    squares: Any,  # (k,) of the centres
    window: float,
    least: float,
    dimension: int,
    guesses: tuple[float, ...],
    narrower: float,
    wider: float,
    refinements: int,
    steps: int,
    tolerance: float,
) -> tuple[float, float]:
    """Return σ and the number of entries of the peak, by fits in windows that are narrowed to `wider` times σ.

    A peak is one if it is `narrower` times narrower than the window and has more entries than the `least`. Guesses of
    σ are parts of the window. (0, 0) where there is no fit at all, the first fit where none is a peak.
    """
    found, members, inside = 0.0, 0.0, len(centres)
    for _ in range(refinements):
        peak = 0.0
        while inside and centres[inside - 1] > window * _BEYOND:
            inside -= 1
        for guess in guesses:
            sigma, count = fit_peak(
                counts[:inside], squares[:inside], window, window / guess, dimension, steps, tolerance
            )
            if members == 0.0:
                found, members = sigma, count
            if count > 0 and sigma <= window / narrower and count > least:
                found, members, peak = sigma, count, sigma
                break
        if peak == 0.0 or wider * peak >= _NARROWED * window:
            break
        window = wider * peak
    return found, members
