"""IRCUR: iterated robust CUR decompositions [1]_, which read a few rows and columns of Y only.

    S = hard(Y - X, ζ) on sampled rows I and columns J,   C = (Y - S)[:, J],   R = (Y - S)[I, :],
    X = C (C[I, :])_r⁺ R,   ζ ← γ ζ.

With ``(C[I, :])_r = U Σ V^H`` the low-rank part is ``X = (C V) Σ⁻¹ (U^H R)``: factors of rank r, so that X is never
formed. On entries that the threshold keeps, Y - S is Y; on the others, and where Y is missing, it is X. An iteration is
one fused pass over the sampled rows and one over the sampled columns.

Beyond the paper: rows and columns are drawn without replacement; the threshold starts at the scale of the data and is
held above the noise; a component counts once it exceeds what residuals below the threshold could make (a rank too
large would otherwise fit outliers of the core); and low-inlier rows and columns, which the iteration would never
recover, are refitted by robust regression on their sampled entries before it ends.

Nothing is known of Y elsewhere: a component that lives in a few rows or columns is missed unless they are drawn, and
only the sampled entries are checked for infinities.

References
----------
.. [1] H. Cai, K. Hamm, L. Huang, J. Li, T. Wang, "Rapid Robust Principal Component Analysis: CUR Accelerated Inexact
   Low Rank Estimation", IEEE Signal Processing Letters 28, 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.factors import orthonormal, product_norm
from lrpca.core.influence import everything, levels
from lrpca.solvers.base import Solution
from lrpca.solvers.cross import Cross, read_cross
from lrpca.solvers.options import choice, number
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, half_pass, leading_svd, random_basis, widened
from lrpca.solvers.run import Run

# The first threshold, in units of the median of |Y|.
_FIRST = 12.0
# Least number of rows and of columns: with fewer, a row can lose all of its sampled entries.
_LEAST_SAMPLE = 60
# Steps of the core's partial SVD: from nothing, and from the last one.
_COLD_STEPS, _WARM_STEPS = 12, 1
# Singular values of the core this much smaller than the largest are rounding.
_ABSENT = 1e-14
# Singular values of the core below this part of ζ √m may come from outliers below the threshold (or from noise).
_NOISE_PART = 0.7
# Rows that keep less than this part of the median are refitted before the end, so many times.
_LOW_INLIERS, _REFITS = 0.5, 2
# The low quantile of the core's residuals that stands for their spread, and that of |N(0, 1)| in its place.
_LOW, _LOW_NORMAL = 0.2, 0.2533
# Residuals of the core that the spread is estimated from.
_MOST_RESIDUALS = 4096

OPTIONS = {
    "sampling": choice("fixed", "resample"),
    "oversampling": number(above=0),
    "gamma": number(above=0, below=1),
    "threshold": number(above=0),
    "floor": number(least=0),
}


def solve(
    run: Run,
    *,
    sampling: str = "fixed",
    oversampling: float = 4.0,
    gamma: float = 0.6,
    threshold: float | None = None,
    floor: float = 3.0,
) -> Solution:
    """Run iterated robust CUR.

    Parameters
    ----------
    run : Run
    sampling : {"fixed", "resample"}
        Keep the rows and columns drawn first (IRCUR-F), or draw new ones in every iteration (IRCUR-R): as many
        iterations, each two or three times slower; with noise they do not converge.
    oversampling : float
        ``oversampling * rank * log(n)`` rows and columns are drawn, at least 60.
    gamma : float
        By what factor the threshold falls, in (0, 1): 0.5 is faster with few outliers, 0.85 withstands half of them.
    threshold : float, optional
        The first threshold ζ; 12 times the median of |Y| if not given (the paper's max|Y| is decided by outliers).
    floor : float
        The threshold is held above so many times the spread of the clean residuals; 0 lets it fall without limit, as in
        the paper.
    """
    if threshold is None:
        size = np.abs(run.sample.values)
        threshold = _FIRST * float(np.median(size)) or float(size.max(initial=0.0)) or 1.0
        run.settle(estimated=True, threshold=threshold)
    wide = np.promote_types(run.matrix.arithmetic, np.float64)
    L, R = (np.zeros((n, run.rank), wide) for n in run.matrix.shape)
    sampled, basis, reason = None, None, "max_iter"
    refits, refitted = _REFITS, False
    try:
        for _ in run.iterations():
            if sampled is None or sampling == "resample":
                if sampled is not None:
                    sampled.cross.close()
                sampled = _Sampled.drawn(run, oversampling)
                basis = orthonormal(R[sampled.cross.columns.indices].conj())
            kept, spread = sampled.thresholded(L, R, threshold)
            core = _core_svd(kept, run.rank, basis, run.rng)
            basis = core.V
            step = sampled.update(L, R, core.cut(run.rank), threshold)
            L, R = step.L, step.R
            signal = sampled.norm_of(L, R) / sampled.norm if sampled.norm else 1.0
            stop = run.record(L, R, threshold=threshold, residual=step.residual, kept=step.kept, signal=signal)
            if stop == "tol" and refitted:
                # The change of X was that of the refit.
                refitted, stop = False, None
            elif stop == "tol" and refits and sampled.refit(step, spread):
                refits, refitted, stop = refits - 1, True, None
            if stop is not None:
                # A floor above all of X is made of outliers, not of noise.
                reason = "stalled" if stop == "noise_floor" and step.residual > signal else stop
                break
            threshold = min(threshold, max(gamma * threshold, floor * spread))
    finally:
        if sampled is not None:
            sampled.cross.close()
    solution = run.end(L, R, reason)
    # Rows and columns without an observed sampled entry are supported by nothing.
    assert sampled is not None
    return replace(solution, kept=(sampled.observed_by_row, sampled.observed_by_column))


class _Step(NamedTuple):
    """The result of an iteration."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    residual: float
    kept: float  # share of the sampled entries that are not in S
    kept_by_row: Any  # (n1,) int, of the sampled columns
    kept_by_column: Any  # (n2,) int, of the sampled rows


@dataclass(frozen=True)
class _Sampled:
    """The sampled rows and columns of Y, and the core they have in common."""

    cross: Cross
    core: Any  # (m1, m2), NaN where missing
    norm: float  # ‖Y[I, :]‖ + ‖Y[:, J]‖ over observed entries
    observed_by_row: Any  # (n1,) int, of the sampled columns
    observed_by_column: Any  # (n2,) int, of the sampled rows

    @classmethod
    def drawn(cls, run: Run, oversampling: float) -> _Sampled:
        """Draw rows and columns and read them."""
        sides = ((n, _sample_size(n, run.rank, oversampling)) for n in run.matrix.shape)
        cross = read_cross(run.matrix, *(np.sort(run.rng.permutation(n)[:m]) for n, m in sides))
        by_column, by_row = (band.first_pass(everything(), None) for band in (cross.columns, cross.rows))
        core = np.asarray(cross.core.array, np.promote_types(run.matrix.arithmetic, np.float64))
        if cross.core.mask is not None:
            core = np.where(cross.core.mask, core, np.nan)
        norm = (by_column.norm_D or 0.0) + (by_row.norm_D or 0.0)
        return cls(cross, core, norm, by_column.kept_by_column, by_row.kept_by_column)

    def norm_of(self, L: Any, R: Any) -> float:
        """Return ‖X[I, :]‖ + ‖X[:, J]‖."""
        return product_norm(L[self.cross.rows.indices], R) + product_norm(L, R[self.cross.columns.indices])

    def thresholded(self, L: Any, R: Any, threshold: float) -> tuple[Any, float]:
        """Return Y - S on the core, and the spread of its clean residuals."""
        X = L[self.cross.rows.indices] @ R[self.cross.columns.indices].T
        size = np.abs(self.core - X)
        # Every so many entries, across rows and columns alike.
        few = size.ravel()[:: max(1, size.size // _MOST_RESIDUALS) | 1]
        few = few[few == few]
        place = int(_LOW * len(few))
        spread = float(np.partition(few, place)[place]) / _LOW_NORMAL if len(few) else 0.0
        with np.errstate(invalid="ignore"):
            return np.where(size <= threshold, self.core, X), spread

    def update(self, L: Any, R: Any, core: PartialSVD, threshold: float) -> _Step:
        """Return X = C (U Σ V^H)⁺ R by its factors, and the counts of kept entries."""
        U, values, V = core
        L_I, R_J = L[self.cross.rows.indices], R[self.cross.columns.indices]
        level = levels("hard", threshold)
        by_rows = half_pass(self.cross.rows.matrix, (L_I, R), level, B=U.conj())
        by_columns = half_pass(self.cross.columns.matrix, (R_J, L), level, B=V)
        # U^H (Y - S)[I, :] and (Y - S)[:, J] V, with Y - S = X + C.
        right, left = R @ (L_I.T @ U.conj()) + by_rows.CtB, L @ (R_J.T @ V) + by_columns.CtB
        least = _ABSENT * float(values[0])
        if len(values) < min(self.core.shape):
            # The strongest component always counts.
            least = max(least, min(_NOISE_PART * threshold * math.sqrt(max(self.core.shape)), 0.5 * float(values[0])))
        there = values > least
        root = np.where(there, 1 / np.sqrt(np.where(there, values, 1.0)), 0.0)
        residual = (by_rows.norm_C + by_columns.norm_C) / self.norm if self.norm else 0.0
        row_kept, column_kept = by_columns.kept_by_column, by_rows.kept_by_column
        observed = int(self.observed_by_row.sum() + self.observed_by_column.sum())
        share = int(row_kept.sum() + column_kept.sum()) / max(1, observed)
        return _Step(left * root, right * root, residual, share, row_kept, column_kept)

    def refit(self, step: _Step, spread: float) -> bool:
        """Refit, in place, the low-inlier rows of L and R; tell whether there were any."""
        found = False
        for factor, band, other, kept, observed in (
            (step.L, self.cross.columns, step.R[self.cross.columns.indices], step.kept_by_row, self.observed_by_row),
            (step.R, self.cross.rows, step.L[self.cross.rows.indices], step.kept_by_column, self.observed_by_column),
        ):
            share = kept / np.maximum(observed, 1)
            which = np.flatnonzero((share < _LOW_INLIERS * np.median(share)) & (observed > 0))
            if len(which):
                factor[which] = band.refit(which, other, spread)
                found = True
        return found


def _sample_size(n: int, rank: int, oversampling: float) -> int:
    """Return how many of n rows or columns are drawn."""
    return min(n, max(_LEAST_SAMPLE, rank, math.ceil(min(n, oversampling * rank * math.log(n)))))


def _core_svd(core: Any, rank: int, basis: Any, rng: np.random.Generator) -> PartialSVD:
    """Return the leading singular triplets of the core, some more than `rank`."""
    width = min(rank + OVERSAMPLING, *core.shape)
    adjoint = core.conj().T
    if basis.any():
        basis, steps = widened(basis, width, rng), _WARM_STEPS
    else:
        basis, steps = random_basis(core.shape[1], width, rng), _COLD_STEPS
    return leading_svd(lambda A: core @ A, lambda B: adjoint @ B, basis, steps=steps)
