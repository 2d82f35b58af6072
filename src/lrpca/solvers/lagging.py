"""Rows and columns that are left behind.

A row whose error is larger than the others' has all its entries rejected, gets no gradient and stays wrong for ever.
Two cures: its own Gram, which gives a row with few kept entries the longer step it needs, and, where that came too
late, a robust regression of the row on the components found so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.kernels.reference import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.regression import robust_coefficients, row_quantile
from lrpca.solvers.start import Survey

# A row lags when it keeps less than this share of what the median row keeps (chance alone stays above, even with 60%
# outliers in a hundred entries), and is lost below the second one.
_LAGGING = 0.7
_LOST = 0.6
_CHUNK = 1 << 20
# Grams exist packed, unpacked and damped, in double precision; so many numbers never matter (64 MB).
_GRAM_COPIES = 3
_SMALL_GRAMS = 8_000_000
# Judge of a fit: this quantile of its residuals. Outliers sit above it, and a wrong fit has few small residuals.
_LOW_QUANTILE = 0.3


def needs_own_grams(last: Pass | None, survey: Survey, rank: int) -> bool:
    """Tell whether rows and columns should be solved by their own Grams: entries are missing, or someone lags.

    Never where the Grams would take more room than Y.
    """
    n1, n2 = len(survey.observed_by_row), len(survey.observed_by_column)
    if _GRAM_COPIES * (n1 + n2) * rank**2 > max(n1 * n2, _SMALL_GRAMS):
        return False
    if survey.observed < 1:
        return True
    return last is not None and any(len(behind) for behind in _behind(last, survey, _LAGGING))


def rescue_lost(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    last: Pass,
    survey: Survey,
) -> bool:
    """Fit lost rows and columns anew, robustly, with the other factor fixed; tell whether any became better."""
    rows, columns = _behind(last, survey, _LOST)
    if len(rows) + len(columns) == 0:
        return False
    matrix.reads += 1  # counted as a whole read, though only some rows and columns are
    better = [_refit(matrix.take_rows, rows, L, R), _refit(matrix.take_columns, columns, R, L)]
    return any(better)


def _behind(last: Pass, survey: Survey, least: float) -> tuple[Any, Any]:
    """Return the observed rows and columns that keep less than `least` times the median share."""
    found = []
    for kept, observed in (
        (last.kept_by_row, survey.observed_by_row),
        (last.kept_by_column, survey.observed_by_column),
    ):
        share = kept / np.maximum(observed, 1)
        typical = np.median(share[observed > 0])
        found.append(np.flatnonzero((share < least * typical) & (observed > 0)))
    return found[0], found[1]


def _refit(take: Any, indices: Any, factor: Any, other: Any) -> bool:
    count = max(1, _CHUNK // len(other))
    better = False
    for first in range(0, len(indices), count):
        chunk = indices[first : first + count]
        part = take(chunk)
        fresh = robust_coefficients(part, other, 0.0)
        improved = _low_residual(part, fresh, other) < 0.5 * _low_residual(part, factor[chunk], other)
        factor[chunk[improved]] = fresh[improved]
        better |= bool(improved.any())
    return better


def _low_residual(part: DenseMatrix, coefficients: Any, other: Any) -> Any:
    """Return a low quantile of each row's |residual|."""
    sizes = []
    for start, block, mask in part.blocks(max(1, _CHUNK // part.shape[1])):
        residual = np.abs(block - coefficients[start : start + len(block)] @ other.T)
        if mask is not None:
            residual = np.where(mask, residual, np.nan)
        sizes.append(row_quantile(residual, _LOW_QUANTILE))
    return np.concatenate(sizes)
