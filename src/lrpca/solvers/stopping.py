"""When to stop, and under which name.

``‖C‖ / ‖Y‖``, the paper's rule, proves nothing by itself: it is at most ``ζ √(n1 n2) / ‖Y‖``, so a shrinking
schedule drives it to zero whatever X does. It is kept for absolute schedules, guarded by the detector of runaway
thresholds. Adaptive runs stop when X stands still, or moves less than the noise would let anyone see.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.decomposition import Record
from lrpca.solvers.start import Survey

# Share of the statistical error below which a further change of X is noise.
_NOISE_SHARE = 0.05
# A change that stays below half of that error (ten times the share above) is no stall.
_FLICKER = 10.0
_PATIENCE = 12
# Less kept than this share is no fit.
_HARDLY_ANY = 0.01
# How many times weaker than X a component may be before `tol` is held against it.
_WEAK = 1000.0
# ... and how far at most `tol` is lowered for it: a surplus component may be arbitrarily weak.
_LOWERED = 0.01
# An absolute schedule that rejects more than four fifths of the entries has not found X.
_MOSTLY_REJECTED = 0.2
_ROUNDINGS = 4.0
# Thresholds outran the iterate: S has been filling up by this much over three passes, while X hardly moved.
_FILLING = 0.15
_STANDING_STILL = 1e-3


class AbsoluteStopping:
    """The paper's rule, and the detector of thresholds that outrun the iterate."""

    def __init__(self, tol: float, survey: Survey, rank: int, thresholds: Any, precision: Any) -> None:
        self._tol = tol

    def verdict(self, history: list[Record], size: float, weakest: float) -> str | None:
        """Return a reason to stop, or None."""
        if self._tol == 0:
            return None
        if runaway(history):
            return "runaway"
        if (history[-1].residual or 0.0) >= self._tol:
            return None
        # A small residual with nearly everything in S says nothing of X.
        return "tol" if (history[-1].kept or 0.0) >= _MOSTLY_REJECTED else "runaway"


class AdaptiveStopping:
    """Relative change of X, a noise floor, and stalls."""

    def __init__(self, tol: float, survey: Survey, rank: int, thresholds: Any, precision: Any) -> None:
        self._tol = tol
        self._thresholds = thresholds
        n1, n2 = len(survey.observed_by_row), len(survey.observed_by_column)
        self._unknowns = rank * (n1 + n2)
        self._observed = survey.observed
        self._norm = survey.norm
        self._rounding = min(tol, _ROUNDINGS * float(np.finfo(precision).eps))

    def verdict(self, history: list[Record], size: float, weakest: float) -> str | None:
        """Return a reason to stop, or None."""
        if self._tol == 0:
            return None
        change, kept = history[-1].change or 0.0, history[-1].kept or 0.0
        if kept < _HARDLY_ANY or (size == 0 and self._norm > 0):
            return "runaway"
        if change <= self._tolerance(size, weakest):
            return "tol"
        if len(history) > 1 and self._thresholds.settled and change <= self._noise_floor(kept, size):
            return "noise_floor"
        if not stalled(history):
            return None
        # Entries that flicker around the cutoff keep X moving, but well within what the noise leaves open.
        flickers = self._thresholds.settled and change <= _FLICKER * self._noise_floor(kept, size)
        return "noise_floor" if flickers else "stalled"

    def _tolerance(self, size: float, weakest: float) -> float:
        """Return `tol`, less where a component is a thousand times weaker than X: a large offset must not hide it."""
        if size == 0:
            return self._tol
        return max(self._tol * min(1.0, max(_LOWERED, _WEAK * weakest / size)), self._rounding)

    def _noise_floor(self, kept: float, size: float) -> float:
        """Return a small share of the relative error that the noise alone causes, σ √(r (n1 + n2) / (k p)) / ‖X‖."""
        sigma: float = self._thresholds.noise()
        share = max(kept, 1e-6) * self._observed
        return _NOISE_SHARE * sigma * math.sqrt(self._unknowns / share) / max(size, 1e-300)


def runaway(history: list[Record]) -> bool:
    """Tell whether S fills up while X stands still: the thresholds have outrun the iterate."""
    last = history[-1]
    if last.kept is None or last.change is None or last.change > _STANDING_STILL:
        return False
    if last.kept < 0.05:
        return True
    if len(history) < 4:
        return False
    before = history[-4].kept or 0.0
    return last.kept < 0.5 and before - last.kept > _FILLING


def stalled(history: list[Record]) -> bool:
    """Tell whether the change of X has not fallen over the last passes."""
    if len(history) < 2 * _PATIENCE:
        return False
    changes = [record.change or 0.0 for record in history]
    return min(changes[-_PATIENCE:]) > 0.9 * min(changes[:-_PATIENCE])
