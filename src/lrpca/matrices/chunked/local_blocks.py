"""Blocks of a matrix on disk, worked on by the threads of this process: while some compute, others read ahead."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lrpca.files.stored import Stored
from lrpca.kernels.threads import thread_count
from lrpca.matrices.chunked.block_work import Operands, Task, Work, tasks
from lrpca.matrices.chunked.grid import Grid, Place, plan_grid
from lrpca.matrices.chunked.pass_sums import PassSums, total
from lrpca.matrices.chunked.progress import Meter

# Bytes of blocks that are in memory at a time, at most, unless a single one is larger. Decoding takes as much again.
_IN_FLIGHT = 1 << 28
# One thread more than there are cores, so that the disk is never without a request.
_READ_AHEAD = 1


class LocalBlocks:
    """A matrix on disk, cut into blocks; `mask`, an array or a `Stored`, has its shape, (n1, 1) or (1, n2), or is None.

    The meter counts every block that was read.
    """

    def __init__(self, stored: Stored, mask: Any, meter: Meter) -> None:
        self.stored, self.mask, self.meter = stored, mask, meter
        self.shape, self.dtype, self.name = stored.shape, stored.dtype, stored.name
        itemsize = stored.dtype.itemsize
        self.grid: Grid = plan_grid(stored.shape, itemsize, stored.chunks, stored.breaks)
        # The smallest blocks that can be read, for single entries.
        self.fine_grid = self.grid
        if stored.chunks is not None:
            self.fine_grid = plan_grid(stored.shape, itemsize, stored.chunks, stored.breaks, block_bytes=1)
        largest = math.prod(max(sizes) for sizes in self.grid.chunks) * itemsize
        self._threads = int(max(1, min(_IN_FLIGHT // largest, thread_count() + _READ_AHEAD)))
        # Blocks so large that they come one by one are computed by all threads.
        self.inner_threads = thread_count() if self._threads == 1 else 1

    def each(self, work: Work, blocks: Sequence[Task]) -> Iterator[tuple[Place, Any]]:
        """Yield (place, result of `work`) of some blocks, in their order."""
        waiting: deque[tuple[Place, Future[Any]]] = deque()
        self.meter.begin(len(blocks))
        # A pool for every round: matrices may be used by several threads at once.
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lrpca")
        try:
            for place, rows, columns in blocks:
                waiting.append((place, pool.submit(self._work, work, place, rows, columns)))
                if len(waiting) > 2 * self._threads:
                    yield self._finished(*waiting.popleft())
            while waiting:
                yield self._finished(*waiting.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def total(self, work: Work, rows: Operands, columns: Operands) -> PassSums:
        """Return the sums of a `BlockPass` over all blocks."""
        return total(sums for _, sums in self.each(work, tasks(self.grid, rows, columns)))

    def read(self, rows: slice, columns: slice) -> tuple[Any, Any]:
        """Return a rectangle of Y and of the mask (None without one)."""
        return self.stored[rows, columns], _mask_part(self.mask, rows, columns)

    def spot(self, place: Place, rows: Any, columns: Any) -> Place:  # rows (m,) int, sorted or not; columns (k,) int
        """Return the part of a block that has to be read for some of its rows and columns."""
        at, along = (slice(int(those.min()), int(those.max()) + 1) for those in (rows, columns))
        return Place(place.i, place.j, at, along)

    def close(self) -> None:
        """Do nothing: no thread outlives its round."""

    def as_dask(self) -> tuple[Any, Any]:
        """Return Y and the mask (None without one) as dask arrays, in the chunks that Y is stored in."""
        from lrpca.matrices.chunked.dask_blocks import mask_as_dask, stored_as_dask

        array = stored_as_dask(self.stored, self.fine_grid)
        return array, mask_as_dask(self.mask, array)

    def _work(self, work: Work, place: Place, rows: Operands, columns: Operands) -> Any:
        block, mask = self.read(place.rows, place.columns)
        return work(block, mask, place, rows, columns)

    def _finished(self, place: Place, future: Future[Any]) -> tuple[Place, Any]:
        result = future.result()
        self.meter.advance(int(np.prod(place.shape)) * self.dtype.itemsize)
        return place, result


def _mask_part(mask: Any, rows: slice, columns: slice) -> Any:
    """Return the part of a mask that belongs to a rectangle, broadcast to its shape."""
    if mask is None:
        return None
    at = tuple(slice(0, 1) if n == 1 else cut for n, cut in zip(mask.shape, (rows, columns), strict=True))
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    return np.broadcast_to(np.asarray(mask[at], bool), shape)
