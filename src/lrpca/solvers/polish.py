"""Tangent passes over all of Y, from factors whose error is that of the noise.

Where ψ is steep, the step is not the inverse of the kept share, but that of the mean slope of ψ at the residuals, the
fall at its cutoff included: with it one pass leaves a few percent of the error, with the kept share a seventh.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from lrpca.core.factors import gram, product_norm, pseudo_inverse, retract, without_double_counting
from lrpca.core.influence import Levels, levels
from lrpca.core.passes import Kept, Pass
from lrpca.schedule import default_schedule
from lrpca.solvers.base import Solution
from lrpca.solvers.checks.low_inlier_rows import unexplained_rows
from lrpca.solvers.initialise import ObservationCounts, checked_counts
from lrpca.solvers.run import Factors, Run, padded
from lrpca.solvers.thresholds import AdaptiveThresholds

# Half the width of the window in which the density at the cutoff is measured, in units of the cutoff.
_NEAR = 0.1
_LEAST_SLOPE = 0.1
# A row of which less is observed takes the step of one of which this share is.
_LEAST_OBSERVED = 0.02
# At rest: what is left to go is this part of the error that noise causes, or so many roundings.
_NOISE_SHARE, _ROUNDINGS = 0.1, 4.0
_SLOWEST = 0.98
_TINY = 1e-300


class Polish:
    """Factors of X, and the passes over Y that make them better."""

    def __init__(self, run: Run, L: Any, R: Any) -> None:
        self._run = run
        self.factors: Factors = (run.matrix.place(L), run.matrix.place(R))
        self.rank = L.shape[1]
        self._counts: ObservationCounts | None = None
        self._kept: Kept | None = None
        self._changes: list[float] = []

    def is_small(self, change: float) -> bool:
        """Tell whether a relative change of X is within `tol`, or rounding."""
        return change <= max(self._run.tol, _ROUNDINGS * float(np.finfo(self._run.matrix.result).eps))

    def step(self) -> str | None:
        """Take one pass, record it, and return a reason to stop or None."""
        run, (L, R) = self._run, self.factors
        level, slope = self._level()
        first = self._counts is None
        # The first pass counts what is observed, the others what they keep.
        seen = level._replace(keep=math.inf) if first else level
        A, B = (factor.conj() for factor in (R, L))
        result = run.matrix.run_pass(L, R, seen, A=A, B=B, energy=first)
        if first:
            self._counts = self._take_counts(result)
        else:
            self._kept = result.kept
        dL, dR = self._directions(result, slope)
        new = retract(L, R, dL, dR)
        moved = new.moved(np.zeros(self.rank, bool)) / max(float(np.linalg.norm(new.values)), _TINY)
        if not np.isfinite(moved):
            return "runaway"
        self.factors = new.factors()
        self._changes.append(moved)
        assert self._counts is not None
        residual, kept = self._counts.relative(result)
        numbers = {"threshold": level.clip, "step": 1 / slope, "residual": residual, "change": moved}
        stop = run.record(*self.factors, **numbers, kept=None if first else kept)
        return stop or self._verdict(slope)

    def solution(self, reason: str) -> Solution:
        """Return the solution after the passes."""
        change = self._run.history[-1].change or 0.0
        if reason in ("tol", "noise_floor") and self._kept is not None and self._counts is not None:
            reason = "stalled" if unexplained_rows(self._kept, self._counts) else reason
        L, R = padded(*self.factors, self._run.rank)
        return Solution(L, R, self._run.history, reason, self._counts, self._kept, self.rank, change)

    @cached_property
    def _thresholds(self) -> AdaptiveThresholds:
        return AdaptiveThresholds(default_schedule(), self._run.sample, self._run.matrix)

    def _level(self) -> tuple[Levels, float]:
        """Return the levels of the next pass, and the mean slope of ψ at the residuals of the sample."""
        thresholds, (L, R), schedule = self._thresholds, self.factors, default_schedule()
        if not self._changes:
            thresholds.core = thresholds.measure(L, R)
            thresholds.refine_cutoff(L, R, 1.0)
        numbers = thresholds.at(2, L, R, patient=False)
        assert numbers is not None  # the default has no end
        level = levels(schedule.influence, numbers[0], schedule.cutoff)
        sizes = thresholds.sample.residuals(L, R)
        inside = float(np.mean(sizes <= level.clip))
        density = float(np.mean(np.abs(sizes - level.cutoff) <= _NEAR * level.cutoff)) / (2 * _NEAR * level.cutoff)
        fall = level.clip * density
        slope = inside - fall
        if self._run.matrix.stored.kind == "c":
            # Across the direction of a residual the slope is ψ(|d|) / |d|.
            between = (sizes > level.clip) & (sizes <= level.cutoff)
            slope = inside + 0.5 * float(np.sum(level.clip / sizes[between])) / len(sizes) - 0.5 * fall
        kept = float(np.mean(sizes <= level.cutoff))
        return level, max(slope, _LEAST_SLOPE * kept, _TINY)

    def _directions(self, result: Pass, slope: float) -> tuple[Any, Any]:
        assert self._counts is not None
        (L, R), (n1, n2) = self.factors, self._counts.shape
        shares = self._counts.observed_by_row / n2, self._counts.observed_by_column / n1
        by_row, by_column = (slope * np.maximum(share, _LEAST_OBSERVED)[:, None] for share in shares)
        dL, dR = result.CA @ pseudo_inverse(gram(R)) / by_row, result.CtB @ pseudo_inverse(gram(L)) / by_column
        return without_double_counting(L, R, dL, dR)

    def _take_counts(self, first: Pass) -> ObservationCounts:
        """Return the counts of the first pass, and the norm of Y from that of the residual and the sample."""
        counts, sample = checked_counts(self._run.matrix, first), self._run.sample
        residuals = sample.signed_residuals(*self.factors)
        fitted = sample.values - residuals
        product = 2 * float(np.mean((fitted * residuals.conj()).real))
        entries = float(counts.observed_by_row.sum())
        square = counts.norm**2 + product * entries + product_norm(*self.factors) ** 2 * counts.observed
        counts = ObservationCounts(
            counts.observed_by_row, counts.observed_by_column, math.sqrt(max(square, counts.norm**2))
        )
        self._run.take_counts(counts)
        return counts

    def _verdict(self, slope: float) -> str | None:
        """Return "noise_floor" if further passes would change X by less than the noise."""
        if not self._run.tol:
            return None
        assert self._counts is not None
        share = slope * self._counts.observed
        size = product_norm(*self.factors)
        noise = self._thresholds.core.sigma * math.sqrt(self.rank * sum(self._counts.shape) / share) / max(size, _TINY)
        left = last = self._changes[-1]
        if self.is_small(last):
            return "tol"
        # The first pass leaves a small part of what it removed.
        if len(self._changes) > 1:
            rate = min(last / max(self._changes[-2], _TINY), _SLOWEST)
            left = last * rate / (1 - rate)
        return "noise_floor" if left <= _NOISE_SHARE * noise else None
