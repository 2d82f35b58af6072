"""Rows and columns with few inliers.

A row whose error is larger than the others' has all its entries rejected, gets no gradient and stays wrong. It has few
inliers while it keeps clearly less than the median row. Two remedies: its own normal equations, which give a row with
few kept entries the longer step that it needs, and, where that came too late, a robust regression of the row on the
components found so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lrpca.core.passes import Kept, Pass
from lrpca.matrices.dense import DenseMatrix, observed_entries
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.refit import refit_rows
from lrpca.solvers.rows import row_quantile

# A row has few inliers when it keeps less than this share of what the median row keeps (chance alone hardly gets there
# from some hundred entries on; in shorter rows it only costs normal equations), and is refitted below the second one.
FEW_INLIERS, REFITTED = 0.7, 0.6
# Without noise every row is explained or not: one that keeps less than this share of the median is not.
UNEXPLAINED = 0.3
# Rows and columns that are read, to tell whether unexplained ones matter.
_READ = 200
# One common step does for rows and columns of which more than this share is observed.
MOSTLY_OBSERVED = 0.9
# Where fewer entries than this share are kept, rows differ enough by chance alone.
FEW_KEPT = 0.5
# Entries that are refitted at a time, and that are held (256 MB of doubles); of each row or column at least so many are
# read, evenly spread, where not all can be.
_PIECE, _HELD, _LEAST_TAKEN = 1 << 20, 1 << 25, 1 << 12
_GOLDEN = 0.6180339887498949
# Normal equations exist packed, unpacked and damped, in double precision; so many numbers never matter (64 MB).
GRAM_COPIES, SMALL_GRAMS = 3, 8_000_000
# Counts are counted where they lie within so many times their number.
_DENSE = 8
# What chance does not do, in standard deviations.
SURELY = 6.0


def low_inlier_rows(last: Pass | None, counts: ObservationCounts) -> bool:
    """Tell whether some row or column keeps far less than the others."""
    if last is None:
        return False
    # The median, which takes longer to find, is at most the largest.
    if last.report is not None and counts.is_complete:
        if all(least >= FEW_INLIERS * most for least, most in (last.report.by_row, last.report.by_column)):
            return False
    return any(
        share.min() < FEW_INLIERS * share.max() and share.min() < FEW_INLIERS * float(np.median(share))
        for share in _shares(last.kept, counts)
    )


def unexplained_rows(kept: Kept, counts: ObservationCounts, rank: int = 0) -> bool:
    """Tell whether some row or column of data without noise is unexplained.

    Any coefficients may explain as many entries as there are of them: so many, the `rank`, tell nothing.
    """
    return any(len(few) for few in keeping_less(kept, counts, UNEXPLAINED, fitted=rank))


def keeps_majorities(kept: Kept, counts: ObservationCounts, rank: int) -> bool:
    """Tell whether more than half of every row and column is kept, `rank` entries aside."""
    return all(
        ((2 * (mine - rank) > seen - rank) | (seen == 0)).all() for mine, seen in _kept_and_observed(kept, counts)
    )


def unexplained_by_more_than(
    matrix: DenseMatrix,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    kept: Kept,
    counts: ObservationCounts,
    size: float,
) -> bool:
    """Tell whether a row or column is unexplained whose residuals are larger than `size` in the median.

    A threshold far below the error that counts rejects whole rows, too.
    """
    rows, columns = (few[:_READ] for few in keeping_less(kept, counts, UNEXPLAINED))
    for indices, axis, factor, other in ((rows, 0, L, R), (columns, 1, R, L)):
        if len(indices):
            part, chosen = _taken(matrix, axis, indices)
            residuals = np.abs(part.array - np.asarray(factor[indices]) @ np.asarray(other[chosen]).T)
            hidden = residuals != residuals if part.mask is None else ~part.mask | (residuals != residuals)
            if (row_quantile(np.where(hidden, np.nan, residuals), 0.5) > size).any():
                return True
    return False


def needs_row_normal_equations(last: Pass | None, counts: ObservationCounts, rank: int, *, low_inlier: bool) -> bool:
    """Tell whether rows and columns should be solved by their own normal equations.

    Where much of some row or column is missing, many entries are rejected, or some row has few inliers; never where the
    equations would take more memory than Y.
    """
    if not grams_fit(counts.shape, rank):
        return False
    kept = 1.0 if last is None else last.n_kept / max(1.0, counts.entries)
    return counts.least_observed < MOSTLY_OBSERVED or low_inlier or kept < FEW_KEPT


def grams_fit(shape: tuple[int, int], rank: int) -> bool:
    """Tell whether the normal equations of all rows and columns take no more memory than Y."""
    n1, n2 = shape
    return GRAM_COPIES * (n1 + n2) * rank**2 <= max(n1 * n2, SMALL_GRAMS)


def refit_low_inlier_rows(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    last: Pass,
    counts: ObservationCounts,
    cutoff: float,
    *,
    exact: bool,
) -> bool:
    """Refit rows and columns with few inliers, the other factor fixed; tell whether any became better.

    Better is a fit that leaves clearly more entries within the `cutoff` of the last pass. In an `exact` fit, without
    noise, those that keep a little less than the others are refitted too.
    """
    both = keeping_less(last.kept, counts, REFITTED, SURELY if exact else math.inf)
    return refit_some(matrix, L, R, both, partial(refit_rows, cutoff=cutoff))


def refit_some(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    both: tuple[Any, Any],
    refit: Callable[[Any, Any, Any, Any], tuple[Any, Any]],
) -> bool:
    """Refit these rows and columns, the other factor fixed; tell whether any became better.

    `refit` takes values, which are observed, the other factor and the present coefficients. It returns coefficients,
    and which are better.
    """
    matrix.reads += sum(len(some) / n for some, n in zip(both, matrix.shape, strict=True))
    better = False
    for axis, (indices, factor, other) in enumerate(zip(both, (L, R), (R, L), strict=True)):
        for group in _in_pieces(indices, _HELD // _LEAST_TAKEN):
            held, chosen = _taken(matrix, axis, group)
            among = np.asarray(other[chosen])
            for some in _in_pieces(np.arange(len(group)), _PIECE // held.shape[1]):
                part, mine = held.take_rows(some), group[some]
                observed = observed_entries(part.array, part.mask)
                values = np.where(observed, part.array, 0).astype(np.promote_types(part.arithmetic, np.float64))
                best, improved = refit(values, observed, among, np.asarray(factor[mine]))
                factor[mine[improved]] = best[improved]
                better |= bool(improved.any())
    return better


def keeping_less(
    kept: Kept, counts: ObservationCounts, than: float, surely: float = math.inf, *, fitted: int = 0
) -> tuple[Any, Any]:
    """Return the observed rows and columns that keep less `than` this times the median share.

    Also those that keep less than the median by more than `surely` standard deviations of chance. So many `fitted`
    entries do not count, where there are twice as many.
    """
    found = []
    for count, observed in _kept_and_observed(kept, counts):
        if fitted:
            enough = observed > 2 * fitted
            count, observed = count - fitted * enough, observed - fitted * enough
        share = count / np.maximum(observed, 1)
        if not math.isfinite(surely) and share.min() >= than * share.max():
            found.append(np.zeros(0, np.intp))
            continue
        typical = _median_share(count, observed)
        few = share < than * typical
        if math.isfinite(surely):
            chance = np.sqrt(typical * (1 - typical) / np.maximum(observed, 1)) + 1 / np.maximum(observed, 1)
            few = few | (share < typical - surely * chance)
        found.append(np.flatnonzero(few & (observed > 0)))
    return found[0], found[1]


def _shares(kept: Kept, counts: ObservationCounts) -> tuple[Any, Any]:
    """Return which shares the observed rows, and columns, keep of what is observed of them."""
    both = _kept_and_observed(kept, counts)
    if counts.least_observed_count:
        by_row, by_column = (count / observed for count, observed in both)
    else:
        by_row, by_column = ((count / np.maximum(observed, 1))[observed > 0] for count, observed in both)
    return by_row, by_column


def _kept_and_observed(kept: Kept, counts: ObservationCounts) -> list[tuple[Any, Any]]:
    """Return how many entries are kept, and observed, of the rows and of the columns, on the host.

    Where everything is observed, one number says so of all rows, and one of all columns.
    """
    by_row, by_column = (np.asarray(numbers) for numbers in kept)
    n1, n2 = counts.shape
    if counts.is_complete:
        return [(by_row, np.int64(n2)), (by_column, np.int64(n1))]
    return [(by_row, counts.observed_by_row), (by_column, counts.observed_by_column)]


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


def _in_pieces(
    indices: Any,  # (m,) int
    count: int,
) -> Iterator[Any]:
    count = max(1, count)
    return (indices[first : first + count] for first in range(0, len(indices), count))


def _taken(
    matrix: DenseMatrix,
    axis: int,
    indices: Any,  # (m,) int
) -> tuple[DenseMatrix, Any]:
    """Return some rows (axis 0) or columns (axis 1), as rows, and which of their entries: all, if memory holds them."""
    count, n = max(_LEAST_TAKEN, _HELD // len(indices)), matrix.shape[1 - axis]
    if count >= n:
        return (matrix.take_columns if axis else matrix.take_rows)(indices), slice(None)
    steps = np.arange(count)
    # One from each stretch, its place within the stretch from a sequence that fits no period.
    chosen = ((steps + steps * _GOLDEN % 1.0) * (n / count)).astype(int)
    if axis == 0:
        return matrix.submatrix(indices, chosen), chosen
    part = matrix.submatrix(chosen, indices)
    return DenseMatrix(part.array.T, None if part.mask is None else part.mask.T), chosen
