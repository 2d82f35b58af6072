"""When to stop, and under which name.

``‖C‖ / ‖Y‖``, the paper's rule, proves nothing by itself: it is at most ``ζ √(n1 n2) / ‖Y‖``, so a shrinking
schedule drives it to zero whatever X does. It is kept for absolute schedules, guarded by the detector of runaway
thresholds. Adaptive runs stop when X is stationary, or when further iterations would change the result by less than
the noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.solvers.base import Record
from lrpca.solvers.initialise import ObservationCounts

# What X still has to go, as a share of the error that noise alone causes, below which going on is in vain.
_NOISE_SHARE = 0.1
# Refined passes are in vain when they are slow and change the energy of the residual by less than this part of it;
# there is noise if the residual is so many times `tol`.
_FALLEN, _NOISY = 0.1, 10.0
# A change that stays below half of that error is no stall: entries flicker around the cutoff.
_FLICKER = 0.5
_PATIENCE = 15
_STILL_BETTER = 0.98
# A pass that changes X by more than this part of the change before makes slow progress.
_SLOW = 0.6
# Passes over which the rate of convergence is measured, and the slowest that is believed.
_RATE_OVER = 3
_SLOWEST = 0.98
_TINY = 1e-300
# Less kept than this share is no fit.
_HARDLY_ANY = 0.01
# How many times weaker than X a component may be before `tol` is held against it.
_WEAK = 1000.0
# ... and how far at most `tol` is lowered for it: a surplus component may be arbitrarily weak.
_LOWERED = 0.01
# An absolute schedule that rejects more than four fifths of the entries has not found X.
_MOSTLY_REJECTED = 0.2
_ROUNDINGS = 4.0
# A change that does not get below this many roundings is noise: extreme outliers leave theirs in every sum.
_JITTER = 16.0
# Thresholds outran the iterate: S has been filling up by this much over three passes, while X hardly moved.
_FILLING = 0.15
_STANDING_STILL = 1e-3


def absolute_verdict(history: list[Record], tol: float) -> str | None:
    """Return a reason to stop a run of an absolute schedule, or None: the paper's rule, and runaway thresholds."""
    if tol == 0:
        return None
    if runaway(history):
        return "runaway"
    if (history[-1].residual or 0.0) >= tol:
        return None
    # A small residual with nearly everything in S says nothing of X.
    return "tol" if (history[-1].kept or 0.0) >= _MOSTLY_REJECTED else "runaway"


class AdaptiveStopping:
    """Relative change of X, a noise floor, and stalls."""

    def __init__(self, tol: float, counts: ObservationCounts, precision: Any) -> None:
        self._tol = tol
        self._counts = counts
        eps = float(np.finfo(precision).eps)
        self._rounding, self._jitter = min(tol, _ROUNDINGS * eps), _JITTER * eps
        self._changes: list[float] = []
        self._sigmas: list[float] = []

    def restart(self) -> None:
        """Forget the changes so far."""
        self._changes, self._sigmas = [], []

    def state(self) -> dict[str, Any]:
        """Return the changes and noise levels so far."""
        return {"changes": list(self._changes), "sigmas": list(self._sigmas)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._changes, self._sigmas = list(state["changes"]), list(state["sigmas"])

    def verdict(
        self, change: float, kept: float, values: Any, sigma: float, *, settled: bool, refined: bool
    ) -> str | None:
        """Return a reason to stop, or None.

        Parameters
        ----------
        change, kept : float
            Relative change of X in this pass, and the share of observed entries that were kept.
        values : ndarray
            Singular values of the present components.
        sigma : float
            Noise level.
        settled, refined : bool
            Whether the threshold has come to rest, and the cutoff is that of the last passes.
        """
        self._changes.append(change)
        self._sigmas.append(sigma)
        size = float(np.linalg.norm(values))
        if kept < _HARDLY_ANY or (size == 0 and self._counts.norm > 0):
            return "runaway"
        if change <= self._tolerance(size, float(values[-1])):
            return "tol"
        floor = self._statistical_error(kept, size, len(values), sigma)
        if settled and self._to_go() <= _NOISE_SHARE * floor:
            return "noise_floor"
        noisy = sigma * math.sqrt(math.prod(self._counts.shape)) >= _NOISY * self._tol * size
        if settled and noisy and (self._is_in_vain() if refined else self._is_slow() or change < floor):
            return "noise_floor"
        # On its way past a saddle X may move no less than before, while the fit still gets better.
        if not stalled(self._changes) or sigma < _STILL_BETTER * self._sigmas[-_PATIENCE]:
            return None
        at_rest = change <= self._jitter or (settled and change <= _FLICKER * floor)
        return "noise_floor" if at_rest else "stalled"

    def _tolerance(self, size: float, weakest: float) -> float:
        """Return `tol`, less where a component is a thousand times weaker than X: a large offset must not hide it."""
        if size == 0:
            return self._tol
        return max(self._tol * min(1.0, max(_LOWERED, _WEAK * weakest / size)), self._rounding)

    def _to_go(self) -> float:
        """Return how far X still is from where it goes: the sum of changes to come, by the rate of the last ones."""
        if len(self._changes) <= _RATE_OVER:
            return math.inf
        before, first, last = self._changes[-2], self._changes[-1 - _RATE_OVER], self._changes[-1]
        # The slower of the last step and the last few: single steps may be lucky.
        rate = max(last / max(before, _TINY), math.pow(last / max(first, _TINY), 1 / _RATE_OVER))
        return last * min(rate, _SLOWEST) / (1 - min(rate, _SLOWEST))

    def _is_slow(self) -> bool:
        """Tell whether the last two passes changed X by hardly less than those before."""
        return len(self._changes) > _RATE_OVER and self._changes[-1] > _SLOW**2 * self._changes[-3]

    def _is_in_vain(self) -> bool:
        """Tell whether passes are slow and the last one left the residual as it was."""
        return self._is_slow() and abs((self._sigmas[-2] / self._sigmas[-1]) ** 2 - 1) < _FALLEN

    def _statistical_error(self, kept: float, size: float, rank: int, sigma: float) -> float:
        """Return the relative error that the noise alone causes, σ √(r (n1 + n2) / (k p)) / ‖X‖."""
        share = max(kept, 1e-6) * self._counts.observed
        return sigma * math.sqrt(rank * sum(self._counts.shape) / share) / max(size, _TINY)


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


def is_slow(history: list[Record]) -> bool:
    """Tell whether the last pass changed X by hardly less than the one before."""
    return len(history) > 1 and (history[-1].change or 0.0) > _SLOW * (history[-2].change or 0.0)


def stalled(changes: list[float]) -> bool:
    """Tell whether the change of X has not fallen over the last passes."""
    if len(changes) < 2 * _PATIENCE:
        return False
    return min(changes[-_PATIENCE:]) > 0.9 * min(changes[:-_PATIENCE])
