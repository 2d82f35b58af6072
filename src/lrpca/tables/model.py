"""A fitted table as it is used on rows: their scores, likelihood and outliers, in memory, on disk or lazily."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lrpca.decomposition.result import Decomposition
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.matrix import ChunkedMatrix, native_dtype
from lrpca.matrices.dense import DenseMatrix, arithmetic_dtype
from lrpca.tables.bands import each_band
from lrpca.tables.decompositions import decompose_rows
from lrpca.tables.likelihood import log_likelihood
from lrpca.tables.scores import row_scores


@dataclass(frozen=True)
class RowModel:
    """Affine space of the clean rows, and the scales that tell outliers.

    Attributes
    ----------
    mean : ndarray (n2,)
    components : ndarray (k, n2)
        Orthonormal rows.
    variances : ndarray (k,)
        Along the components.
    noise_level, noise_variance : float
    threshold : float
        Larger residuals are outliers.
    unit : float
        All of the above are in units of this; rows, scores and what else is returned are not.
    """

    mean: Any
    components: Any
    variances: Any
    noise_level: float
    noise_variance: float
    threshold: float
    unit: float = 1.0

    def scores(self, matrix: DenseMatrix) -> Any:
        """Return the scores (m, k) of rows."""
        rows = matrix.in_units(self.unit)
        found = row_scores(rows, self.mean, self.components, self.variances, self.noise_level)
        return (found * self.unit).astype(matrix.result)

    def likelihood(self, matrix: DenseMatrix) -> Any:
        """Return the log-likelihood (m,) of rows."""
        if isinstance(matrix, ChunkedMatrix):
            matrix.reads += 1
            return np.concatenate([part for _, part in each_band(matrix, self.likelihood, rows=1)])
        rows = matrix.in_units(self.unit)
        scores = row_scores(rows, self.mean, self.components, self.variances, self.noise_level)
        variance = max(self.noise_variance, self.noise_level**2)
        found = log_likelihood(rows, scores, self.mean, self.components, self.variances, variance)
        # A density is one over the unit of every feature.
        return found - len(self.mean) * math.log(self.unit)

    def decompose(self, matrix: DenseMatrix) -> Decomposition:
        """Return rows as clean rows plus outliers."""
        rows = matrix.in_units(self.unit)
        found = decompose_rows(rows, self.mean, self.components, self.variances, self.noise_level, self.threshold)
        return found.in_units(1 / self.unit).with_data(matrix)

    def outliers(self, matrix: DenseMatrix) -> Any:
        """Return which entries of rows are outliers, (m, n2)."""
        return self.decompose(matrix).outliers

    # -------------------------------------------------------------------------------------- dask arrays, lazily

    def lazy_scores(self, rows: Any) -> Any:
        """Return the scores of the rows of a dask array as another one, (m, k)."""
        dtype = arithmetic_dtype(native_dtype(rows.dtype))
        whole = rows.rechunk({1: -1})
        width = len(self.components)
        work = partial(_of_rows, work=self.scores, empty=np.zeros((0, width), dtype))
        return whole.map_blocks(work, dtype=dtype, chunks=(whole.chunks[0], (width,)), meta=np.zeros((0, 0), dtype))

    def lazy_likelihood(self, rows: Any) -> Any:
        """Return the log-likelihood of the rows of a dask array as another one, (m,)."""
        whole = rows.rechunk({1: -1})
        work = partial(_of_rows, work=self.likelihood, empty=np.zeros(0))
        return whole.map_blocks(work, dtype=np.float64, chunks=(whole.chunks[0],), drop_axis=1, meta=np.zeros(0))

    def lazy_outliers(self, rows: Any) -> Any:
        """Return which entries of a dask array are outliers, as another one of the same chunks, (m, n2)."""
        whole = rows.rechunk({1: -1})
        work = partial(_of_rows, work=self.outliers, empty=np.zeros((0, len(self.mean)), bool))
        return whole.map_blocks(work, dtype=bool, meta=np.zeros((0, 0), bool)).rechunk({1: rows.chunks[1]})

    def lazy_rows(self, scores: Any) -> Any:
        """Return the clean rows of scores that are a dask array as another one, (m, n2)."""
        whole = scores.rechunk({1: -1})
        dtype = np.result_type(scores.dtype, self.components.dtype, self.mean.dtype)
        return whole.map_blocks(
            self.rows, dtype=dtype, chunks=(whole.chunks[0], (len(self.mean),)), meta=np.zeros((0, 0), dtype)
        )

    def rows(
        self,
        scores: Any,  # (m, k)
    ) -> Any:
        """Return the clean rows (m, n2) of scores."""
        return scores @ self.components + self.mean * self.unit


def _of_rows(
    block: Any,  # (m, n2)
    *,
    work: Callable[[DenseMatrix], Any],
    empty: Any,
) -> Any:
    """Return what is made of some rows, `empty` where there are none (filters leave such chunks)."""
    return work(accept(np.asarray(block))) if len(block) else empty
