"""Blocks of a dask array, worked on by whatever scheduler dask uses: its threads, or a cluster.

A pass is one graph: the kernel on every block, where that lies, and a tree that adds up the small results. The factors
travel with the graph, ``O((n1 + n2) r)`` numbers, and so does everything else a lost block is made from: a worker that
dies costs a retry.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lrpca.files.formats import NUMERIC_KINDS
from lrpca.files.stored import Stored
from lrpca.kernels.threads import thread_count
from lrpca.matrices.chunked.block_work import Operands, Task, Work
from lrpca.matrices.chunked.cluster import Cluster, active_client
from lrpca.matrices.chunked.grid import Grid, Place, merged
from lrpca.matrices.chunked.pass_sums import PassSums, total
from lrpca.matrices.chunked.progress import Meter

# Sums that one task adds up.
_FAN_IN = 8
# More blocks than this are merged until each has so many bytes.
_MANY, _LEAST_BYTES = 32, 1 << 22
# Blocks per thread that are computed at a time where results are taken one by one.
_AHEAD = 2


class DaskBlocks:
    """A dask array, whose chunks are the blocks; `mask`, any array, has its shape, (n1, 1) or (1, n2), or is None.

    The meter counts every block that is done.
    """

    def __init__(self, array: Any, mask: Any, meter: Meter) -> None:
        check_array(array)
        self.name = f"dask array {array.name}"
        self.meter = meter
        self._given = array
        self.array = _coarsened(array)
        self.mask = mask_as_dask(mask, self.array)
        self.shape, self.dtype = self.array.shape, self.array.dtype
        self.grid = Grid.of_chunks(*self.array.chunks)
        self.fine_grid = self.grid
        client = active_client()
        self._cluster = None if client is None else Cluster(client)
        if self._cluster is not None:
            self.array, self.mask = self._cluster.keep(self.array, self.mask)
        # A block that has all cores to itself uses them.
        alone = self._cluster is None and len(self.grid) < thread_count()
        self.inner_threads = thread_count() if alone else 1

    def total(self, work: Work, rows: Operands, columns: Operands) -> PassSums:
        """Return the sums of a `BlockPass` over all blocks."""
        import dask

        lefts, rights = _stripes(rows, self.grid.rows), _stripes(columns, self.grid.columns)
        blocks = self._tasks(work, [(place, lefts[place.i], rights[place.j]) for place in self.grid])
        self.meter.begin(len(blocks))
        add = dask.delayed(total, pure=False)
        layer = blocks
        while len(layer) > 1:
            layer = [add(layer[first : first + _FAN_IN]) for first in range(0, len(layer), _FAN_IN)]
        sums: PassSums = self._compute(blocks, layer[0], list(self.grid))
        return sums

    def each(self, work: Work, blocks: Sequence[Task]) -> Iterator[tuple[Place, Any]]:
        """Yield (place, result of `work`) of some blocks, in their order; see `LocalBlocks.each`."""
        import dask

        self.meter.begin(len(blocks))
        batch = _AHEAD * (thread_count() if self._cluster is None else self._cluster.threads)
        tasks = self._tasks(work, blocks)
        for first in range(0, len(blocks), batch):
            some = tasks[first : first + batch]
            here = [place for place, _, _ in blocks[first : first + batch]]
            together = dask.delayed(list, pure=False)(some)
            yield from zip(here, self._compute(some, together, here), strict=True)

    def read(self, rows: slice, columns: slice) -> tuple[Any, Any]:
        """Return a rectangle of Y and of the mask (None without one)."""
        import dask

        mask = None if self.mask is None else self.mask[rows, columns]
        try:
            block, mask = dask.compute(self.array[rows, columns], mask, **self._by())
        except Exception as error:
            raise self._failure(error, list(self.grid)) from error
        return np.asarray(block), mask

    def spot(self, place: Place, rows: Any, columns: Any) -> Place:
        """Return the part of a block that has to be made for some of its rows and columns: all of it."""
        return place

    def close(self) -> None:
        """Release what the cluster keeps for this matrix."""
        if self._cluster is not None:
            self.array, self.mask = self._cluster.let_go()

    def as_dask(self) -> tuple[Any, Any]:
        """Return Y as it was given, and the mask (None without one) cut like it."""
        return self._given, None if self.mask is None else self.mask.rechunk(self._given.chunks)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the cluster: what is unpickled elsewhere is computed there."""
        array, mask = (self.array, self.mask) if self._cluster is None else self._cluster.as_given
        return self.__dict__ | {"_cluster": None, "array": array, "mask": mask}

    def _tasks(self, work: Work, blocks: Sequence[tuple[Place, Any, Any]]) -> list[Any]:
        """Return one task for every block; operands may be delayed."""
        import dask

        data, masks = self.array.to_delayed(), None if self.mask is None else self.mask.to_delayed()
        apply = dask.delayed(_apply, name=f"lrpca-{type(work).__name__.lower()}", pure=False, traverse=False)
        return [
            apply(work, data[place.i, place.j], None if masks is None else masks[place.i, place.j], place, *operands)
            for place, *operands in blocks
        ]

    def _compute(self, blocks: list[Any], root: Any, places: list[Place]) -> Any:
        sizes = [math.prod(place.shape) * self.dtype.itemsize for place in places]
        try:
            if self._cluster is not None:
                return self._cluster.compute(blocks, root, sizes, self.meter)
            with _watching([block.key for block in blocks], sizes, self.meter):
                return root.compute(**self._by())
        except Exception as error:
            raise self._failure(error, places) from error

    def _failure(self, error: Exception, places: list[Place]) -> Exception:
        """Return the error to raise, and release Y: the traceback of the error would make the workers keep it."""
        try:
            return self._named(error, places)
        finally:
            self.close()

    def _named(self, error: Exception, places: list[Place]) -> Exception:
        """Return an error that says which block could not be read, if one can be found; else the error itself."""
        # Ours say it by themselves; a cluster that is gone, or memory that is full, is no fault of a block.
        if isinstance(error, MemoryError | ConnectionError) or str(error).startswith("Y["):
            return error
        if self._cluster is not None:
            self._cluster.check(error)
        data = self.array.to_delayed()
        for place in places:
            try:
                data[place.i, place.j].compute(**self._by())
            except Exception as again:
                return OSError(
                    f"{place} could not be computed from {self.name} ({type(again).__name__}: {again}); mend or "
                    "restore that part"
                )
        return error

    def _by(self) -> dict[str, Any]:
        """Return the scheduler to ask for: the client that keeps Y, or else threads, unless dask was told another."""
        import dask

        if self._cluster is not None:
            return {"scheduler": self._cluster.client}
        # Named explicitly: dask would otherwise wait for a client that never found its scheduler.
        by_client = (None, "dask.distributed", "distributed")
        return {"scheduler": "threads"} if dask.config.get("scheduler", None) in by_client else {}


