"""Some rows and columns of Y, the block where they cross, and robust regressions of everything else on it.

With ``Y[I, J] = L_I R_Jᵀ`` solved, the other rows of L are the coefficients of ``Y[:, J]`` on R_J, the other rows of R
those of ``Y[I, :]`` on L_I, and ``X = L Rᵀ``. Rows and columns are read once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.factors import gram, product_norm, pseudo_inverse
from lrpca.core.influence import Levels, everything, levels
from lrpca.core.linalg import eigh
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import refuse_infinite, refuse_largest
from lrpca.solvers.partial_svd import half_pass
from lrpca.solvers.rows import robust_coefficients

# How many rows and columns are drawn: at least so many, so many for each component, and at most this part of Y.
_LEAST, _PER_COMPONENT, _MOST_OF_Y = 400, 32, 0.5
# The first coefficients are those of data clipped at so many times the median of |Y|.
_FIRST_CLIP = 5.0
# Where residuals are dropped in the end, in σ; before, at this part of the last step of those that step the furthest.
_KEEP_SIGMAS = 5.0
_FALL, _SLOW = 0.8, 0.999
_PASSES, _LAST_PASSES = 20, 3
# The threshold has come down to the noise, or so far that hardly an outlier is below it. No step is longer than that of
# a row which keeps this part.
_AT_NOISE, _NEAR_ROUNDING, _LEAST_KEPT = 1.5, 30.0, 0.3
# Rows that keep less than this part of the median are refitted, each by itself, after at most so many passes at the
# threshold of the noise.
_LOW_INLIERS, _PATIENCE = 0.85, 2
# A column lacks a direction of which it keeps less than this part of what it keeps of all. Grams are held of so many
# numbers at a time.
_LACKING, _GRAM_ENTRIES, _RIDGE = 0.3, 1 << 22, 1e-14
# Multiply-adds that one thread of OpenBLAS does alone.
_ALONE = 1 << 18
_MORE_ROUNDINGS = 20.0
# Below this part of the error that the noise causes, changes do not matter; nor so many roundings.
_NOISE_SHARE, _ROUNDINGS = 0.1, 4.0
_TINY = 1e-300


class Peak(NamedTuple):
    """What is known of clean residuals: their σ, the share of entries that are clean, and the scale of the data."""

    sigma: float
    share: float
    typical: float  # median of |Y|
    rounding: float  # nothing is known below

    @property
    def is_noise(self) -> bool:
        """Whether the residuals are more than rounding."""
        return self.sigma > _ROUNDINGS * self.rounding


@dataclass(frozen=True)
class Band:
    """Some rows of Y, or some columns as rows of a matrix."""

    matrix: DenseMatrix  # (m, n)
    indices: Any  # (m,) int
    of_rows: bool
    unit: float = 1.0  # of Y

    def first_pass(self, level: Levels, B: Any) -> Pass:
        """Return a pass at X = 0 with the norm of the band; raise where an entry is not finite, or too large."""
        first = half_pass(self.matrix, None, level, B=B, energy=True)
        # The square of an outlier may be too large for single precision only.
        if not math.isfinite(first.norm_D or 0.0) and self.matrix.compute_exactly():
            first = half_pass(self.matrix, None, level, B=B, energy=True)
        if not math.isfinite(first.norm_D or 0.0):
            i, j = self.matrix.find_largest()
            place = (int(self.indices[i]), j)
            refuse_largest(*(place if self.of_rows else place[::-1]), self.matrix.array[i, j] * self.unit)
        return first

    def part(self, columns: Any) -> DenseMatrix:
        """Return some columns of the band as a matrix."""
        mask = None if self.matrix.mask is None else self.matrix.mask[:, columns]
        return DenseMatrix(self.matrix.array[:, columns], mask)

    def refit(self, columns: Any, known: Any, noise: float) -> Any:
        """Return coefficients (k, r) of some columns, each fitted by itself (`lrpca.solvers.rows`)."""
        part = self.part(columns)
        part = DenseMatrix(part.array.T, None if part.mask is None else part.mask.T)
        part.arithmetic = self.matrix.arithmetic
        return robust_coefficients(part, known, noise)


@dataclass(frozen=True)
class Cross:
    """Sampled rows and columns, and the block they have in common."""

    rows: Band  # (m1, n2)
    columns: Band  # (m2, n1)
    core: DenseMatrix  # (m1, m2)

    def close(self) -> None:
        """End the threads of the passes."""
        for part in (self.rows.matrix, self.columns.matrix, self.core):
            part.close()


@dataclass(frozen=True)
class Fit:
    """Coefficients of all columns of a band on its known factor, and the last pass over it."""

    coefficients: Any  # (n, r)
    observed: Any  # (n,) int
    kept: Any  # (n,) int
    clean: float  # share of entries that should be kept
    norm: float  # ‖Y‖ of the band
    residual: float  # ‖C‖
    threshold: float
    change: float  # relative, in the last pass
    lacking: int = 0  # columns whose kept entries do not support some direction of the known factor

    def kept_shares(self) -> Any:
        """Return the kept part of the observed entries of every column, in units of what it should be.

        That is the median, or what the block leads to expect if most columns keep less; 1 where nothing is observed.
        """
        share = self.kept / np.maximum(self.observed, 1)
        typical = float(np.median(share[self.observed > 0])) if self.observed.any() else 0.0
        return np.where(self.observed > 0, share / max(typical, self.clean, _TINY), 1.0)


def cross_sides(shape: tuple[int, int], rank: int, observed: float, side: int | None = None) -> tuple[int, int] | None:
    """Return how many rows and columns to draw, or None where they would be most of Y."""
    wanted = math.ceil(max(_LEAST, _PER_COMPONENT * rank) / observed) if side is None else side
    (n1, n2), (m1, m2) = shape, (min(wanted, n) for n in shape)
    return None if m1 * n2 + m2 * (n1 - m1) > _MOST_OF_Y * n1 * n2 else (m1, m2)


def read_cross(matrix: DenseMatrix, rows: Any, columns: Any) -> Cross:  # rows (m1,) int; columns (m2,) int
    """Read some rows and columns."""
    at_rows, at_columns = matrix.take_rows(rows), matrix.take_columns(columns)
    n1, n2 = matrix.shape
    matrix.reads += (len(rows) * n2 + len(columns) * n1) / (n1 * n2)
    core = at_rows.submatrix(np.arange(len(rows)), columns)
    for i, j in np.argwhere(np.isinf(core.array) if core.mask is None else np.isinf(core.array) & core.mask)[:1]:
        refuse_infinite(int(rows[i]), int(columns[j]), core.array[i, j])
    for part in (at_rows, at_columns, core):
        part.arithmetic, part.threads = matrix.arithmetic, matrix.threads
    return Cross(Band(at_rows, rows, True, matrix.unit), Band(at_columns, columns, False, matrix.unit), core)


def regress(band: Band, known: Any, peak: Peak, tol: float) -> Fit:  # band (m, n); known (m, r)
    """Return robust coefficients of the columns of a band on known factors.

    Passes with a hard threshold, which follows the steps of the coefficients down to the noise of the `peak`. All
    columns have the Gram of `known` in common, and differ by how many entries they keep; low-inlier ones are refitted
    one by one (`lrpca.solvers.rows`).
    """
    state = _Regression(band, known, peak)
    limit = _limit(state, peak, tol)
    low, waited = np.zeros(len(state.coefficients), bool), 0
    for _ in range(_PASSES):
        waited += state.step()
        low = state.last.kept_shares() < _LOW_INLIERS
        if waited and (state.moved(~low) <= limit or (waited > _PATIENCE and low.any())):
            break
    lacking = state.lacking()
    which = np.flatnonzero(low | lacking)
    if len(which):
        state.coefficients[which] = band.refit(which, known, peak.sigma)
        for _ in range(_LAST_PASSES):
            state.step()
            if state.last.change <= limit:
                break
        lacking = state.lacking()
    return replace(state.last, lacking=int(np.count_nonzero(lacking)))


def _limit(state: _Regression, peak: Peak, tol: float) -> float:
    """Return the relative change of the coefficients that does not matter."""
    rounding = _ROUNDINGS * float(np.finfo(state.matrix.result).eps)
    if not peak.is_noise:
        return max(0.1 * tol, rounding)
    entries = math.sqrt(math.prod(state.matrix.shape))
    size = product_norm(state.known, state.coefficients)
    error = peak.sigma * math.sqrt(state.known.shape[1] / len(state.known)) * entries / max(size, _TINY)
    return max(_NOISE_SHARE * error, rounding)


class _Regression:
    """The coefficients so far."""

    def __init__(self, band: Band, known: Any, peak: Peak) -> None:
        self.band, self.matrix, self.known, self.peak = band, band.matrix, known, peak
        self.inverse = pseudo_inverse(gram(known))
        self.mean_gram = gram(known) / len(known)
        self.coefficients = np.zeros((band.matrix.shape[1], known.shape[1]), np.result_type(known, np.float64))
        first = band.first_pass(everything(_FIRST_CLIP * peak.typical), known.conj())
        self.norm, self.observed = first.norm_D or 0.0, first.kept_by_column
        self._add(first)
        self._last = math.inf
        self.last: Fit

    def step(self) -> bool:
        """Take one pass; tell whether its threshold was that of the noise."""
        # The error of most columns falls by a factor of five or more; the quantile is of those that are furthest away.
        noise = _KEEP_SIGMAS * self.peak.sigma
        threshold = max(noise, min(self._last, _FALL * float(np.quantile(self.moves, _SLOW))))
        self._last = threshold
        factors = self.known, self.coefficients
        result = half_pass(self.matrix, factors, levels("hard", threshold), B=self.known.conj())
        self._add(result)
        kept, change = result.kept_by_column, self.moved(slice(None))
        clean, norm = self.peak.share, self.norm
        self.last = Fit(self.coefficients, self.observed, kept, clean, norm, result.norm_C, threshold, change)
        return threshold <= (_AT_NOISE if self.peak.is_noise else _NEAR_ROUNDING) * noise

    def moved(self, which: Any) -> float:
        """Return the relative change that the last pass made to some columns of the fit."""
        size = float(np.linalg.norm(self.sizes[which]))
        return float(np.linalg.norm(self.moves[which])) / size if size else 0.0

    def _typical_entries(self, factor: Any) -> Any:
        """Return the root mean square (n,) of every column of `known` times a factor."""
        squares = np.sum(_times(factor, self.mean_gram) * factor.conj(), axis=1).real
        return np.sqrt(np.maximum(squares, 0.0))

    def lacking(self) -> Any:
        """Return the columns (n,) that keep far less of some direction of `known` than of the others.

        Where rows come in groups, few of them may support a direction: a column that is wrong there drops those few,
        and keeps nearly all the others. K being the Gram of its kept entries, in coordinates in which that of all
        entries is the identity, K v = λ v says which share λ of the direction v is kept.
        """
        rank, found = self.known.shape[1], np.zeros(len(self.coefficients), bool)
        if rank == 1:
            return found
        values, vectors = eigh(gram(self.known).conj())
        root = np.sqrt(np.maximum(values, _RIDGE * values[-1]))
        # X = (known V / √λ) (coefficients V̄ √λ)ᵀ, of which the left factor has the Gram 1.
        left, right = self.known @ (vectors / root), self.coefficients @ (vectors.conj() * root)
        count = max(1, _GRAM_ENTRIES // (rank * rank))
        for first in range(0, len(found), count):
            kept = self._kept_grams(left, right, slice(first, first + count))
            share = np.trace(kept, axis1=1, axis2=2).real / rank
            # The λ of a column have the mean `share`; if one is as small as that, their variance is at least this.
            variance = np.sum(np.abs(kept) ** 2, axis=(1, 2)) / rank - share**2
            unsure = np.flatnonzero(variance >= ((1 - _LACKING) * share) ** 2 / (rank - 1))
            if len(unsure):
                found[first + unsure] = np.linalg.eigvalsh(kept[unsure])[:, 0] < _LACKING * share[unsure]
        return found & (self.observed > 0)

    def _kept_grams(self, left: Any, right: Any, columns: slice) -> Any:
        """Return the Grams (k, r, r) of the entries of some columns that the last threshold keeps, or nearly."""
        # Without noise the threshold is some roundings, which a column may be off by and yet be right.
        level = levels("hard", (1.0 if self.peak.is_noise else _MORE_ROUNDINGS) * self._last)
        part, R = self.matrix, right[columns]
        if len(R) < len(right):
            part = self.band.part(columns)
            part.threads, part.arithmetic = self.matrix.threads, self.matrix.arithmetic
        return part.run_pass(left, R, level, A=R.conj(), B=left.conj(), grams=True).column_grams

    def _add(self, result: Pass) -> None:
        counted = np.maximum(result.kept_by_column, np.maximum(_LEAST_KEPT * self.observed, 1.0))
        self.added = _times(result.CtB * (len(self.known) / counted)[:, None], self.inverse)
        self.coefficients = self.coefficients + self.added
        self.moves, self.sizes = self._typical_entries(self.added), self._typical_entries(self.coefficients)


def _times(tall: Any, small: Any) -> Any:
    """Return their product, in pieces for which OpenBLAS starts no threads, which would slow down the next pass."""
    rows = max(1, _ALONE // small.size)
    if len(tall) <= rows:
        return tall @ small
    return np.concatenate([tall[first : first + rows] @ small for first in range(0, len(tall), rows)])
