"""The residual on a list of entries, for data with few observed entries and for random subsets of Y."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lrpca.core.influence import Levels
from lrpca.core.passes import Pass
from lrpca.kernels.threads import Threads
from lrpca.matrices.dense import DenseMatrix

# Parts into which rows (or columns) are divided, whatever the number of threads.
_PARTS = 32
_PIECE = 1 << 20
# Positions are drawn with so many standard deviations to spare.
_SPARE = 6.0


class ListedResidual:
    """Y - L Rᵀ on a list of entries: each taken with the probability `sample`, or all observed ones."""

    def __init__(self, matrix: DenseMatrix, rng: np.random.Generator, sample: float | None = None) -> None:
        from scipy.sparse import csr_array

        self.shape = n1, n2 = matrix.shape
        values, columns, counts = _observed(matrix) if sample is None else _sampled(matrix, sample, rng)
        matrix.reads += 1 if sample is None else math.ceil(len(values) / (n1 * n2))
        if not len(values):
            raise ValueError(f"options['sample']={sample} leaves no observed entry; take a larger share")
        self._values, self._columns = values.astype(matrix.arithmetic), columns.astype(np.int32)
        # In double precision: squares of single-precision outliers may overflow.
        self.norm = float(np.linalg.norm(values.astype(np.promote_types(matrix.arithmetic, np.float64))))
        if not np.isfinite(self.norm):
            worst = np.flatnonzero(~np.isfinite(values))
            what = f"Y has the entry {values[worst[0]]}" if len(worst) else "‖Y‖=inf"
            raise ValueError(f"{what}, which is not finite; mark missing entries with NaN or mask=")
        self.observed = len(values) / (n1 * n2)
        self._pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        entries = csr_array((np.arange(len(values)), self._columns, self._pointers), shape=(n1, n2)).tocsc()
        self._column_pointers, self._order, self._rows = entries.indptr, entries.data, entries.indices
        self._D = np.empty_like(self._values)
        self._held: tuple[Any, Any, Any] = (None, None, None)  # factors and threshold of `run_pass`
        self._threads = Threads()

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def sparsified(self, L: Any, R: Any, share: float) -> Pass:
        """Return the pass of E = D - T(D), with the products E R̄ and Eᵀ L̄."""
        self._take_residual(L, R)
        square, row_kept, column_kept = self._reject(*self._levels(share))
        wide = np.promote_types(self._D.dtype, np.float64)
        CA, CtB = self.times(R.conj()).astype(wide), self._transposed_times(L.conj()).astype(wide)
        return Pass(CA, CtB, row_kept, column_kept, math.sqrt(square))

    def hold(self, share: float) -> None:
        """Make E = Y - T(Y) the matrix that `times` and `adjoint_times` multiply with."""
        self._D[:] = self._values
        self._reject(*self._levels(share))

    def run_pass(self, L: Any, R: Any, level: Levels, *, A: Any, B: Any) -> Pass:
        """Return the pass with a hard threshold over the listed entries, as a matrix does."""
        if not all(now is before for now, before in zip((L, R, level), self._held, strict=True)):
            self._take_residual(L, R)
            n1, n2 = self.shape
            real = self._D.real.dtype
            self._counts = self._reject(np.full(n1, level.clip, real), np.zeros(n2, real))
            self._held = (L, R, level)
        square, row_kept, column_kept = self._counts
        n1, n2 = self.shape
        CA = self.times(A) if A.shape[1] else np.zeros((n1, 0))
        CtB = self._transposed_times(B) if B.shape[1] else np.zeros((n2, 0))
        return Pass(CA, CtB, row_kept, column_kept, math.sqrt(square))

    def times(self, A: Any) -> Any:
        """Return E A, (n1, k)."""
        return self._lines_times(A, None, self._columns, self._pointers)

    def adjoint_times(self, B: Any) -> Any:
        """Return E^H B, (n2, k)."""
        return self._transposed_times(B.conj()).conj()

    def _transposed_times(self, B: Any) -> Any:
        return self._lines_times(B, self._order, self._rows, self._column_pointers)

    def _lines_times(self, M: Any, order: Any, indices: Any, pointers: Any) -> Any:
        from lrpca.kernels.observed import lines_times

        M = np.ascontiguousarray(M, self._D.dtype)
        out = np.empty((len(pointers) - 1, M.shape[1]), M.dtype)
        self._over(pointers, lambda a, b: lines_times(self._D, order, indices, pointers, a, b, M, out), M.shape[1])
        return out

    def _take_residual(self, L: Any, R: Any) -> None:
        from lrpca.kernels.observed import residual

        D = self._D
        L, R = np.ascontiguousarray(L, D.dtype), np.ascontiguousarray(R, D.dtype)

        def work(a: int, b: int) -> None:
            residual(self._values, self._columns, self._pointers, a, b, L, R, D)

        self._over(self._pointers, work, L.shape[1] + 1)

    def _levels(self, share: float) -> tuple[Any, Any]:
        by_row = self._line_levels(share, None, self._pointers)
        return by_row, self._line_levels(share, self._order, self._column_pointers)

    def _line_levels(self, share: float, order: Any, pointers: Any) -> Any:
        """Return the least |D| that T rejects in each row or column."""
        from lrpca.kernels.observed import thresholds_by_line

        levels, longest = np.empty(len(pointers) - 1, self._D.real.dtype), int(np.diff(pointers).max())

        def work(a: int, b: int) -> None:
            memory = np.empty((2, longest), levels.dtype)
            thresholds_by_line(self._D, order, pointers, a, b, share, memory[0], memory[1], levels)

        self._over(pointers, work, 6)
        return levels

    def _reject(self, row_levels: Any, column_levels: Any) -> tuple[float, Any, Any]:
        from lrpca.kernels.observed import reject

        n1, n2 = self.shape
        row_kept = np.empty(n1, np.int64)

        def work(a: int, b: int) -> tuple[float, Any]:
            column_kept = np.zeros(n2, np.int64)
            lines = self._D, self._columns, self._pointers, a, b
            return reject(*lines, row_levels, column_levels, row_kept, column_kept), column_kept

        squares, columns_kept = zip(*self._over(self._pointers, work, 3), strict=True)
        return sum(squares), row_kept, np.sum(columns_kept, axis=0)

    def _over(self, pointers: Any, work: Callable[[int, int], Any], cost: float) -> list[Any]:
        """Map over ranges of rows or columns with about equally many entries."""
        n, entries = len(pointers) - 1, int(pointers[-1])
        edges = np.searchsorted(pointers, np.linspace(0, entries, _PARTS + 1)[1:-1])
        edges = np.unique(np.concatenate([[0], np.minimum(edges, n), [n]]))
        ranges = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
        return self._threads.map(lambda ends: work(*ends), ranges, work=entries * cost)


def _observed(matrix: DenseMatrix) -> tuple[Any, Any, Any]:
    """Return values and columns of the observed entries by rows, and their number in each row."""
    found = []
    for _, block, mask in matrix.blocks(max(1, _PIECE // matrix.shape[1])):
        seen = block == block
        if mask is not None:
            seen &= mask
        found.append((block[seen], np.nonzero(seen)[1], seen.sum(axis=1)))
    values, columns, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return values, columns, counts


def _sampled(matrix: DenseMatrix, share: float, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Return the same of entries drawn with probability `share` each; only those are read."""
    n1, n2 = matrix.shape
    total = n1 * n2
    if share >= 1:
        positions = np.arange(total)
    else:
        # The gaps between the chosen ones are geometric.
        expected = share * total
        count = int(expected + _SPARE * math.sqrt(expected) + 10)
        positions = np.cumsum(np.minimum(rng.geometric(share, count), total + 1)) - 1
        positions = positions[positions < total]
    rows, columns = np.divmod(positions, n2)
    values, observed = matrix.entries(rows, columns)
    return values[observed], columns[observed], np.bincount(rows[observed], minlength=n1)
