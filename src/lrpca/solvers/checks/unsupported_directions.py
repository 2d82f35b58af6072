"""Rows and columns that are lost in one direction only.

Where a component lives in one group of rows, a column whose coefficient of it is wrong loses the entries of that group
and keeps all the others: it is not lost, and a fit of all its coefficients would have to find all the others again. But
hardly anything of what it keeps supports that coefficient. So only such directions are fitted, to what is rejected.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from lrpca.core.factors import thin_svd
from lrpca.core.linalg import eigh
from lrpca.core.passes import Kept, Pass
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.low_inlier_rows import Lines, keeping_less, residuals_within
from lrpca.solvers.checks.minimal_subsets import consensus
from lrpca.solvers.initialise import Survey

# How often chance alone makes one of all rows, or columns, keep so few entries that it is looked at: less often where
# that is a read of Y. Those that keep less than this share of the median are looked at, too, but no more than so many.
_RARELY, _READ_RARELY = 0.1, 0.01
_FEWER, _MOST = 0.6, 100
# A direction is unsupported when less than this part of the share that is kept of the whole row is kept of it.
_UNSUPPORTED = 0.3
# A step is taken if it explains more entries than chance would: two for each direction, and so many.
_BY_CHANCE = 3
# Components this much smaller than the largest are not there.
_ABSENT = 1e-10


def support(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    last: Pass,
    survey: Survey,
    cutoff: float,
) -> bool:
    """Fit the directions anew that rows and columns keep next to nothing of; tell whether any became better.

    Asked of those that keep less than chance would let them.
    """
    in_blocks = isinstance(matrix, ChunkedMatrix)
    lines = doubtful(last.kept, survey, _READ_RARELY if in_blocks else _RARELY)
    if not len(lines[0]) + len(lines[1]):
        return False
    looked_at = sum(len(some) / n for some, n in zip(lines, matrix.shape, strict=True))
    # Of blocks, however few entries: they are in all of them.
    matrix.reads += 1 if in_blocks else round(looked_at)
    better = False
    for axis, factor, other in ((0, L, R), (1, R, L)):
        for some, part, chosen in Lines(matrix, axis, lines[axis]).pieces():
            steps = _steps(part, np.asarray(factor[some]), np.asarray(other[chosen]), cutoff)
            stepped = steps.any(axis=1)
            factor[some[stepped]] = (np.asarray(factor[some]) + steps)[stepped]
            better |= bool(stepped.any())
    return better


def doubtful(kept: Kept, survey: Survey, rarely: float = _RARELY) -> tuple[Any, Any]:
    """Return the rows and columns that keep so little that chance does it `rarely` to any; of many, the worst."""
    deviations = [NormalDist().inv_cdf(1 - min(rarely / n, 0.5)) for n in survey.shape]
    found = keeping_less(kept, survey, _FEWER, (deviations[0], deviations[1]))
    observed = survey.observed_by_row, survey.observed_by_column
    shares = (
        np.asarray(counts)[some] / all_of[some] for counts, all_of, some in zip(kept, observed, found, strict=True)
    )
    rows, columns = (some[np.argsort(share, kind="stable")[:_MOST]] for some, share in zip(found, shares, strict=True))
    return rows, columns


def _steps(
    part: DenseMatrix,  # (m, n) some rows
    coefficients: Any,  # (m, r)
    among: Any,  # (n, r)
    cutoff: float,
) -> Any:
    """Return by what the coefficients of rows are to change, (m, r): 0 where nothing explains clearly more."""
    steps = np.zeros(coefficients.shape, np.promote_types(coefficients.dtype, among.dtype))
    U, sizes, Vh = thin_svd(among.astype(np.promote_types(among.dtype, np.float64)))
    there = sizes > _ABSENT * sizes.max(initial=0.0)
    if not there.any():
        return steps
    Q, back = U[:, there], Vh[there].conj() / sizes[there, None]
    residuals, seen, within = residuals_within(part, coefficients, among, cutoff)
    for i in np.flatnonzero(within.any(axis=1)):
        directions = _unsupported(Q, seen[i], within[i])
        if directions.shape[1] == 0:
            continue
        rejected = DenseMatrix(residuals[i : i + 1], (seen[i] & ~within[i])[None])
        step = directions @ consensus(rejected, Q @ directions, cutoff)[0]
        explained = (np.abs(residuals[i] - Q @ step) <= cutoff) & seen[i]
        more = np.sum(explained) - np.sum(within[i]) > 2 * directions.shape[1] + _BY_CHANCE
        if more and _unsupported(Q, seen[i], explained).shape[1] < directions.shape[1]:
            steps[i] = step @ back
    return steps


def _unsupported(
    Q: Any,  # (n, r) orthonormal
    seen: Any,  # (n,) bool
    kept: Any,  # (n,) bool
) -> Any:
    """Return the directions (r, k) of which hardly anything is kept, beside what is kept of all of the row."""
    whole, supported = (Q[which].conj().T @ Q[which] for which in (seen, kept))
    sizes, basis = eigh(whole)
    there = sizes > _ABSENT * sizes[-1]
    basis = basis[:, there] / np.sqrt(sizes[there])
    parts, vectors = eigh(basis.conj().T @ supported @ basis)
    return basis @ vectors[:, parts < _UNSUPPORTED * np.sum(kept) / np.sum(seen)]
