"""Threshold rules: ζ_k from a list of learned numbers, or from the residual itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.influence import DEFAULT_CUTOFF
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sampling import Sample
from lrpca.noise import noise_level, quantisation_step, rounding_level
from lrpca.schedule import Schedule


class AbsoluteThresholds:
    """The paper's: ζ_0 … ζ_K, then the recurrent tail."""

    def __init__(self, schedule: Schedule, sample: Sample, matrix: DenseMatrix) -> None:
        self._schedule = schedule
        self.initial = schedule.thresholds[0]

    def at(self, k: int, L: Any, R: Any, *, warm: bool) -> tuple[float, float] | None:
        """Return (ζ_k, η_k), or None past the end."""
        return self._schedule.at(k)


class AdaptiveThresholds:
    """ζ_k is a multiple of a low quantile q of |D| over a sample, and shrinks by at most a factor per pass.

    The low quantile sees clean entries only, as long as they are the majority there: no scale, no outlier fraction and
    no noise level have to be known. ζ_1 is a high quantile, since the first residual is everywhere wrong.
    """

    def __init__(self, schedule: Schedule, sample: Sample, matrix: DenseMatrix) -> None:
        self._schedule = schedule
        self._sample = sample
        sizes = np.abs(sample.values)
        positive = sizes[sizes > 0]
        # Entries that are exactly zero say nothing of the scale (more than half of them may be).
        typical = float(np.median(sizes)) or (float(np.median(positive)) if len(positive) else 0.0)
        self.initial = schedule.thresholds[0] * typical if typical else math.inf
        self.rounding = rounding_level(matrix.result, typical)
        self._step = quantisation_step(matrix.stored)
        self._tiny = float(np.finfo(matrix.arithmetic).tiny)
        self._cutoff = schedule.cutoff or DEFAULT_CUTOFF
        self._last = math.inf
        self.residuals: Any = None  # (m,) |D| on the sample, at the iterate entering the pass
        self.settled = False

    def at(self, k: int, L: Any, R: Any, *, warm: bool) -> tuple[float, float] | None:
        """Return ζ_k and the step in units of 1 / (share kept), or None past the end."""
        numbers = self._schedule.at(k)
        if numbers is None:
            return None
        multiplier, factor = numbers
        self.residuals = self._sample.residuals(L, R)
        # Entries that are fitted to rounding would pull the quantile to zero while others are still wrong.
        telling = self.residuals[self.residuals > self.rounding]
        if len(telling) == 0:
            telling = np.array([self.rounding])
        quantile = multiplier * float(np.quantile(telling, self._schedule.quantile))
        if math.isinf(self._last):
            first = float(np.quantile(telling, self._schedule.first_quantile))
            threshold = min(first, quantile) if warm else first
        else:
            threshold = max(self._schedule.decay * self._last, min(quantile, self._last))
            self.settled = threshold > 0.8 * self._last
        # Below the step of integers there is nothing to find; all-zero data have zero residuals.
        self._last = max(threshold, self._step, self._tiny)
        return self._last, factor

    def noise(self) -> float:
        """Return the noise level at the iterate entering the pass, from entries that the fit has not rejected."""
        return noise_level(self.residuals, self.rounding, self._cutoff * self._last)
