"""Rows and columns that are left behind.

A row whose error is larger than the others' has all its entries rejected, gets no gradient and stays wrong for ever. It
lags while it keeps clearly less than the others, and is lost when it keeps hardly anything of what it should.
Two cures: its own Gram, which gives a row with few kept entries the longer step it needs, and, where that came too
late, a robust regression of the row on the components found so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lrpca.core.passes import Kept, Pass
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.minimal_subsets import consensus
from lrpca.solvers.initialise import Survey
from lrpca.solvers.rows import robust_coefficients, row_quantile

# A row lags when it keeps less than this share of what the median row keeps (chance alone hardly gets there from some
# hundred entries on; in shorter rows it only costs own Grams), and is lost below the second one.
_LAGGING = 0.7
_LOST = 0.6
# Without noise every row is explained or lost: one that keeps less than this share of the median is.
_LEFT_BEHIND = 0.3
# Rows and columns that are looked at, to tell whether those left behind matter.
_LOOKED_AT = 200
# One common step does for rows and columns of which more than this share is observed.
_MOSTLY_OBSERVED = 0.9
# Where fewer entries than this share are kept, rows differ enough by chance alone.
_FEW_KEPT = 0.5
_CHUNK = 1 << 20
# Entries of rows and columns that are held at a time where every look at them is a read of Y (256 MB of doubles); of
# each at least so many are taken, evenly spread, where not all can be.
_HELD, _LEAST_TAKEN = 1 << 25, 1 << 12
# Rows and columns in memory are taken whole up to this length.
_LONG = 1 << 13
_GOLDEN = 0.6180339887498949
# Grams exist packed, unpacked and damped, in double precision; so many numbers never matter (64 MB).
_GRAM_COPIES = 3
_SMALL_GRAMS = 8_000_000
# A row that explains this part of what others do needs no other fit.
_NEARLY = 0.98
# A fit is better that explains a tenth more entries.
BETTER = 1.1
# Counts are counted where they lie within so many times their number.
_DENSE = 8
# What chance does not do, in standard deviations, to rows and to columns.
_SURELY, _NEVER = (6.0, 6.0), (math.inf, math.inf)


def lagging(last: Pass | None, survey: Survey) -> bool:
    """Tell whether some row or column keeps far less than the others."""
    if last is None:
        return False
    # The median, which takes longer to find, is at most the largest.
    if last.report is not None and survey.is_complete:
        if all(least >= _LAGGING * most for least, most in (last.report.by_row, last.report.by_column)):
            return False
    return any(
        share.min() < _LAGGING * share.max() and share.min() < _LAGGING * float(np.median(share))
        for share in _shares(last.kept, survey)
    )


def left_behind(kept: Kept, survey: Survey, rank: int = 0) -> bool:
    """Tell whether some row or column was given up, in data without noise: there each is explained or lost.

    Any coefficients may explain as many entries as there are of them: so many, the `rank`, tell nothing.
    """
    return any(len(behind) for behind in keeping_less(kept, survey, _LEFT_BEHIND, fitted=rank))


def given_up(
    matrix: DenseMatrix,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    kept: Kept,
    survey: Survey,
    size: float,
) -> bool:
    """Tell whether a row or column was left behind whose residuals are larger than `size` in the median.

    A threshold far below the error that counts rejects whole rows, too.
    """
    rows, columns = (behind[:_LOOKED_AT] for behind in keeping_less(kept, survey, _LEFT_BEHIND))
    for indices, axis, factor, other in ((rows, 0, L, R), (columns, 1, R, L)):
        if len(indices):
            part, chosen = _held(matrix, axis, indices)
            residuals = np.abs(part.array - np.asarray(factor[indices]) @ np.asarray(other[chosen]).T)
            hidden = residuals != residuals if part.mask is None else ~part.mask | (residuals != residuals)
            if (row_quantile(np.where(hidden, np.nan, residuals), 0.5) > size).any():
                return True
    return False


def needs_own_grams(last: Pass | None, survey: Survey, rank: int, *, behind: bool) -> bool:
    """Tell whether rows and columns should be solved by their own Grams.

    Where much of some row or column is missing, many entries are rejected, or someone lags `behind`; never where the
    Grams would take more room than Y.
    """
    n1, n2 = survey.shape
    if _GRAM_COPIES * (n1 + n2) * rank**2 > max(n1 * n2, _SMALL_GRAMS):
        return False
    kept = 1.0 if last is None else last.n_kept / max(1.0, survey.entries)
    return survey.least_observed < _MOSTLY_OBSERVED or behind or kept < _FEW_KEPT


def rescue_lost(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    last: Pass,
    survey: Survey,
    cutoff: float,
    *,
    thorough: bool,
) -> bool:
    """Fit lost rows and columns anew, robustly, with the other factor fixed; tell whether any became better.

    Better is a fit that leaves clearly more entries within the `cutoff` of the last pass. A `thorough` search, which
    pays where there is no noise, also takes those that keep a little less than the others.
    """
    rows, columns = keeping_less(last.kept, survey, _LOST, _SURELY if thorough else _NEVER)
    if len(rows) + len(columns) == 0:
        return False
    matrix.reads += 1  # counted as a whole read, though only some rows and columns are
    typical = [float(np.median(share)) for share in _shares(last.kept, survey)]
    sides = (Lines(matrix, 0, rows), L, R, typical[0]), (Lines(matrix, 1, columns), R, L, typical[1])
    better = False
    for annealed in (False, True) if thorough else (False,):
        for lost, factor, other, share in sides:
            better |= _refit(lost, factor, other, cutoff, share, annealed=annealed)
    return better


def keeping_less(
    kept: Kept, survey: Survey, than: float, surely: tuple[float, float] = _NEVER, *, fitted: int = 0
) -> tuple[Any, Any]:
    """Return the observed rows and columns that keep less `than` this times the median share.

    Also those that keep less than the median by more than `surely`, for rows and for columns, in standard deviations of
    chance: a column whose coefficient is wrong for one group of rows only keeps all the others. So many `fitted`
    entries do not count, where there are twice as many.
    """
    found = []
    for (count, observed), deviations in zip(_counts(kept, survey), surely, strict=True):
        if fitted:
            enough = observed > 2 * fitted
            count, observed = count - fitted * enough, observed - fitted * enough
        share = count / np.maximum(observed, 1)
        if not math.isfinite(deviations) and share.min() >= than * share.max():
            found.append(np.zeros(0, np.intp))
            continue
        typical = _median_share(count, observed)
        few = share < than * typical
        if math.isfinite(deviations):
            chance = np.sqrt(typical * (1 - typical) / np.maximum(observed, 1)) + 1 / np.maximum(observed, 1)
            few = few | (share < typical - deviations * chance)
        found.append(np.flatnonzero(few & (observed > 0)))
    return found[0], found[1]


def _shares(kept: Kept, survey: Survey) -> tuple[Any, Any]:
    """Return which shares the observed rows, and columns, keep of what is observed of them."""
    both = _counts(kept, survey)
    if survey.least_observed_count:
        by_row, by_column = (count / observed for count, observed in both)
    else:
        by_row, by_column = ((count / np.maximum(observed, 1))[observed > 0] for count, observed in both)
    return by_row, by_column


def _counts(kept: Kept, survey: Survey) -> list[tuple[Any, Any]]:
    """Return how many entries are kept, and observed, of the rows and of the columns, on the host.

    Where everything is observed, one number says so of all rows, and one of all columns.
    """
    by_row, by_column = (np.asarray(counts) for counts in kept)
    n1, n2 = survey.shape
    if survey.is_complete:
        return [(by_row, np.int64(n2)), (by_column, np.int64(n1))]
    return [(by_row, survey.observed_by_row), (by_column, survey.observed_by_column)]


def _median_share(
    count: Any,  # (n,) int
    observed: Any,  # (n,) int, or one number for all
) -> float:
    """Return the median of the shares that are kept of what is observed."""
    if observed.ndim:
        return float(np.median((count / np.maximum(observed, 1))[observed > 0]))
    least, n = count.min(), len(count)
    if count.max() - least > _DENSE * n:
        return float(np.median(count / observed))
    # By counting how often each number occurs, which takes a tenth of the time of a search among them.
    up_to = np.cumsum(np.bincount(count - least))
    middle = least + np.searchsorted(up_to, [(n - 1) // 2, n // 2], side="right")
    return float(np.mean(middle / observed))


class Lines:
    """Some rows (axis 0) or columns (axis 1), as rows: taken a few at a time, or, of Y in blocks, as many as fit.

    Of long ones a part of the entries is looked at, which is enough for a fit; passes see all of them.
    """

    def __init__(
        self,
        matrix: DenseMatrix,
        axis: int,
        indices: Any,  # (m,) int
    ) -> None:
        self._matrix, self._axis, self._indices = matrix, axis, indices
        self._kept: tuple[DenseMatrix, Any] | None = None

    def pieces(self) -> Iterator[tuple[Any, DenseMatrix, Any]]:
        """Yield (indices, those rows, which of their entries are there)."""
        if not isinstance(self._matrix, ChunkedMatrix):
            length = self._matrix.shape[1 - self._axis]
            count = length if length <= _LONG else _LEAST_TAKEN
            for some in _in_pieces(self._indices, _CHUNK // count):
                yield some, *taken(self._matrix, self._axis, some, count)
            return
        for group in _in_pieces(self._indices, _HELD // _LEAST_TAKEN):
            part, chosen = self._kept or _held(self._matrix, self._axis, group)
            if len(group) == len(self._indices):
                self._kept = part, chosen
            for some in _in_pieces(np.arange(len(group)), _CHUNK // part.shape[1]):
                yield group[some], part.take_rows(some), chosen


def _in_pieces(
    indices: Any,  # (m,) int
    count: int,
) -> Iterator[Any]:
    count = max(1, count)
    return (indices[first : first + count] for first in range(0, len(indices), count))


def _held(
    matrix: DenseMatrix,
    axis: int,
    indices: Any,  # (m,) int
) -> tuple[DenseMatrix, Any]:
    """Return some rows (axis 0) or columns (axis 1), as rows, and which of their entries: all, if memory holds them."""
    return taken(matrix, axis, indices, max(_LEAST_TAKEN, _HELD // len(indices)))


def taken(
    matrix: DenseMatrix,
    axis: int,
    indices: Any,  # (m,) int
    count: int,
) -> tuple[DenseMatrix, Any]:
    """Return `count` entries of some rows (axis 0) or columns (axis 1), as rows, and which: evenly spread."""
    n = matrix.shape[1 - axis]
    if count >= n:
        return (matrix.take_columns if axis else matrix.take_rows)(indices), slice(None)
    steps = np.arange(count)
    # One from each stretch, its place within the stretch from a sequence that fits no period.
    chosen = ((steps + steps * _GOLDEN % 1.0) * (n / count)).astype(int)
    if axis == 0:
        return matrix.submatrix(indices, chosen), chosen
    part = matrix.submatrix(chosen, indices)
    return DenseMatrix(part.array.T, None if part.mask is None else part.mask.T), chosen


def residuals_within(
    part: DenseMatrix,  # (m, n) some rows
    coefficients: Any,  # (m, r)
    among: Any,  # (n, r)
    cutoff: float,
) -> tuple[Any, Any, Any]:
    """Return the residuals of rows, which of them are observed, and which of those are within the cutoff."""
    residuals = part.array - coefficients @ among.T
    seen = residuals == residuals
    if part.mask is not None:
        seen &= part.mask
    return residuals, seen, (np.abs(residuals) <= cutoff) & seen


def _refit(lost: Lines, factor: Any, other: Any, cutoff: float, typical: float, *, annealed: bool) -> bool:
    """Fit lost rows anew, and by consensus those that this leaves lost; tell whether any became better.

    An annealed fit is made unless all explain nearly the `typical` share by now.
    """
    better = False
    for some, part, chosen in lost.pieces():
        among = np.asarray(other[chosen])
        before = _explained(part, np.asarray(factor[some]), among, cutoff)
        enough = _NEARLY * typical * _explained(part, None, among, math.inf)
        if annealed and (before >= enough).all():
            continue
        fresh = robust_coefficients(part, among, 0.0, annealed=annealed, by_blocks=True)
        after = _explained(part, fresh, among, cutoff)
        few = np.flatnonzero(np.maximum(before, after) < enough)
        if len(few) and not annealed:
            agreed = consensus(part.take_rows(few), among, cutoff)
            explained = _explained(part.take_rows(few), agreed, among, cutoff)
            # A row of nothing but outliers is not explained by those that a fit was made to.
            believed = explained - among.shape[1] > _LEFT_BEHIND / _NEARLY * enough[few]
            more = believed & (explained > after[few])
            fresh[few[more]], after[few[more]] = agreed[more], explained[more]
        improved = after > BETTER * before + 1
        factor[some[improved]] = fresh[improved]
        better |= bool(improved.any())
    return better


def _explained(part: DenseMatrix, coefficients: Any, other: Any, cutoff: float) -> Any:
    """Return how many entries of each row are within the cutoff; without coefficients, how many there are."""
    counts = []
    for start, block, mask in part.blocks(max(1, _CHUNK // part.shape[1])):
        fitted = 0.0 if coefficients is None else coefficients[start : start + len(block)] @ other.T
        within = np.abs(block - fitted) <= cutoff
        counts.append(np.sum(within if mask is None else within & mask, axis=1))
    return np.concatenate(counts)
