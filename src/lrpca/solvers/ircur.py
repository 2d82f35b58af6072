"""IRCUR: iterated robust CUR decompositions [1]_, which look at a few rows and columns of Y only.

    S = hard(Y - X, ζ) on sampled rows I and columns J,   C = (Y - S)[:, J],   R = (Y - S)[I, :],
    X = C (C[I, :])_r⁺ R,   ζ ← γ ζ.

With ``(C[I, :])_r = U Σ V^H`` the low-rank part is ``X = (C V) Σ⁻¹ (U^H R)``: factors of rank r, so that X is never
formed. On entries that the threshold keeps, Y - S is Y; on the others, and where Y is missing, it is X. An iteration is
one fused pass over the sampled rows and one over the sampled columns.

Beyond the paper: rows and columns are drawn without replacement; the threshold starts at the scale of the data and is
held above the noise; a component counts once it stands out of what residuals below the threshold could make (a rank
too large would otherwise fit outliers of the core); and rows and columns that lost most of their entries, which the
iteration leaves behind for ever, are fitted anew by robust regression on their sampled entries before it ends.

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
from typing import Any

import numpy as np

from lrpca.core.factors import orthonormal, product_norm
from lrpca.core.influence import Levels, everything, levels
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.base import Solution
from lrpca.solvers.cross import Band
from lrpca.solvers.options import choice, number
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, leading_svd, random_basis, widened
from lrpca.solvers.rows import robust_coefficients
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
_STANDS_OUT = 0.7
# Rows that keep less than this part of what others keep are fitted anew before the end, so many times.
_LOST, _REFITS = 0.5, 2
# The low quantile of the core's residuals that stands for their spread, and that of |N(0, 1)| in its place.
_LOW, _LOW_NORMAL = 0.2, 0.2533
# Residuals of the core that the spread is read off.
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
        iterations, each of them two or three times slower, and no rest in noise.
    oversampling : float
        ``oversampling * rank * log(n)`` rows and columns are drawn, at least 60.
    gamma : float
        By what factor the threshold falls, in (0, 1): 0.5 is faster with few outliers, 0.85 withstands half of them.
    threshold : float, optional
        The first threshold ζ; 12 times the median of |Y| if not given (the paper's max|Y| is decided by outliers).
    floor : float
        The threshold is held above so many times the spread of the clean residuals, which is all it can do in noise;
        0 lets it fall for ever, as in the paper.
    """
    if threshold is None:
        size = np.abs(run.sample.values)
        threshold = _FIRST * float(np.median(size)) or float(size.max(initial=0.0)) or 1.0
        run.settle(estimated=True, threshold=threshold)
    n1, n2 = run.matrix.shape
    wide = np.promote_types(run.matrix.arithmetic, np.float64)
    L, R = np.zeros((n1, run.rank), wide), np.zeros((n2, run.rank), wide)
    cross, basis, shares, reason = None, None, 0.0, "max_iter"
    refits, refitted = _REFITS, False
    try:
        for _ in run.iterations():
            if cross is None or sampling == "resample":
                cross = _Cross.drawn(run, oversampling, cross)
                shares += cross.share
                basis = orthonormal(R[cross.columns].conj())
            kept, spread = cross.thresholded(L, R, threshold)
            core = _core_svd(kept, run.rank, basis, run.rng)
            basis = core.V
            step = cross.update(L, R, core.cut(run.rank), threshold)
            L, R = step.L, step.R
            signal = cross.norm_of(L, R) / cross.norm if cross.norm else 1.0
            stop = run.record(L, R, threshold=threshold, residual=step.residual, kept=step.kept, signal=signal)
            if stop == "tol" and refitted:
                # The change of X was that of the refit.
                refitted, stop = False, None
            elif stop == "tol" and refits and cross.refit(step, spread):
                refits, refitted, stop = refits - 1, True, None
            if stop is not None:
                # A floor above all of X is made of outliers, not of noise.
                drowned = stop == "noise_floor" and step.residual > signal
                reason = "stalled" if drowned else stop
                break
            threshold = min(threshold, max(gamma * threshold, floor * spread))
    finally:
        if cross is not None:
            cross.close()
    run.matrix.reads += shares
    outcome = run.end(L, R, reason)
    # Rows and columns of which no sampled entry is observed rest on nothing.
    return outcome if cross is None else replace(outcome, kept=(cross.observed_by_row, cross.observed_by_column))


