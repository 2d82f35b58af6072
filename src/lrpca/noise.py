"""Robust noise level and outlier threshold, read off a sample of residuals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# Standard deviation of N(0, 1) restricted to |x| <= 2.5.
_TRUNCATION, _TRUNCATED_STD = 2.5, 0.9546
_OUTLIER_SIGMAS = 5.0
# A residual carries the rounding of an entry and of an inner product.
_ROUNDINGS = 16.0
# Fewer entries than this share do not speak for the others.
_FEW = 0.1
# The last change is an average over entries; single rows may be off by several times that, and five of those count.
_STILL_MOVING = 20.0


def noise_level(
    residuals: Any,  # (m,) |D| at sampled entries
    rounding: float = 0.0,
    limit: float = math.inf,
) -> float:
    """Return the standard deviation of the residual's Gaussian core, whatever the outliers are.

    Fixed point of "the standard deviation of what lies within 2.5 σ", started from a low quantile. Entries fitted to
    `rounding` (a black border, a constant column) and those beyond `limit`, which the fit has rejected, are left out
    unless hardly any others are there: the first would make every low quantile zero.
    """
    core = residuals[(residuals > rounding) & (residuals <= limit)]
    if len(core) > _FEW * len(residuals):
        residuals = core
    if len(residuals) == 0:
        return 0.0
    # 20% of |N(0, 1)| lie below 0.2533; with up to 60% outliers this start is within a factor 2 to 3.
    sigma = float(np.quantile(residuals, 0.2)) / 0.2533
    for _ in range(20):
        core = residuals[residuals <= _TRUNCATION * sigma]
        if len(core) == 0:
            break
        updated = float(np.sqrt(np.mean(core**2))) / _TRUNCATED_STD
        if abs(updated - sigma) <= 1e-3 * sigma:
            return updated
        sigma = updated
    return sigma


def rounding_level(arithmetic: Any, scale: float) -> float:
    """Return the residual below which nothing is known but rounding."""
    return _ROUNDINGS * float(np.finfo(arithmetic).eps) * scale


def quantisation_step(stored: Any) -> float:
    """Return the distance of neighbouring numbers that can be stored: 1 for integers, 0 else."""
    return 1.0 if stored.kind in "iu" else 0.0


def outlier_threshold(sigma: float, stored: Any, rounding: float, moving: float = 0.0) -> float:
    """Return the residual beyond which an entry counts as an outlier.

    5 σ, never below the `rounding` of the largest entries, the quantisation step of integers, or several times what
    an entry of X was still `moving` in the last iteration: without noise that is all the residual there is, and it is
    far from Gaussian.
    """
    floor = max(rounding, quantisation_step(stored), _STILL_MOVING * moving)
    return max(_OUTLIER_SIGMAS * sigma, floor)
