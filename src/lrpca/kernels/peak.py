"""The mixture of `lrpca.noise`, compiled by numba, serial, releasing the GIL: its steps are too small for NumPy."""

from __future__ import annotations

import math
from typing import Any

import numba


@numba.njit(nogil=True, cache=True)
def share_among_bins(
    places: Any,  # (m,) in units of bins, from 0 to the last one
    counts: Any,  # (bins + 1,) zeros
) -> None:
    """Count entries, each by the two nearest bins."""
    last = counts.shape[0] - 2
    for i in range(places.shape[0]):
        left = min(int(places[i]), last)
        share = places[i] - left
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