@dataclass(frozen=True)
class _Step:
    """What an iteration leads to."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    residual: float
    kept: float  # share of the sampled entries that are not in S
    kept_by_row: Any  # (n1,) int, of the sampled columns
    kept_by_column: Any  # (n2,) int, of the sampled rows


@dataclass(frozen=True)
class _Cross:
    """The sampled rows and columns of Y, and the core they have in common."""

    rows: Any  # (m1,) int
    columns: Any  # (m2,) int
    at_rows: DenseMatrix  # (m1, n2)
    at_columns: DenseMatrix  # (m2, n1)
    core: Any  # (m1, m2), NaN where missing
    norm: float  # ‖Y[I, :]‖ + ‖Y[:, J]‖ over observed entries
    observed_by_row: Any  # (n1,) int, of the sampled columns
    observed_by_column: Any  # (n2,) int, of the sampled rows
    share: float  # of Y that is read

    @classmethod
    def drawn(cls, run: Run, oversampling: float, before: _Cross | None) -> _Cross:
        """Draw rows and columns and read them."""
        if before is not None:
            before.close()
        matrix = run.matrix
        rows, columns = (
            np.sort(run.rng.permutation(n)[: _sample_size(n, run.rank, oversampling)]) for n in matrix.shape
        )
        at_rows, at_columns = matrix.take_rows(rows), matrix.take_columns(columns)
        at_rows.arithmetic = at_columns.arithmetic = matrix.arithmetic
        norm, observed = 0.0, []
        for band in (Band(at_columns, columns, False, matrix.unit), Band(at_rows, rows, True, matrix.unit)):
            first = _pass(band.matrix, None, None, everything(), None, energy=True)
            if not np.isfinite(first.norm_D) and band.matrix.compute_exactly():
                # The square of an outlier may be too large for single precision only.
                first = _pass(band.matrix, None, None, everything(), None, energy=True)
            if not np.isfinite(first.norm_D):
                band.refuse_largest()
            norm += first.norm_D
            observed.append(first.kept_by_column)
        wide = np.promote_types(matrix.arithmetic, np.float64)
        core = np.asarray(at_rows.array[:, columns], wide)
        if at_rows.mask is not None:
            core = np.where(at_rows.mask[:, columns], core, np.nan)
        n1, n2 = matrix.shape
        share = (len(rows) * n2 + len(columns) * (n1 - len(rows))) / (n1 * n2)
        return cls(rows, columns, at_rows, at_columns, core, norm, observed[0], observed[1], share)

    def close(self) -> None:
        """End the threads of the passes."""
        self.at_rows.close()
        self.at_columns.close()

    def norm_of(self, L: Any, R: Any) -> float:
        """Return ‖X[I, :]‖ + ‖X[:, J]‖."""
        return product_norm(L[self.rows], R) + product_norm(L, R[self.columns])

    def thresholded(self, L: Any, R: Any, threshold: float) -> tuple[Any, float]:
        """Return Y - S on the core, and the spread of its clean residuals."""
        X = L[self.rows] @ R[self.columns].T
        D = self.core - X
        size = np.abs(D)
        # Every so many entries, across rows and columns alike.
        few = size.ravel()[:: max(1, size.size // _MOST_RESIDUALS) | 1]
        few = few[few == few]
        place = int(_LOW * len(few))
        spread = float(np.partition(few, place)[place]) / _LOW_NORMAL if len(few) else 0.0
        with np.errstate(invalid="ignore"):
            return np.where(size <= threshold, self.core, X), spread

    def update(self, L: Any, R: Any, core: PartialSVD, threshold: float) -> _Step:
        """Return X = C (U Σ V^H)⁺ R by its factors, and what was kept on the way."""
        level = levels("hard", threshold)
        U, values, V = core
        by_rows = _pass(self.at_rows, L[self.rows], R, level, U.conj())
        by_columns = _pass(self.at_columns, R[self.columns], L, level, V)
        # U^H (Y - S)[I, :] and (Y - S)[:, J] V, with Y - S = X + C.
        right = R @ (L[self.rows].T @ U.conj()) + by_rows.CtB
        left = L @ (R[self.columns].T @ V) + by_columns.CtB
        least = _ABSENT * float(values[0])
        if len(values) < min(self.core.shape):
            # The strongest component counts anyway.
            least = max(least, min(_STANDS_OUT * threshold * math.sqrt(max(self.core.shape)), 0.5 * float(values[0])))
        there = values > least
        root = np.where(there, 1 / np.sqrt(np.where(there, values, 1.0)), 0.0)
        residual = (by_rows.norm_C + by_columns.norm_C) / self.norm if self.norm else 0.0
        row_kept, column_kept = by_columns.kept_by_column, by_rows.kept_by_column
        observed = int(self.observed_by_row.sum() + self.observed_by_column.sum())
        share = int(row_kept.sum() + column_kept.sum()) / max(1, observed)
        return _Step(left * root, right * root, residual, share, row_kept, column_kept)

    def refit(self, step: _Step, spread: float) -> bool:
        """Refit, in place, the rows of L and R that lost most of their entries; tell whether there were any."""
        lost = False
        for factor, part, other, kept, observed in (
            (step.L, self.at_columns, step.R[self.columns], step.kept_by_row, self.observed_by_row),
            (step.R, self.at_rows, step.L[self.rows], step.kept_by_column, self.observed_by_column),
        ):
            share = kept / np.maximum(observed, 1)
            which = np.flatnonzero((share < _LOST * np.median(share)) & (observed > 0))
            if len(which):
                mask = None if part.mask is None else part.mask[:, which].T
                factor[which] = robust_coefficients(DenseMatrix(part.array[:, which].T, mask), other, spread)
                lost = True
        return lost


def _sample_size(n: int, rank: int, oversampling: float) -> int:
    """Return how many of n rows or columns are drawn."""
    return min(n, max(_LEAST_SAMPLE, rank, math.ceil(min(n, oversampling * rank * math.log(n)))))


def _core_svd(
    core: Any,  # (m1, m2)
    rank: int,
    basis: Any,  # (m2, k) orthonormal, close to the right singular vectors; zeros at first
    rng: np.random.Generator,
) -> PartialSVD:
    """Return the leading singular triplets of the core, some more than `rank`."""
    width = min(rank + OVERSAMPLING, *core.shape)
    adjoint = core.conj().T
    if basis.any():
        basis, steps = widened(basis, width, rng), _WARM_STEPS
    else:
        basis, steps = random_basis(core.shape[1], width, rng), _COLD_STEPS
    return leading_svd(lambda A: core @ A, lambda B: adjoint @ B, basis, steps=steps)


def _pass(part: DenseMatrix, L: Any, R: Any, level: Levels, B: Any, *, energy: bool = False) -> Any:
    """Run a pass for CᵀB alone; None stands for factors and test matrices without columns."""
    m, n = part.shape
    none_m, none_n = np.zeros((m, 0)), np.zeros((n, 0))
    L, R, B = none_m if L is None else L, none_n if R is None else R, none_m if B is None else B
    return part.run_pass(L, R, level, A=none_n, B=B, energy=energy)
