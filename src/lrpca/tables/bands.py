"""Tables that may not be in memory: as matrices, in bands of whole rows, some rows only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lrpca.files.stored import StoredArray
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.block_work import tasks
from lrpca.matrices.chunked.dask_blocks import DaskBlocks
from lrpca.matrices.chunked.grid import Place
from lrpca.matrices.chunked.local_blocks import LocalBlocks
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.chunked.progress import Meter
from lrpca.matrices.dense import DenseMatrix, readable

# A table of fewer entries (32 MB at most) is read into memory: nothing is gained by reading it in blocks many times.
LOADED_BELOW = 1 << 22


def in_memory(Y: Any) -> Any:
    """Return a small table that is read in blocks as an array, and any other as it is."""
    if not isinstance(Y, ChunkedMatrix) or math.prod(Y.shape) >= LOADED_BELOW:
        return Y
    loaded = ChunkedMatrix(Y.source).loaded()
    return with_gaps(loaded.array, loaded.mask)


def as_matrix(Y: Any) -> DenseMatrix:
    """Return a table as a matrix that has not been read yet."""
    return ChunkedMatrix(Y.source) if isinstance(Y, ChunkedMatrix) else accept(Y)


def rows_of(Y: Any, rows: Any) -> Any:
    """Return rows of a table, by indices (m,), in memory, NaN where missing."""
    if not isinstance(Y, ChunkedMatrix):
        return Y[rows]
    part = Y.take_rows(rows)
    return with_gaps(part.array, part.mask)


def only_rows(Y: Any, rows: Any) -> Any:
    """Return rows of a table, by rising indices (m,): in memory, unless Y is read in blocks and they are many."""
    large = isinstance(Y, ChunkedMatrix) and len(rows) * Y.shape[1] >= LOADED_BELOW
    return part_of(Y, rows) if large else rows_of(Y, rows)


def with_gaps(values: Any, mask: Any) -> Any:
    """Return the values (m, n2) with NaN where the mask, if any, is False."""
    if mask is None or mask.all():
        return values
    dtype = values.dtype if values.dtype.kind == "f" else np.result_type(values.dtype, np.float32)
    return np.where(mask, values, np.nan).astype(dtype)


def each_band(
    matrix: DenseMatrix,
    work: Callable[..., Any],
    *operands: Any,  # (n1, ...)
    rows: int,
) -> Iterator[tuple[slice, Any]]:
    """Yield (rows, ``work(band, *parts)``) of bands of whole rows, in order: one pass over the data.

    `work` is given the band as a matrix, and its part of each operand. It is sent to where the blocks are, if these are
    of whole rows. Tables in memory have bands of so many `rows`, others bands that suit their chunks.
    """
    if isinstance(matrix, ChunkedMatrix) and len(matrix.source.grid.columns) == 1:
        for place, result in matrix.source.each(partial(_on_band, work), tasks(matrix.source.grid, operands)):
            yield place.rows, result
        return
    for start, block, mask in matrix.blocks(rows):
        here = slice(start, start + len(block))
        yield here, work(DenseMatrix(block, mask), *(part[here] for part in operands))


def _on_band(work: Callable[..., Any], block: Any, observed: Any, _: Place, rows: tuple[Any, ...], __: Any) -> Any:
    return work(DenseMatrix(readable(block), observed), *rows)


def in_blocks(Y: Any) -> Any:
    """Return a large mapped array, of which no copy should be made, as read in blocks, and any other table as it is."""
    base: Any = Y if isinstance(Y, np.ndarray) and Y.size >= LOADED_BELOW else None
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return Y if base is None else ChunkedMatrix(LocalBlocks(StoredArray(Y, "mapped array"), None, Meter(None)))


def part_of(matrix: ChunkedMatrix, rows: Any = None, offset: Any = None) -> ChunkedMatrix:
    """Return rows of a table, by rising indices (m,), less an offset (n2,): both are done whenever a block is read."""
    source = matrix.source
    if isinstance(source, DaskBlocks):
        array, mask = source.as_dask()
        if rows is not None:
            array, mask = array[rows], None if mask is None else mask[rows]
        if offset is not None:
            dtype = centred_dtype(array.dtype)
            array = array.astype(dtype) - offset.astype(dtype)
        return ChunkedMatrix(DaskBlocks(array, mask, source.meter))
    mask = source.mask
    if rows is not None and mask is not None and mask.shape[0] > 1:
        mask = _Part(mask, source, rows)
    return ChunkedMatrix(LocalBlocks(_Part(source.stored, source, rows, offset), mask, source.meter))


def centred_dtype(dtype: Any) -> Any:
    """Return the type in which an offset is subtracted."""
    return np.dtype(dtype if dtype.kind == "f" and dtype.itemsize >= 4 else np.float64)


class _Part:
    """Some rows of numbers on disk, or of their mask, less an offset; no block takes from two blocks of `whole`."""

    ndim = 2

    def __init__(self, stored: Any, whole: LocalBlocks, rows: Any, offset: Any = None) -> None:
        self.stored, self.rows, self.offset, self.name = stored, rows, offset, whole.name
        self.dtype = stored.dtype if offset is None else centred_dtype(stored.dtype)
        self.shape: tuple[int, int] = stored.shape
        self.chunks: tuple[int, int] | None = whole.stored.chunks
        self.breaks: Sequence[int] = whole.stored.breaks
        if rows is not None:
            self.shape = (len(rows), stored.shape[1])
            self.chunks = (len(rows), max(cut.stop - cut.start for cut in whole.grid.columns))
            edges = np.searchsorted(rows, [cut.stop for cut in whole.grid.rows])
            self.breaks = [int(edge) for edge in edges if 0 < edge < len(rows)]

    def __getitem__(self, place: tuple[slice, slice]) -> Any:
        if self.rows is None:
            values = self.stored[place]
        else:
            rows = self.rows[place[0]]
            values = self.stored[slice(int(rows[0]), int(rows[-1]) + 1), place[1]][rows - int(rows[0])]
        return values if self.offset is None else np.subtract(values, self.offset[place[1]], dtype=self.dtype)
