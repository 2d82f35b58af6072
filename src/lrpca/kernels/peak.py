"""The mixture of `lrpca.kernels.scale`, compiled by numba: its steps are too small for NumPy."""

from __future__ import annotations

import math
from typing import Any

import numba

from lrpca.kernels.cpu import outer

# How far a window reaches beyond the last bin within it.
_BEYOND = 1 + 1e-6
# A window that is not narrowed by more than this is as good as before.
_NARROWED = 0.95


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


# Written out where it is called, and compiled once.
@numba.njit(inline="always")
def _fit_peak(
    counts: Any,  # (k,)
    squares: Any,  # (k,) of the centres of the bins
    inside: int,  # so many bins
    window: float,
    sigma: float,
    dimension: int,
    steps: int,
    tolerance: float,
) -> tuple[float, float]:
    """Return σ and the number of entries of the peak by EM, on a flat background; (0, 0) where there is none."""
    total = 0.0
    for i in range(inside):
        total += counts[i]
    share, members, rests = 0.5, total, total < 10
    if rests:
        sigma, members = 0.0, 0.0
    for _ in range(0 if rests else steps):
        # Density of the peak over that of the background: half-normal over flat, in the plane Rayleigh over disc.
        width = window / sigma
        height, slope = width * width, -1.0 / (sigma * sigma)
        if dimension == 1:
            height, slope = math.sqrt(2 / math.pi) * width, 0.5 * slope
        members, moment = 0.0, 0.0
        top, rest = share * height, 1 - share
        for i in range(inside):
            # exp(x) = exp(x / 1024)^1024 by a polynomial: LLVM computes several at a time.
            x = max(slope * squares[i], -200.0) / 1024
            y = 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8)))))))
            for _ in range(10):
                y *= y
            weight = counts[i] * (top * y) / (top * y + rest)
            members += weight
            moment += weight * squares[i]
        if members <= 1e-9 * total:
            sigma, members = 0.0, 0.0
            break
        share = min(members / total, 1 - 1e-9)
        before, sigma = sigma, math.sqrt(moment / members)
        if abs(sigma - before) <= tolerance * before:
            break
    return sigma, members


@outer
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
            sigma, count = _fit_peak(counts, squares, inside, window, window / guess, dimension, steps, tolerance)
            if members == 0.0:
                found, members = sigma, count
            if count > 0 and sigma <= window / narrower and count > least:
                found, members, peak = sigma, count, sigma
                break
        if peak == 0.0 or wider * peak >= _NARROWED * window:
            break
        window = wider * peak
    return found, members
