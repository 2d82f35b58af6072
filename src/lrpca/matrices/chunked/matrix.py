"""A matrix larger than memory, or on other machines: the same pass, block by block, and the small results summed.

The loop is the solver's own. Where the blocks are worked on is the affair of `LocalBlocks` (threads of this process,
reading ahead) or `DaskBlocks` (dask's schedulers, a cluster among them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from lrpca.core.influence import Levels
from lrpca.core.passes import Pass
from lrpca.matrices.chunked.block_work import BlockPass, OutlierBlock, Pick, outlier_limits
from lrpca.matrices.chunked.dask_blocks import DaskBlocks
from lrpca.matrices.chunked.grid import Place
from lrpca.matrices.chunked.local_blocks import LocalBlocks
from lrpca.matrices.dense import DenseMatrix, native_dtype, observed_entries, readable

# Bytes of a band of whole rows.
_BAND = 1 << 27

Result = TypeVar("Result")


class ChunkedMatrix(DenseMatrix):
    """Y in blocks that are never all in memory."""

    def __init__(self, blocks: LocalBlocks | DaskBlocks) -> None:
        self._prepare(blocks.shape, native_dtype(blocks.dtype))
        self.source = self.array = blocks

    @property
    def mask(self) -> Any:  # type: ignore[override]
        """Which entries are observed, all of them in memory; None if there is no mask."""
        if self.source.mask is None:
            return None
        return self.source.read(slice(0, self.shape[0]), slice(0, self.shape[1]))[1]

    @property
    def is_masked(self) -> bool:
        """Whether there is a mask."""
        return self.source.mask is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkedMatrix, (self.source,)

    def close(self) -> None:
        """End the threads, and release what a cluster keeps."""
        super().close()
        self.source.close()

    def _may_be_copied(self) -> bool:
        return False

    def loaded(self) -> DenseMatrix:
        """Return Y in memory."""
        whole = (slice(0, self.shape[0]), slice(0, self.shape[1]))
        array, mask = self.source.read(*whole)
        self.reads += 1
        return DenseMatrix(readable(array), mask)

    def entries(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Return the values at some positions, and which of them are observed; every block is read at most once."""
        rows, columns = np.asarray(rows), np.asarray(columns)
        values, seen = np.empty(len(rows), self.stored), np.ones(len(rows), bool)
        touched = list(self.source.fine_grid.touched(rows, columns))
        found = self._picked(Pick(crosswise=False), [(place, rows[k], columns[k]) for place, k in touched])
        for (_, those), (part, observed) in zip(touched, found, strict=True):
            values[those] = part
            if observed is not None:
                seen[those] = observed
        return values, seen & (values == values)

    def take_rows(self, indices: Any) -> DenseMatrix:
        """Return some rows as a matrix of its own."""
        return self.submatrix(indices, np.arange(self.shape[1]))

    def take_columns(self, indices: Any) -> DenseMatrix:
        """Return some columns, as rows of a matrix of its own."""
        part = self.submatrix(np.arange(self.shape[0]), indices)
        return DenseMatrix(part.array.T, None if part.mask is None else part.mask.T)

    def submatrix(self, rows: Any, columns: Any) -> DenseMatrix:
        """Return some rows of some columns as a matrix of its own; every block is read at most once."""
        rows, columns = np.asarray(rows), np.asarray(columns)
        values, seen = np.empty((len(rows), len(columns)), self.stored), None
        grid = self.source.fine_grid
        by_row, by_column = _by_cut(rows, grid.rows), _by_cut(columns, grid.columns)
        chosen = [(Place(i, j, grid.rows[i], grid.columns[j]), a, b) for i, a in by_row for j, b in by_column]
        found = self._picked(Pick(crosswise=True), [(place, rows[a], columns[b]) for place, a, b in chosen])
        for (_, a, b), (part, observed) in zip(chosen, found, strict=True):
            values[np.ix_(a, b)] = part
            if observed is not None:
                seen = np.ones(values.shape, bool) if seen is None else seen
                seen[np.ix_(a, b)] = observed
        return DenseMatrix(values, seen)

    def _picked(self, pick: Pick, wanted: list[tuple[Place, Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield what `pick` finds at some rows and columns of some blocks; no more of them is read than needed."""
        spots = [self.source.spot(*those) for those in wanted]
        blocks = [
            (spot, (rows - spot.rows.start,), (columns - spot.columns.start,))
            for spot, (_, rows, columns) in zip(spots, wanted, strict=True)
        ]
        return (result for _, result in self.source.each(pick, blocks))

    def with_mask(self, mask: Any) -> DenseMatrix:
        """Return the same data, in memory, with another mask."""
        other = self.loaded()
        return DenseMatrix(other.array, mask)

    def dense_rows(self, rows: slice) -> Any:
        """Return some rows as a C-ordered array of the arithmetic type."""
        return np.ascontiguousarray(self.source.read(rows, slice(0, self.shape[1]))[0], self.arithmetic)

    def map_rows(self, function: Callable[[slice, Any, Any], Result], *, missing: bool) -> list[Result]:
        """Read Y once: return ``function(rows, block, observed)`` of every band of rows; see `DenseMatrix.map_rows`."""
        self.reads += 1
        found = []
        for start, band, mask in self.blocks(1):
            block = np.ascontiguousarray(band, self.arithmetic)
            observed = observed_entries(block, mask) if missing else None
            found.append(function(slice(start, start + len(block)), block, observed))
        return found

    def blocks(self, rows: int) -> Iterator[tuple[int, Any, Any]]:
        """Yield (first row, band of rows, its mask or None), in bands that suit the chunks, not `rows` at a time."""
        n1, n2 = self.shape
        # As it is read, or as it will be computed with, whichever is larger.
        most = max(1, _BAND // (n2 * max(self.stored.itemsize, self.arithmetic.itemsize)))
        for start, stop in _bands([cut.stop - cut.start for cut in self.source.grid.rows], most):
            band, mask = self.source.read(slice(start, min(stop, n1)), slice(0, n2))
            yield start, readable(band), mask

    def run_pass(
        self, L: Any, R: Any, level: Levels, *, A: Any, B: Any, energy: bool = False, grams: bool = False
    ) -> Pass:
        """Read Y once; see `lrpca.kernels.reference` for what comes back."""
        self.reads += 1
        work = BlockPass(level, energy, grams, self.arithmetic, self.source.inner_threads)
        dtype = self.arithmetic
        right = np.ascontiguousarray(R, dtype)
        columns = (right,) if A is R else (right, np.ascontiguousarray(A, dtype))
        rows = (np.ascontiguousarray(L, dtype), np.ascontiguousarray(B, dtype))
        return self.source.total(work, rows, columns).finish(self.source.grid)

    def lazy_low_rank(self, L: Any, R: Any) -> Any:
        """Return L Rᵀ as a dask array, cut like Y."""
        left, right = _lazy_factors(L, R, self.source.as_dask()[0].chunks)
        import dask.array as da

        # Not left @ right.T, which warns of many chunks.
        arguments = (left, "ik", right, "jk")
        return da.blockwise(_product, "ij", *arguments, dtype=L.dtype, concatenate=True, align_arrays=False)

    def lazy_outliers(self, L: Any, R: Any, threshold: Any, *, values: bool) -> Any:
        """Return S, or where it is not zero, as a dask array, cut like Y."""
        array, mask = self.source.as_dask()  # says what is missing without dask
        import dask.array as da

        left, right = _lazy_factors(L, R, array.chunks)
        high, wide = (
            da.from_array(limits, chunks=(sizes,))
            for limits, sizes in zip(outlier_limits(threshold, self.shape), array.chunks, strict=True)
        )
        arguments = [array, "ij", left, "ik", right, "jk", high, "i", wide, "j"]
        if mask is not None:
            arguments += [mask, "ij"]
        dtype = L.dtype if values else np.dtype(bool)
        return da.blockwise(_outliers, "ij", *arguments, values=values, dtype=dtype, concatenate=True)


def _by_cut(indices: Any, cuts: tuple[slice, ...]) -> list[tuple[int, Any]]:  # indices (m,) int
    """Return (number of a cut, positions of the indices that lie in it) for every cut that has some."""
    number = np.searchsorted([cut.stop for cut in cuts], indices, side="right")
    return [(int(k), np.flatnonzero(number == k)) for k in np.unique(number)]


def _bands(heights: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield first and last row of bands of at most `most` rows: merged stripes, or parts of one."""
    start = stop = 0
    for height in heights:
        if stop > start and stop + height - start > most:
            yield start, stop
            start = stop
        stop += height
        while stop - start > most:
            yield start, start + most
            start += most
    if stop > start:
        yield start, stop


def _outliers(
    block: Any, L: Any, R: Any, high: Any, wide: Any, observed: Any = None, *, values: bool
) -> Any:  # (m1, m2)
    """Return S of a block, or where it is not zero."""
    place = Place(0, 0, slice(0, len(L)), slice(0, len(R)))
    residual, outlying = OutlierBlock(L.dtype)(block, observed, place, (L, high), (R, wide))
    return np.where(outlying, residual, residual.dtype.type(0)) if values else outlying


def _product(L: Any, R: Any) -> Any:  # (m1, m2)
    return L @ R.T


def _lazy_factors(L: Any, R: Any, chunks: Any) -> tuple[Any, Any]:
    """Return the factors as dask arrays, cut like the rows and columns of Y."""
    import dask.array as da

    (heights, widths), rank = chunks, L.shape[1]
    return da.from_array(L, chunks=(heights, (rank,))), da.from_array(R, chunks=(widths, (rank,)))
