"""The thresholds of adaptive schedules: ζ_k from the residual itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.influence import levels
from lrpca.kernels.scale import Core, quantisation_step, rounding_level
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample
from lrpca.schedule import Schedule

# While some row has few inliers, thresholds shrink by no more than this factor: rows that are still wrong must catch
# up before they are taken for outliers.
PATIENT_DECAY = 0.7
# The same for the recurrent tail of an absolute schedule that has a floor; its soft ψ lets them catch up more slowly.
PATIENT_TAIL = 0.85
# The longest step where thresholds are held back: L and R both correct what lies in both their spaces.
LONGEST_HELD = 0.8
# By what factor ζ has to be above the recurrence to be held back: ζ_{k-1} φ and ζ_K φ^(k-K) are rounded differently.
HELD = 1.0 + 1e-6
# At the noise floor: ψ clips at 1.5 σ and is zero from 3 σ on, which costs 3% in standard error on Gaussian noise and
# rejects outliers of four σ that the wide threshold lets pass.
_REFINED = 0.6
# Where no outliers are left to reject, ψ clips at 5 σ instead: least squares, whose X is that of PCA. So it is when no
# more of the residuals are beyond 3 and 4 σ than of Gaussian noise, chance aside (in standard deviations).
_OPEN = 2.0
_GAUSSIAN_TAILS = ((3.0, 2.7e-3), (4.0, 6.3e-5))
_BY_CHANCE = 3.0
_MOST_FITTED = 0.5
# Passes with the refined cutoff, at most: on real data they would wander on.
_REFINED_PASSES = 10
# A noise floor does not fall by this much.
_COLLAPSED = 0.5
# ζ has settled when it falls by less than a fifth.
_SETTLED = 0.8


class AdaptiveThresholds:
    """ζ_k is a multiple of the width σ of the peak of clean residuals, and shrinks by at most a factor per pass."""

    def __init__(self, schedule: Schedule, sample: Sample, matrix: DenseMatrix) -> None:
        self._schedule = schedule
        self.sample = sample.telling
        self.typical = self.sample.typical
        self.initial = schedule.thresholds[0] * self.typical if self.typical else math.inf
        self.rounding = rounding_level(matrix.result, self.typical)
        # Below the step of integers there is nothing to find; all-zero data have zero residuals.
        self.least = max(quantisation_step(matrix.stored), float(np.finfo(matrix.arithmetic).tiny))
        self._last = math.inf
        self._factor = 1.0
        self.refined_passes = 0
        self._floor = 0.0
        self._restarted_once = False
        self.core = Core(0.0, 0.0)  # at the iterate entering the pass
        self.settled = False
        self.ahead = 1.0  # by what factor ζ_k is above what σ calls for

    def at(self, k: int, L: Any, R: Any, *, patient: bool) -> tuple[float, float] | None:
        """Return ζ_k and the step in units of 1 / (share kept), or None past the end."""
        numbers = self._schedule.at(k)
        if numbers is None:
            return None
        self.core = self.measure(L, R)
        wanted = max(self._factor * numbers[0] * self.core.sigma, self.least)
        decay = max(self._schedule.decay, PATIENT_DECAY) if patient else self._schedule.decay
        first = math.isinf(self._last)
        threshold = wanted if first else max(decay * self._last, min(wanted, self._last))
        self.settled = not first and threshold > _SETTLED * self._last
        self.ahead = threshold / wanted
        self._last = threshold
        self.refined_passes += self._factor != 1
        return threshold, numbers[1]

    @property
    def cutoff(self) -> float:
        """The residual beyond which the last pass rejected entries."""
        return levels(self._schedule.influence, self._last, self._schedule.cutoff).keep

    @property
    def wide_cutoff(self) -> float:
        """The cutoff of the last pass, or before it was refined."""
        threshold = max(self._schedule.thresholds[-1] * self.core.sigma, self._last)
        return levels(self._schedule.influence, threshold, self._schedule.cutoff).keep

    def measure(self, L: Any, R: Any) -> Core:
        """Return the peak of clean residuals of a fit."""
        return self.sample.core(L, R, self.rounding)

    def refine_cutoff(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
        observed: float,
    ) -> None:
        """Lower the thresholds to three σ from now on, or raise them out of the way where there are no outliers."""
        residuals = self.sample.residuals(L, R)
        # The fit has taken up part of the noise: as much as it has degrees of freedom.
        (n1, r), n2 = L.shape, len(R)
        fitted = min(_MOST_FITTED, r * (n1 + n2 - r) / (observed * n1 * n2))
        sigma = self.core.sigma / math.sqrt(1 - fitted)
        beyond = ((float(np.mean(residuals > k * sigma)), share) for k, share in _GAUSSIAN_TAILS)
        gaussian = all(found <= share + _BY_CHANCE * math.sqrt(share / len(residuals)) for found, share in beyond)
        self._last, self._factor, self._floor = math.inf, _OPEN if gaussian else _REFINED, self.core.sigma

    @property
    def is_refined(self) -> bool:
        """Whether the next passes have the cutoff of the noise floor."""
        return self._factor != 1

    @property
    def floor_collapsed(self) -> bool:
        """Whether σ has fallen since the cutoff was refined: what looked like noise was outliers."""
        return not self._restarted_once and self.core.sigma < _COLLAPSED * self._floor

    @property
    def polished(self) -> bool:
        """Whether enough passes were made with the refined (or opened) cutoff."""
        return self.refined_passes >= _REFINED_PASSES

    def restart(self, threshold: float) -> None:
        """Let the thresholds fall anew, from this one."""
        self._last, self._factor, self.refined_passes = max(threshold, self.least), 1.0, 0
        self._restarted_once = False

    def restart_once(self) -> None:
        """Let the thresholds fall anew, since the noise floor collapsed: once, or a run could go in circles."""
        self.restart(math.inf)
        self._restarted_once = True

    def state(self) -> dict[str, Any]:
        """Return what passes so far have made of the thresholds."""
        return {
            "last": self._last,
            "factor": self._factor,
            "refined_passes": self.refined_passes,
            "floor": self._floor,
            "restarted_once": self._restarted_once,
            "core": list(self.core),
            "settled": self.settled,
            "ahead": self.ahead,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._last, self._factor, self._floor = state["last"], state["factor"], state["floor"]
        self._restarted_once = state["restarted_once"]
        self.refined_passes, self.settled, self.ahead = state["refined_passes"], state["settled"], state["ahead"]
        self.core = Core(*state["core"])


def floored(
    schedule: Schedule, numbers: tuple[float, float], last: float, sigma: float, low_inlier: bool
) -> tuple[float, float]:
    """Return ζ_k and η_k of the recurrent tail of an absolute schedule with a floor, held back by the residual.

    A φ that is slightly too small lets ζ outrun the error: first in some rows, which then move by ζ a pass at most. So
    ζ stays above a multiple of the width of the clean residuals, and falls slowly while some row or column has few
    inliers. Where little is clipped, steps that were learned for clipped residuals would overshoot.
    """
    assert schedule.tail is not None and schedule.floor is not None
    phi = schedule.tail[1]
    threshold = max((max(phi, PATIENT_TAIL) if low_inlier else phi) * last, schedule.floor * sigma)
    return threshold, min(numbers[1], LONGEST_HELD) if threshold > HELD * numbers[0] else numbers[1]
