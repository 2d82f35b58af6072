"""The operator T_α on the residual of a dense matrix: S = T_α(Y - L Rᵀ), and the products of what it leaves.

T_α keeps an entry if it is among the floor(α m) largest of the m observed entries of its row and of its column. S is
never made: an update needs E = D - S, which is D where it is below either threshold. One buffer of the size of Y.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.passes import Pass
from lrpca.kernels.threads import Threads
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.partition import partition

# Columns are transposed in tiles of about this many bytes, and of so many columns at least and at most.
_TILE_BYTES, _NARROWEST, _WIDEST = 1 << 19, 8, 64
# Y is brought into the arithmetic type by so many entries at a time.
_PIECE = 1 << 18


class DenseResidual:
    """The residual of a dense matrix, in a buffer of its size.

    `levels` (n1,), (n2,) are those from which on |D| of a row, and of a column, was rejected the last time.
    """

    def __init__(self, matrix: DenseMatrix, norm: float, observed: float) -> None:
        self.shape, self.norm, self.observed = matrix.shape, norm, observed
        self._matrix = matrix
        # The kernels read along rows; T_α is the same for the transposed matrix.
        array = matrix.array
        self._transposed = isinstance(array, np.ndarray) and array.flags.f_contiguous and not array.flags.c_contiguous
        self._D = np.empty(self.shape[::-1] if self._transposed else self.shape, matrix.arithmetic)
        self._threads = Threads()
        self.levels: tuple[Any, Any] = (np.full(self.shape[0], np.inf), np.full(self.shape[1], np.inf))

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def sparsified(self, L: Any, R: Any, share: float) -> Pass:
        """Return the pass of E = D - T(D), with the products E R̄ and Eᵀ L̄."""
        if self._transposed:
            return self._sparsified(R, L, share, store=False).transposed()
        return self._sparsified(L, R, share, store=False)

    def hold(self, share: float) -> None:
        """Make E = Y - T(Y) the matrix that `times` and `adjoint_times` multiply with."""
        n1, n2 = self._D.shape
        self._sparsified(np.zeros((n1, 0)), np.zeros((n2, 0)), share, store=True)

    def times(self, A: Any) -> Any:
        """Return E A, (n1, k)."""
        return self._times(A, transposed=self._transposed)

    def adjoint_times(self, B: Any) -> Any:
        """Return E^H B, (n2, k)."""
        return self._times(B.conj(), transposed=not self._transposed).conj()

    def _times(self, M: Any, *, transposed: bool) -> Any:
        """Return D M or Dᵀ M, by the kernel: threads of BLAS wait for each other while other processes run."""
        (n1, n2), dtype, real = self._D.shape, self._D.dtype, self._D.real.dtype
        keep_all = np.full(n1, np.inf, real), np.zeros(n2, real)
        if transposed:
            none, B = np.zeros((0, n2), dtype), np.ascontiguousarray(M, dtype)
            return self._reject(*keep_all, none, B, store=False).CtB
        return self._reject(*keep_all, np.ascontiguousarray(M.T, dtype), np.zeros((n1, 0), dtype), store=False).CA

    def _sparsified(self, L: Any, R: Any, share: float, *, store: bool) -> Pass:
        dtype = self._D.dtype
        L, Rt = np.ascontiguousarray(L, dtype), np.ascontiguousarray(R.T, dtype)
        self._matrix.reads += 1
        row_levels = self._row_levels(self._source(), L, Rt, share)
        column_levels = self._column_levels(share)
        self.levels = (column_levels, row_levels) if self._transposed else (row_levels, column_levels)
        return self._reject(row_levels, column_levels, Rt.conj(), L.conj(), store=store)

    def _source(self) -> Any:
        """Return Y as the kernels read it: in place if its numbers are of the arithmetic type, else through D."""
        matrix, D = self._matrix, self._D
        array = matrix.array
        if isinstance(array, np.ndarray) and array.dtype == D.dtype and matrix.mask is None:
            rows = array.T if self._transposed else array
            if rows.flags.c_contiguous:
                return _read_only(rows)
        whole = D.T if self._transposed else D
        for start, block, mask in matrix.blocks(max(1, _PIECE // self.shape[1])):
            whole[start : start + len(block)] = block if mask is None else np.where(mask, block, np.nan)
        return _read_only(D)

    def _row_levels(self, Y: Any, L: Any, Rt: Any, share: float) -> Any:
        from lrpca.kernels.selection import row_thresholds

        D = self._D
        n1, n2 = D.shape
        levels = np.empty(n1, D.real.dtype)

        def work(part: tuple[slice, slice]) -> None:
            rows, _ = part
            row, memory = np.empty(n2, D.dtype), np.empty((2, n2), levels.dtype)
            row_thresholds(Y[rows], L[rows], Rt, share, D[rows], row, memory[0], memory[1], levels[rows])

        self._threads.map(work, self._parts(len(Rt)), work=n1 * n2 * (len(Rt) + 6.0))
        return levels

    def _column_levels(self, share: float) -> Any:
        from lrpca.kernels.selection import column_thresholds

        D = self._D
        n1, n2 = D.shape
        levels = np.empty(n2, D.real.dtype)
        width = min(_WIDEST, max(_NARROWEST, _TILE_BYTES // (n1 * levels.itemsize)))

        def work(part: tuple[slice, slice]) -> None:
            _, columns = part
            tile, memory = np.empty((width, n1), levels.dtype), np.empty(n1, levels.dtype)
            column_thresholds(D, columns.start, columns.stop, share, tile, memory, levels)

        self._threads.map(work, partition(D.shape, 1, by_rows=False), work=n1 * n2 * 6.0)
        return levels

    def _reject(self, row_levels: Any, column_levels: Any, At: Any, B: Any, *, store: bool) -> Pass:
        from lrpca.kernels.selection import reject

        D = self._D
        n1, n2 = D.shape
        EA, row_kept = np.empty((n1, len(At)), D.dtype), np.empty(n1, np.int64)

        def work(part: tuple[slice, slice]) -> tuple[Any, Any, float]:
            rows, _ = part
            BtE, kept, row = np.zeros((B.shape[1], n2), D.dtype), np.zeros(n2, np.int64), np.empty(n2, D.dtype)
            square = reject(
                D[rows], row_levels[rows], column_levels, At, B[rows], store, row, EA[rows], BtE, row_kept[rows], kept
            )
            return BtE, kept, square

        shares = self._threads.map(work, self._parts(B.shape[1]), work=n1 * n2 * (len(At) + B.shape[1] + 3.0))
        wide = np.promote_types(D.dtype, np.float64)
        products, column_kept, squares = zip(*shares, strict=True)
        EtB = sum((product.astype(wide) for product in products), np.zeros((B.shape[1], n2), wide)).T
        norm = math.sqrt(sum(squares))
        return Pass(EA.astype(wide), np.ascontiguousarray(EtB), row_kept, np.sum(column_kept, axis=0), norm)

    def _parts(self, width: int) -> list[tuple[slice, slice]]:
        return partition(self._D.shape, max(1, width), by_rows=True)


def _read_only(rows: Any) -> Any:
    """Return a read-only view, so that one compiled form serves all arrays."""
    rows = rows.view()
    rows.flags.writeable = False
    return rows
