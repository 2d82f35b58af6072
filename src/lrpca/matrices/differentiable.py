"""A matrix in memory whose pass can be differentiated."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lrpca.core.influence import Levels
from lrpca.kernels.reference import Adjoint
from lrpca.matrices.dense import DenseMatrix, joined
from lrpca.matrices.partition import Rectangle

# Matrices of fewer entries are one part: to wake a thread takes as long as the pass.
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
        from lrpca.kernels import cpu
        from lrpca.kernels.adjoint import rectangle_adjoint

        dtype = self.arithmetic
        L_rows, A_rows = cpu.padded_rows(L, dtype), cpu.padded_rows(A_bar, dtype)
        n1, n2 = self._rows.shape
        rank = L.shape[1]
        stretch = cpu.tiles_in_cache(3 * rank, dtype.itemsize)
        # A level beyond the range of single precision is as good as infinite.
        with np.errstate(over="ignore"):
            clip, cutoff = dtype.type(level.clip), dtype.type(level.cutoff)

        @lru_cache(1)
        def panels(first: int, last: int) -> tuple[Any, Any]:
            return cpu.in_panels(R[first:last], dtype), cpu.in_panels(B_bar[first:last], dtype)

        def work(part: Rectangle) -> tuple[Any, Any, float]:
            rows, columns = part
            m1, m2 = rows.stop - rows.start, columns.stop - columns.start
            R_panels, B_panels = panels(columns.start, columns.stop)
            L_share, R_share = np.zeros((m1 + 3, rank)), cpu.empty_panels(m2, rank, np.dtype(float))
            tiles = (cpu.aligned_zeros(4 * cpu.TILE, dtype), cpu.aligned_zeros(4 * cpu.TILE, dtype))
            sums = cpu.empty_panels(m2, rank, dtype)
            clip_bar = 0.0
            for piece, flat, stride in self._pieces(rows, columns):
                data = (flat, stride, piece.stop - piece.start, m2, *self._flat_mask(piece, columns))
                these = slice(piece.start, piece.stop + 3)
                factors = (L_rows[these], R_panels, A_rows[these], B_panels)
                here = L_share[piece.start - rows.start : piece.stop - rows.start + 3]
                clip_bar += rectangle_adjoint(*data, *factors, stretch, clip, cutoff, *tiles, sums, here, R_share)
            return L_share[:m1], cpu.from_panels(R_share, m2, rank), clip_bar

        parts = self._parts(rank)
        results = self.threads.map(work, parts, work=n1 * n2 * (7.0 * rank + 1.0))
        L_shares, R_shares, clips = zip(*results, strict=True)
        L_bar, R_total = joined(parts, [L_shares], [R_shares])
        return Adjoint(L_bar, R_total, float(sum(clips)))
