"""A scipy sparse matrix: stored zeros and absent entries are zeros; a few rows at a time are made dense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lrpca.matrices.dense import DenseMatrix

_PIECE = 1 << 20


class SparseMatrix(DenseMatrix):
    """Y as a CSR matrix. The low-rank part is dense; only Y is read in blocks of rows that are made dense."""

    def __init__(self, csr: Any, mask: Any = None) -> None:
        self._prepare(csr.shape, csr.dtype)
        self.array = self._rows = csr
        self.mask = self._row_mask = None if mask is None else np.broadcast_to(mask, csr.shape)
        self._transposed = False

    def values_at(self, at: Any) -> Any:
        """Return a part of Y, made dense."""
        part = self.array[at]
        return part.toarray() if hasattr(part, "toarray") else np.asarray(part).ravel()

    def dense_rows(self, rows: slice) -> Any:
        """Return some rows, made dense, in the arithmetic type."""
        return self.values_at(rows).astype(self.arithmetic)

    def _by_rows(self) -> bool:
        return True

    def _pieces(self, rows: slice, columns: slice) -> Iterator[tuple[slice, Any, int]]:
        count = max(4, _PIECE // max(1, self.shape[1]))
        for start in range(rows.start, rows.stop, count):
            piece = slice(start, min(rows.stop, start + count))
            dense = self.values_at(piece).reshape(-1)
            dense.flags.writeable = False
            yield piece, dense, self.shape[1]
