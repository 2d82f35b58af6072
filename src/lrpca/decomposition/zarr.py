"""S, and the low-rank matrix, written straight to zarr: block by block, in one read of Y, whatever their size."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.decomposition.file import small_parts
from lrpca.decomposition.zarr_stores import Coordinates, Dense, abandon, attributes_of, check_zarr, replacing_store
from lrpca.files.atomic import cannot_write
from lrpca.files.stored import StoredArray
from lrpca.matrices.chunked.grid import Grid, Place, plan_grid
from lrpca.matrices.chunked.progress import Meter, Reading

if TYPE_CHECKING:
    from lrpca.decomposition.result import Decomposition
    from lrpca.matrices.chunked.dask_blocks import DaskBlocks
    from lrpca.matrices.chunked.local_blocks import LocalBlocks

Tell = Callable[[Reading], object]

SPARSE, LOW_RANK, RESULT, VERSION = "lrpca-sparse", "lrpca-low-rank", "lrpca-result", 1
LAYOUTS = ("coordinates", "dense")
# The attribute that holds what `Decomposition.load` needs beside the arrays, as text.
_DECOMPOSITION = "decomposition"
# What is as large as Y.
_FULL = ("sparse", "low_rank")
# Bytes of a chunk of a dense array where Y has no chunks of its own, and the most where it has.
_CHUNK, _LARGEST_CHUNK = 1 << 24, 1 << 27
# Bytes of results of blocks that are here at a time, at most, unless a single one has more.
_HERE = 1 << 29


def write_sparse(
    decomposition: Decomposition,
    path: str | os.PathLike[str],
    *,
    layout: str = "coordinates",
    overwrite: bool = False,
    tell: Tell | None = None,
) -> None:
    """Write S, the outliers, to a zarr store: one read of Y, in memory a few blocks of it.

    Parameters
    ----------
    decomposition : Decomposition
        With its Y, of any kind; where a dask cluster works on that, it makes S too.
    path : str or path-like
        A folder to be made.
    layout : {"coordinates", "dense"}
        "coordinates": a group with the arrays ``row``, ``column`` and ``value``, one number each per outlier, block
        after block of Y; see `read_sparse`. "dense": an array of the shape of Y, in chunks like those of Y.
    overwrite : bool
        Replace an S that was written before. Anything else at `path` is left alone.
    tell : callable, optional
        Is called with a `Reading` after every block.

    Raises
    ------
    OSError
        Something is at `path` already, a block of Y cannot be read, or the disk is full. Then `path` is as it was.

    Notes
    -----
    Attributes: ``format``, ``version``, ``layout``, ``shape``, ``dtype``, ``outlier_threshold`` (None where it varies)
    and ``entries``, the number of outliers.

    S is written beside `path` and appears there when it is whole; one that it replaces goes then, not before.

    Examples
    --------
    >>> import tempfile
    >>> import lrpca
    >>> from lrpca.decomposition.zarr import read_sparse, write_sparse
    >>> Y = lrpca.testing.planted((60, 40), rank=2, outlier_fraction=0.1, random_state=0).Y
    >>> d = lrpca.decompose(Y, rank=2)
    >>> folder = tempfile.mkdtemp()
    >>> write_sparse(d, f"{folder}/S.zarr")
    >>> bool((read_sparse(f"{folder}/S.zarr") != d.sparse).any())
    False
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; use one of {', '.join(LAYOUTS)}")
    check_zarr()
    decomposition = decomposition.to_numpy()
    source = _source(decomposition)
    _refuse_input(path, source)
    with replacing_store(path, overwrite=overwrite, formats=(SPARSE,)) as staging:
        _fill_sparse(decomposition, source, staging, layout, tell)


def _fill_sparse(
    decomposition: Decomposition, source: LocalBlocks | DaskBlocks, path: Path, layout: str, tell: Tell | None
) -> None:
    """Make the store of S at a path where nothing is."""
    facts, dtype = _facts(decomposition, SPARSE) | {"layout": layout}, decomposition.L.dtype
    threshold = np.asarray(decomposition.outlier_threshold)
    facts["outlier_threshold"] = float(threshold) if threshold.ndim == 0 else None
    store: Coordinates | Dense
    if layout == "coordinates":
        store = Coordinates(path, facts, dtype)
    else:
        store = Dense(path, facts, source.grid, dtype, _chunks_of(source, dtype))
    _fill(store, decomposition, source, threshold, tell)


def _fill(
    store: Coordinates | Dense,
    decomposition: Decomposition,
    source: LocalBlocks | DaskBlocks,
    threshold: Any,
    tell: Tell | None,
) -> None:
    """Let the source work on its blocks, and take what comes of it."""
    from lrpca.matrices.chunked.block_work import outlier_limits, tasks

    L, R = decomposition.L, decomposition.R
    high, wide = outlier_limits(threshold, source.shape)
    meter = Meter(tell)
    meter.begin(len(source.grid))
    try:
        for places in _groups(store, list(source.grid)):
            found: Any = source.each(store.work, tasks(places, (L, high), (R, wide)))
            # Closed at once where taking fails: no further block is begun.
            with closing(found):
                for place, result in found:
                    store.take(place, result)
                    meter.advance(math.prod(place.shape) * source.dtype.itemsize)
        store.finish()
    finally:
        source.close()


