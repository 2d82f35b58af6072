"""A matrix in memory whose pass can be differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.influence import Levels
from lrpca.kernels.reference import Adjoint
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.partition import Rectangle

# Every layout would be compiled for itself: no mask is an empty one, read-only as the others.
_NO_MASK = np.frombuffer(b"", bool)
# Matrices of fewer entries are one part: to cut them and to wake a thread takes as long as the pass.
_WHOLE = 1 << 18


class DifferentiableMatrix(DenseMatrix):
    """Y in float32 or float64, read by the passes of a training and by their adjoints.

    Examples
    --------
    >>> from lrpca.core.influence import levels
    >>> Y, one = np.array([[1.0, 7.0]]), np.ones((1, 1))
    >>> matrix = DifferentiableMatrix(Y)
    >>> matrix.run_adjoint(one, np.ones((2, 1)), levels("soft", 5.0), A_bar=one, B_bar=np.zeros((2, 1))).R.ravel()
    array([-1.,  5.])
    """

    def __init__(self, array: Any, mask: Any = None) -> None:
        if array.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype={array.dtype} cannot be differentiated; convert to float32 or float64")
        super().__init__(array, mask)

    def _parts(self, width: int) -> list[Rectangle]:
        n1, n2 = self._rows.shape
        return [(slice(0, n1), slice(0, n2))] if n1 * n2 < _WHOLE else super()._parts(width)

    def run_adjoint(
        self, L: Any, R: Any, level: Levels, *, A_bar: Any, B_bar: Any
    ) -> Adjoint:  # A_bar (n1, r) derivative by C R; B_bar (n2, r) derivative by Cᵀ L
        """Read Y once; see `lrpca.kernels.reference.dense_adjoint` for what comes back, in float64."""
        self.reads += 1
        if self._transposed:
            other = self._go_back(R, L, level, B_bar, A_bar)
            return Adjoint(other.R, other.L, other.clip)
        return self._go_back(L, R, level, A_bar, B_bar)

    def _go_back(self, L: Any, R: Any, level: Levels, A_bar: Any, B_bar: Any) -> Adjoint:
        from lrpca.kernels.adjoint import rectangle_adjoint

        dtype = self.arithmetic
        L, A_bar = np.ascontiguousarray(L, dtype), np.ascontiguousarray(A_bar, dtype)
        Rt, Bt_bar = np.ascontiguousarray(R.T, dtype), np.ascontiguousarray(B_bar.T, dtype)
        n1, n2 = self._rows.shape
        rank = L.shape[1]
        # A level beyond the range of single precision is as good as infinite.
        with np.errstate(over="ignore"):
            clip, cutoff = dtype.type(level.clip), dtype.type(level.cutoff)

        def work(part: Rectangle) -> tuple[Any, Any, float]:
            rows, columns = part
            m2 = columns.stop - columns.start
            L_bar, Rt_bar = np.zeros((rows.stop - rows.start, rank)), np.zeros((rank, m2))
            clip_bar = 0.0
            for piece, flat, stride in self._pieces(rows, columns):
                mask, mask_row, mask_column = self._flat_mask(piece, columns)
                mask = _NO_MASK if mask is None else mask
                data = (flat, stride, (piece.stop - piece.start, m2), mask, mask_row, mask_column)
                right, B_part = np.ascontiguousarray(Rt[:, columns]), np.ascontiguousarray(Bt_bar[:, columns])
                sums = (L_bar[piece.start - rows.start : piece.stop - rows.start], Rt_bar)
                clip_bar += rectangle_adjoint(*data, L[piece], right, A_bar[piece], B_part, clip, cutoff, *sums)
            return L_bar, Rt_bar, clip_bar

        parts = self._parts(rank)
        results = self.threads.map(work, parts, work=n1 * n2 * (7.0 * rank + 1.0))
        L_bar, Rt_bar = np.zeros((n1, rank)), np.zeros((rank, n2))
        for (rows, columns), (L_share, Rt_share, _) in zip(parts, results, strict=True):
            L_bar[rows] += L_share
            Rt_bar[:, columns] += Rt_share
        return Adjoint(L_bar, np.ascontiguousarray(Rt_bar.T), float(sum(share[2] for share in results)))
