"""What is done to one block of a chunked matrix, wherever it lies: each of these is sent there, not the block here.

Called with the block, which of its entries are observed (or None), its place in the grid, and the parts of the operands
that belong to its rows and to its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.influence import Levels
from lrpca.kernels.threads import Threads
from lrpca.matrices.chunked.grid import Place
from lrpca.matrices.chunked.pass_sums import PassSums
from lrpca.matrices.dense import DenseMatrix, readable

# Entries of which residuals are made at a time: so few that they stay in the cache of a core.
_PIECE = 1 << 16

Operands = tuple[Any, ...]
Task = tuple[Place, Operands, Operands]
Work = Callable[[Any, Any, Place, Operands, Operands], Any]


def tasks(places: Iterable[Place], rows: Operands = (), columns: Operands = ()) -> list[Task]:
    """Return blocks, each with the parts of the operands that belong to its rows and to its columns."""
    return [
        (place, tuple(part[place.rows] for part in rows), tuple(part[place.columns] for part in columns))
        for place in places
    ]


@dataclass(frozen=True)
class BlockPass:
    """A fused pass over one block; see `DenseMatrix.run_pass`. Operands: (L, B) by rows, (R, A) or (R,) by columns."""

    level: Levels
    energy: bool
    grams: bool
    arithmetic: Any  # dtype
    threads: int

    def __call__(self, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands) -> PassSums:
        """Return the sums over the block."""
        matrix = DenseMatrix(readable(block), observed, threads=Threads(self.threads))
        matrix.arithmetic = self.arithmetic
        (L, B), R = rows, columns[0]
        try:
            result = matrix.run_pass(L, R, self.level, A=columns[-1], B=B, energy=self.energy, grams=self.grams)
        finally:
            matrix.close()
        return PassSums.of(place, result)


@dataclass(frozen=True)
class Pick:
    """Single entries of a block, or some rows of some columns. The operand: (rows, columns) within the block."""

    crosswise: bool  # rows times columns, not pairs of them

    def __call__(self, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands) -> tuple[Any, Any]:
        """Return the values, and which are observed by the mask (None if all)."""
        at: Any = (rows[0], columns[0])
        if self.crosswise:
            at = np.ix_(*at)
        return readable(np.asarray(block[at])), None if observed is None else np.asarray(observed[at])


@dataclass(frozen=True)
class OutlierBlock:
    """The residual of a block and where it is an outlier: beyond the product of its row's and its column's limit.

    Operands: (L, limits) by rows, (R, limits) by columns.
    """

    dtype: Any

    def __call__(self, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands) -> tuple[Any, Any]:
        """Return (Y - L Rᵀ, where it is beyond the limit and observed)."""
        (L, high), (R, wide) = rows, columns
        residual = np.asarray(block, self.dtype) - L @ R.T
        outlying = np.abs(residual) > high[:, None] * wide
        if observed is not None:
            outlying &= observed
        return residual, outlying


@dataclass(frozen=True)
class OutlierEntries:
    """S of a block by its entries, numbered as in Y. Operands as those of `OutlierBlock`."""

    dtype: Any
    index: Any  # dtype of row and column numbers

    def __call__(self, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands) -> tuple[Any, ...]:
        """Return (rows, columns, values) of the outliers."""
        found = []
        for first, residual, outlying in _outlier_pieces(self.dtype, block, observed, place, rows, columns):
            i, j = np.nonzero(outlying)
            values = residual[i, j]
            i += place.rows.start + first
            j += place.columns.start
            found.append((i.astype(self.index), j.astype(self.index), values))
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


@dataclass(frozen=True)
class WriteOutliers:
    """S of a block, written into its place of a zarr array. Operands as those of `OutlierBlock`.

    The array is opened by its path and known by its token: on a machine that has no such path, or another array there,
    the block is returned instead.
    """

    dtype: Any
    path: str | None  # None: return the block
    token: str

    def __call__(self, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands) -> tuple[int, Any]:
        """Return how many outliers there are, and S of the block if it could not be written here."""
        sparse = np.zeros(place.shape, self.dtype)
        count = 0
        for first, residual, outlying in _outlier_pieces(self.dtype, block, observed, place, rows, columns):
            np.copyto(sparse[first : first + len(residual)], residual, where=outlying)
            count += int(np.count_nonzero(outlying))
        array = self._array()
        if array is None:
            return count, sparse
        array[place.rows, place.columns] = sparse
        return count, None

    def _array(self) -> Any:
        import zarr

        if self.path is None:
            return None
        try:
            array = zarr.open_array(self.path, mode="r+")
        except (FileNotFoundError, ValueError):  # nothing there, or something else
            return None
        return array if array.attrs.get("token") == self.token else None


def _outlier_pieces(
    dtype: Any, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands
) -> Iterator[tuple[int, Any, Any]]:
    """Yield (first row, residual, where it is an outlier) a few rows at a time: a block of bytes is large as floats."""
    work, count = OutlierBlock(dtype), max(1, _PIECE // place.shape[1])
    for first in range(0, place.shape[0], count):
        cut = slice(first, first + count)
        seen = None if observed is None else observed[cut]
        yield first, *work(block[cut], seen, place, tuple(part[cut] for part in rows), columns)


def outlier_limits(
    threshold: Any,  # a number, or broadcastable to Y from one axis
    shape: tuple[int, int],
) -> tuple[Any, Any]:
    """Return limits by row (n1,) and by column (n2,) whose products are the thresholds."""
    n1, n2 = shape
    limits = np.asarray(threshold, np.float64)
    if limits.ndim == 2 and limits.shape == (n1, 1) and n1 != 1:
        return limits[:, 0], np.ones(n2)
    return np.ones(n1), np.broadcast_to(limits.reshape(-1), (n2,)).copy()
