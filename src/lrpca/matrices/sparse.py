"""A scipy sparse matrix: stored zeros and absent entries are zeros; rows are made dense a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lrpca.kernels.threads import Threads
from lrpca.matrices.dense import DenseMatrix, arithmetic_dtype

_PIECE = 1 << 20


class SparseMatrix(DenseMatrix):
    """Y as a CSR matrix. The low-rank part is dense all the same; only the reading is by densified blocks of rows."""

    def __init__(self, csr: Any, mask: Any = None) -> None:
        self.array = csr
        self.mask = None if mask is None else np.broadcast_to(mask, csr.shape)
        self.shape = csr.shape
        self.stored = csr.dtype
        self.result = self.arithmetic = arithmetic_dtype(csr.dtype)
        self.reads = 0.0
        self._full_arithmetic = None
        self._may_be_rough = csr.dtype.kind in "fc"
        self._transposed = False
        self._rows = csr
        self._row_mask = self.mask
        self.threads = Threads()

    def take_rows(self, indices: Any) -> DenseMatrix:
        """Return some rows, made dense, as a matrix of its own."""
        return DenseMatrix(self.array[indices].toarray(), None if self.mask is None else self.mask[indices])

    def take_columns(self, indices: Any) -> DenseMatrix:
        """Return some columns, made dense, as rows of a matrix of its own."""
        mask = None if self.mask is None else self.mask[:, indices].T
        return DenseMatrix(self.array[:, indices].toarray().T, mask)

    def submatrix(self, rows: Any, columns: Any) -> DenseMatrix:
        """Return some rows of some columns, made dense, as a matrix of its own."""
        mask = None if self.mask is None else self.mask[np.ix_(rows, columns)]
        return DenseMatrix(self.array[rows][:, columns].toarray(), mask)

    def dense_rows(self, rows: slice) -> Any:
        """Return some rows, made dense, in the arithmetic type."""
        return self.array[rows].toarray().astype(self.arithmetic)

    def blocks(self, rows: int) -> Iterator[tuple[int, Any, Any]]:
        """Yield (first row, dense block of rows, its mask or None)."""
        for start in range(0, self.shape[0], rows):
            part = slice(start, start + rows)
            yield start, self.array[part].toarray(), None if self.mask is None else self.mask[part]

    def _by_rows(self) -> bool:
        return True

    def _pieces(self, rows: slice, columns: slice) -> Iterator[tuple[slice, Any, int]]:
        count = max(4, _PIECE // max(1, self.shape[1]))
        for start in range(rows.start, rows.stop, count):
            piece = slice(start, min(rows.stop, start + count))
            dense = self.array[piece].toarray().reshape(-1)
            dense.flags.writeable = False
            yield piece, dense, self.shape[1]
