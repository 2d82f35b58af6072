"""Scores of rows on fixed axes: robust regression where a row has entries to spare, the likeliest scores where not.

With three entries and more for every coefficient, the majority of a row tells its outliers from the others. A row of
fewer, because the axes are many or its entries few, is fitted on its leading axes first. Entries that these and the
usual size of the other scores cannot explain are outliers; what is likeliest given the rest follows from the variances
along the axes: ``(V W Vᵀ + σ² Λ⁻¹) a = V W (y - mean)``, W being 1 for the entries that are left.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.rows import robust_coefficients
from lrpca.tables.bands import each_band

# Entries by coefficient that robust regression wants.
_ENTRIES = 3
# Entries beyond so many standard deviations of what the leading axes leave are outliers.
_OUTLYING = 4.0
# The noise is never taken below this part of the strongest axis' standard deviation: the system must be solvable.
_LEAST_NOISE = 1e-7
_BLOCK = 1 << 18


def row_scores(
    matrix: DenseMatrix,  # (m, n2)
    mean: Any,  # (n2,)
    components: Any,  # (k, n2) orthonormal rows
    variances: Any,  # (k,)
    noise: float,
) -> Any:
    """Return the scores (m, k) of rows, each by itself."""
    k, n2 = components.shape
    if isinstance(matrix, ChunkedMatrix):
        matrix.reads += 1
        of_band = partial(row_scores, mean=mean, components=components, variances=variances, noise=noise)
        return np.concatenate([part for _, part in each_band(matrix, of_band, rows=1)])
    counts = _count_observed(matrix)
    few = counts < _ENTRIES * k
    if not few.any():
        return robust_coefficients(matrix, components.T, noise, offset=mean)
    scores = np.zeros((matrix.shape[0], k))
    enough = np.flatnonzero(~few)
    if len(enough):
        scores[enough] = robust_coefficients(matrix.take_rows(enough), components.T, noise, offset=mean)
    leading = np.clip(counts // _ENTRIES, 1, k)
    for count in np.unique(leading[few]):
        rows = np.flatnonzero(few & (leading == count))
        for start in range(0, len(rows), max(1, _BLOCK // n2)):
            some = rows[start : start + max(1, _BLOCK // n2)]
            scores[some] = _likeliest(matrix.take_rows(some), mean, components, variances, noise, int(count))
    return scores


def _count_observed(matrix: DenseMatrix) -> Any:
    """Return how many entries of each row are observed, (m,)."""
    counts = [
        np.sum(block == block if mask is None else (block == block) & mask, axis=1)
        for _, block, mask in matrix.blocks(max(1, _BLOCK // matrix.shape[1]))
    ]
    return np.concatenate(counts)


def _likeliest(
    part: DenseMatrix,  # (m, n2)
    mean: Any,  # (n2,)
    V: Any,  # (k, n2)
    variances: Any,  # (k,)
    noise: float,
    leading: int,
) -> Any:
    """Return the likeliest scores of rows with few entries."""
    V, k = V.astype(np.float64), len(V)
    variances = np.asarray(variances, np.float64)
    rest = variances[leading:] @ V[leading:] ** 2
    spread = np.sqrt(noise**2 + rest)
    first = robust_coefficients(part, V[:leading].T, float(np.sqrt(np.mean(spread**2))), offset=mean)
    values = np.asarray(part.dense_rows(slice(0, part.shape[0])), np.float64) - mean
    observed = values == values if part.mask is None else (values == values) & part.mask
    values = np.where(observed, values, 0.0)
    kept = observed & (np.abs(values - first @ V[:leading]) <= _OUTLYING * spread)
    # A row that the leading axes do not explain at all is taken as it is.
    kept[kept.sum(axis=1) == 0] = observed[kept.sum(axis=1) == 0]
    scores = values @ V.T
    gaps = np.flatnonzero(~kept.all(axis=1))
    if len(gaps):
        weight = kept[gaps].astype(np.float64)
        largest = float(np.sqrt(variances.max(initial=0.0)))
        least = max(noise, _LEAST_NOISE * largest, float(np.finfo(float).tiny) ** 0.5)
        prior = least**2 / np.maximum(variances, least**2)
        grams = np.einsum("kn,mn,ln->mkl", V, weight, V, optimize=True) + np.diag(prior)
        sides = (weight * values[gaps]) @ V.T
        scores[gaps] = np.linalg.solve(grams, sides[:, :, None])[:, :, 0]
    return scores.reshape(-1, k)