def _groups(store: Coordinates | Dense, places: list[Place]) -> Iterator[list[Place]]:
    """Yield the blocks in groups of which the results can be here together; a large cluster has many at a time."""
    largest = max(math.prod(place.shape) for place in places)
    # The first block tells how much comes of one.
    first, count = 0, 1
    while first < len(places):
        yield places[first : first + count]
        first += count
        count = max(1, int(_HERE // max(1.0, largest * store.bytes_here)))


def write_low_rank(
    decomposition: Decomposition,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    tell: Tell | None = None,
) -> None:
    """Write L Rᵀ to a zarr array, block by block; Y is not read.

    Parameters
    ----------
    decomposition : Decomposition
    path : str or path-like
        A folder to be made.
    overwrite : bool
        Replace a low-rank matrix that was written before. Anything else at `path` is left alone.
    tell : callable, optional
        Is called with a `Reading` after every block.

    Raises
    ------
    OSError
        Something is at `path` already, or the disk is full. Then `path` is as it was.
    """
    check_zarr()
    with replacing_store(path, overwrite=overwrite, formats=(LOW_RANK,)) as staging:
        _fill_low_rank(decomposition.to_numpy(), staging, tell)


def _fill_low_rank(decomposition: Decomposition, path: Path, tell: Tell | None) -> None:
    """Make the store of L Rᵀ at a path where nothing is."""
    L, R = decomposition.L, decomposition.R
    shape, dtype = (len(L), len(R)), L.dtype
    matrix = decomposition.data_in_blocks()
    grid = plan_grid(shape, dtype.itemsize, None) if matrix is None else matrix.source.grid
    chunks = _pieces_of(grid, dtype.itemsize) if matrix is None else _chunks_of(matrix.source, dtype)
    meter = Meter(tell)
    meter.begin(len(grid))
    store = Dense(path, _facts(decomposition, LOW_RANK), grid, dtype, chunks)
    for place in grid:
        store.take(place, (None, L[place.rows] @ R[place.columns].T))
        meter.advance(math.prod(place.shape) * dtype.itemsize)
    store.finish()


def write_store(
    decomposition: Decomposition,
    path: str | os.PathLike[str],
    facts: dict[str, Any],
    *,
    sparse: str | None = None,
    low_rank: bool = False,
    tell: Callable[[str, Reading], object] | None = None,
) -> list[Path]:
    """Write a decomposition to a zarr group: the factors, then S and L Rᵀ if asked for.

    Parameters
    ----------
    decomposition : Decomposition
    path : str or path-like
        A folder to be made; a result that was written before is replaced, anything else is left alone.
    facts : dict
        What the attributes of the group are to hold beside ``format``, ``version`` and ``complete``; fit for JSON.
    sparse : {"coordinates", "dense"}, optional
        Write S to ``sparse`` in the group; see `write_sparse`.
    low_rank : bool
        Write L Rᵀ to ``low_rank`` in the group.
    tell : callable, optional
        Is called with "S" or "L Rᵀ" and a `Reading` after every block.

    Returns
    -------
    list of pathlib.Path
        The group, and what was written in it block by block.

    Raises
    ------
    OSError
        Something else is at `path`, or the disk is full: then a result that was there before stays as it was. Where
        none was, and there is room for the factors alone, the group holds these, with ``complete`` false; an interrupt
        leaves the same.
    """
    check_zarr()
    import zarr

    target = Path(path)
    decomposition = decomposition.to_numpy()
    L, R = decomposition.L, decomposition.R
    norms = [np.linalg.norm(factor.astype(complex), axis=0) for factor in (L, R)]
    arrays = {"L": L, "R": R, "singular_values": norms[0] * norms[1]} | small_parts(decomposition)
    facts = facts | {_DECOMPOSITION: str(arrays.pop("facts"))}
    parts: dict[str, Callable[[Path], None]] = {}
    if sparse:
        parts["sparse"] = partial(
            _fill_sparse, decomposition, _source(decomposition), layout=sparse, tell=tell and partial(tell, "S")
        )
    if low_rank:
        parts["low_rank"] = partial(_fill_low_rank, decomposition, tell=tell and partial(tell, "L Rᵀ"))
    failed: tuple[str, BaseException] | None = None
    with replacing_store(path, overwrite=True, formats=(RESULT,)) as staging:
        attributes = {"format": RESULT, "version": VERSION, "complete": False} | facts
        group: Any = zarr.create_group(os.fspath(staging), attributes=attributes)
        for name, values in arrays.items():
            group.create_array(name, data=np.ascontiguousarray(values))
        for name, fill in parts.items():
            try:
                fill(staging / name)
            except BaseException as error:
                if os.path.lexists(path):
                    raise
                # What was found took long: it does not go with the part for which there is no room.
                abandon(staging / name)
                failed = name, error
                break
        else:
            group.attrs["complete"] = True
    if failed is not None:
        _tell_failure(path, *failed)
    return [target, *(target / name for name in parts)]


def _tell_failure(path: str | os.PathLike[str], part: str, error: BaseException) -> None:
    """Raise the error that came of writing a part, and say that the others are there."""
    left = f"path={os.fspath(path)!r} holds the result without {part!r}"
    if not isinstance(error, OSError):
        error.add_note(left)
        raise error
    told = cannot_write(path, error) if error.strerror else error
    raise OSError(f"{told}; {left}") from error


def read_store(path: Path) -> dict[str, Any]:
    """Return the arrays of a group that `write_store` wrote, and the text ``facts``, but neither S nor L Rᵀ."""
    check_zarr()
    import zarr

    facts = attributes_of(path)
    if facts.get("format") != RESULT:
        raise ValueError(f"format {facts.get('format')!r}")
    group: Any = zarr.open_group(os.fspath(path), mode="r")
    return {"facts": facts[_DECOMPOSITION]} | {name: array[...] for name, array in group.arrays() if name not in _FULL}


def read_sparse(path: str | os.PathLike[str]) -> Any:
    """Read S that `write_sparse` wrote by coordinates.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    scipy.sparse.coo_array (n1, n2)
    """
    import scipy.sparse

    check_zarr()
    if not os.path.exists(path):
        raise FileNotFoundError(f"path={os.fspath(path)!r} does not exist; pass the path given to write_sparse")
    facts = attributes_of(path)
    if facts.get("format") != SPARSE:
        raise ValueError(f"path={os.fspath(path)!r} is no S written by lrpca; pass the path given to write_sparse")
    if facts["version"] != VERSION:
        raise ValueError(
            f"path={os.fspath(path)!r} has version {facts['version']}; this lrpca reads {VERSION}, upgrade it"
        )
    if facts["layout"] != "coordinates":
        raise ValueError(f"path={os.fspath(path)!r} holds S as a full array; open it with zarr.open_array")
    import zarr

    group: Any = zarr.open_group(os.fspath(path), mode="r")
    row, column, value = (group[name][:] for name in ("row", "column", "value"))
    return scipy.sparse.coo_array((value, (row, column)), shape=tuple(facts["shape"]))


def _facts(decomposition: Decomposition, kind: str) -> dict[str, Any]:
    """Return the attributes of a store."""
    shape = [len(decomposition.L), len(decomposition.R)]
    return {"format": kind, "version": VERSION, "shape": shape, "dtype": str(decomposition.L.dtype)}


def _source(decomposition: Decomposition) -> LocalBlocks | DaskBlocks:
    """Return Y in blocks; one in memory is cut for the threads of this process."""
    from lrpca.matrices.chunked.local_blocks import LocalBlocks

    matrix = decomposition.data_in_blocks()
    if matrix is not None:
        source: LocalBlocks | DaskBlocks = matrix.source
        return source
    matrix = decomposition.data()
    kind = _Densified if hasattr(matrix.array, "tocsr") else StoredArray
    return LocalBlocks(kind(matrix.array, "Y"), matrix.mask, Meter())


class _Densified(StoredArray):
    """A scipy sparse matrix, of which rectangles are made dense."""

    def rectangle(self, place: tuple[slice, slice]) -> Any:
        """Return a rectangle as an array."""
        return self.array[place].toarray()


def _refuse_input(path: str | os.PathLike[str], source: LocalBlocks | DaskBlocks) -> None:
    """Raise where Y lies in the store that is to be replaced."""
    array = getattr(getattr(source, "stored", None), "array", None)
    root = getattr(getattr(array, "store", None), "root", None)
    if array is not None and root is not None and Path(root, array.path).resolve().is_relative_to(Path(path).resolve()):
        raise ValueError(f"path={os.fspath(path)!r} would replace the input; choose another name")


def _chunks_of(source: LocalBlocks | DaskBlocks, dtype: Any) -> tuple[int, int]:
    """Return the chunks of Y if it has some of a bearable size, else pieces of its blocks."""
    stored = getattr(source, "stored", None)
    chunks = source.as_dask()[0].chunksize if stored is None else stored.chunks
    if chunks is None or np.prod(chunks, dtype=float) * dtype.itemsize > _LARGEST_CHUNK:
        return _pieces_of(source.grid, dtype.itemsize)
    high, wide = (min(size, n) for size, n in zip(chunks, source.shape, strict=True))
    return high, wide


def _pieces_of(grid: Grid, itemsize: int) -> tuple[int, int]:
    """Return chunks that blocks of a regular grid are made of."""
    (high, *_), (wide, *_) = grid.chunks
    parts = next((k for k in (1, 2, 4, 8, 16) if high % (2 * k) or high // k * wide * itemsize <= _CHUNK), 16)
    return high // parts, wide