def _apply(work: Work, block: Any, observed: Any, place: Place, rows: Operands, columns: Operands) -> Any:
    block = np.asarray(block)
    # A kernel would read beyond the end of a block that is smaller than dask was told.
    if block.shape != place.shape or block.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(
            f"{place} came as {block.dtype} of shape {block.shape}; make the blocks of the dask array NumPy arrays as "
            "its dtype and chunks say"
        )
    return work(block, observed, place, tuple(rows), tuple(columns))


def _stripes(operands: Operands, cuts: Sequence[slice]) -> list[Any]:
    """Return the parts of operands that belong to each cut, delayed: every block of a stripe shares them."""
    import dask

    parts = (tuple(part[cut] for part in operands) for cut in cuts)
    return [dask.delayed(part, name=f"lrpca-operand-{uuid.uuid4().hex}", traverse=False) for part in parts]


def _watching(keys: list[Any], sizes: list[int], meter: Meter) -> Any:
    """Return a context in which the meter is told of blocks that dask's own schedulers have finished."""
    from dask.callbacks import Callback

    waiting = dict(zip(keys, sizes, strict=True))

    def after(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        size = waiting.pop(key, None)
        if size is not None:
            meter.advance(size)

    return Callback(posttask=after)


def check_array(array: Any) -> None:
    """Raise where a dask array cannot be cut into blocks."""
    if array.ndim != 2:
        raise ValueError(f"Y.ndim={array.ndim} is not 2; reshape to (samples, features)")
    if array.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(f"Y.dtype={array.dtype} is not numeric; convert it first, e.g. Y.astype(float)")
    if any(math.isnan(size) for sizes in array.chunks for size in sizes):
        raise ValueError(
            f"Y.chunks={array.chunks} has unknown sizes (nan); call Y.compute_chunk_sizes() first, or "
            "frame.to_dask_array(lengths=True) where Y comes from a dask DataFrame"
        )
    if 0 in array.shape:
        raise ValueError(f"Y.shape={array.shape} has no entries; pass at least one row and one column")


def unmasked(array: Any, mask: Any) -> tuple[Any, Any]:
    """Return a dask array of masked arrays as its numbers and the mask of observed ones; others as they are."""
    import dask.array as da

    if not isinstance(array._meta, np.ma.MaskedArray):
        return array, mask
    observed = ~da.ma.getmaskarray(array)
    if mask is not None:
        observed &= mask_as_dask(mask, array)
    return da.ma.getdata(array), observed


def stored_as_dask(stored: Stored, grid: Grid) -> Any:
    """Return a matrix on disk as a dask array; workers open it by its path."""
    try:
        import dask.array as da
    except ImportError:
        raise ImportError(f"Y={stored.name} as a lazy array needs dask; pip install lrpca[dask]") from None
    return da.from_array(stored, chunks=grid.chunks, name=f"lrpca-stored-{uuid.uuid4().hex}", asarray=True, lock=False)


def mask_as_dask(mask: Any, array: Any) -> Any:
    """Return a mask as a dask array cut like `array`, or None."""
    import dask.array as da

    if mask is None:
        return None
    if not isinstance(mask, da.Array):
        lengths = zip(mask.shape, array.shape, array.chunks, strict=True)
        chunks = tuple((1,) if n == 1 and m != 1 else sizes for n, m, sizes in lengths)
        mask = da.from_array(mask, name=f"lrpca-mask-{uuid.uuid4().hex}", chunks=chunks)
    if mask.shape == array.shape:
        return mask.rechunk(array.chunks)
    return da.broadcast_to(mask, array.shape).rechunk(array.chunks)


def _coarsened(array: Any) -> Any:
    """Return an array whose chunks are worth a task each, merged from smaller ones where needed."""
    heights, widths = array.chunks
    if len(heights) * len(widths) <= _MANY or array.nbytes / (len(heights) * len(widths)) >= _LEAST_BYTES:
        # Empty chunks come from filters; there is nothing to do for them.
        return array.rechunk((tuple(h for h in heights if h), tuple(w for w in widths if w)))
    target = _LEAST_BYTES / array.dtype.itemsize
    side = math.isqrt(int(target))
    wide = merged([w for w in widths if w], min(array.shape[1], side))
    high = merged([h for h in heights if h], min(array.shape[0], math.ceil(target / max(wide))))
    return array.rechunk((high, wide))
