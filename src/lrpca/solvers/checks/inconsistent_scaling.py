"""Fits that are divided: right up to a factor that is not the same everywhere.

Scaled by one factor in some rows and by its inverse in some columns, X is exact where these meet and where the others
do. Thresholds that fell too early take all the rest for outliers, and X stands still. No row keeps less than the
others then, so none is lost. But what is rejected is no outliers: one other fit explains much of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.low_inlier_rows import BETTER, Lines, residuals_within, taken
from lrpca.solvers.rows import robust_coefficients

# Where less than this share is kept, X may be divided: asked of so many rows and columns, and so many entries of each.
MAY_BE_DIVIDED, LINES, ENTRIES = 0.75, 16, 128
# It is if in more than this part of them another fit explains this part of what X does, and more than chance would.
PART, EXPLAINED, BY_CHANCE = 0.25, 0.25, 3


def divided(
    matrix: DenseMatrix,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    cutoff: float,
) -> bool:
    """Tell whether other fits explain much of what is beyond the cutoff, in a few rows or columns."""
    if isinstance(matrix, ChunkedMatrix):
        matrix.reads += 2  # however few entries: they are in all blocks
    for axis, factor, other in ((0, L, R), (1, R, L)):
        n = matrix.shape[axis]
        lines = np.arange(0, n, -(-n // LINES))
        part, chosen = taken(matrix, axis, lines, ENTRIES)
        found = _other_fits(part, np.asarray(factor[lines]), np.asarray(other[chosen]), cutoff)
        tells = (found.rejected > EXPLAINED * found.before) & (found.rejected > 2 * L.shape[1] + BY_CHANCE)
        if np.mean(tells) > PART:
            return True
    return False


def reconcile(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    cutoff: float,
) -> bool:
    """Give rows, then columns, the other fit where it explains clearly more; tell whether it does anywhere."""
    matrix.reads += 2
    better = False
    for axis, factor, other in ((0, L, R), (1, R, L)):
        for some, part, chosen in Lines(matrix, axis, np.arange(matrix.shape[axis])).pieces():
            old = np.asarray(factor[some])
            found = _other_fits(part, old, np.asarray(other[chosen]), cutoff)
            improved = found.after > BETTER * found.before + 1
            factor[some[improved]] = (old + found.step)[improved]
            better |= bool(improved.any())
    return better


class _OtherFits(NamedTuple):
    step: Any  # (m, r) from the coefficients of rows to other ones
    before: Any  # (m,) how many entries the present ones explain
    after: Any  # (m,) ... and the others
    rejected: Any  # (m,) those of them that are rejected at present


def _other_fits(
    part: DenseMatrix,  # (m, n) some rows
    coefficients: Any,  # (m, r)
    among: Any,  # (n, r)
    cutoff: float,
) -> _OtherFits:
    """Fit what is beyond the cutoff in some rows."""
    residuals, seen, within = residuals_within(part, coefficients, among, cutoff)
    step = robust_coefficients(DenseMatrix(residuals, seen & ~within), among, 0.0, by_blocks=True)
    explained = (np.abs(residuals - step @ among.T) <= cutoff) & seen
    return _OtherFits(step, within.sum(axis=1), explained.sum(axis=1), (explained & ~within).sum(axis=1))
