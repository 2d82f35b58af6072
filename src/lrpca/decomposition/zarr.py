"""Results in zarr stores: S and the low-rank matrix are written block by block, in one pass over the data."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.decomposition.file import all_parts
from lrpca.decomposition.zarr_stores import Coordinates, Dense, abandon, attributes_of, replacing_store, require_zarr
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
# Bytes of a chunk of a dense array where Y has no chunks of its own, and the maximum where it has.
_CHUNK, _LARGEST_CHUNK = 1 << 24, 1 << 27
# Maximal bytes of results of blocks in memory, unless a single one has more.
_IN_MEMORY = 1 << 29


def write_sparse(
    decomposition: Decomposition,
    path: str | os.PathLike[str],
    *,
    layout: str = "coordinates",
    overwrite: bool = False,
    tell: Tell | None = None,
) -> None:
    """Write S, the outliers, to a zarr store; see `Decomposition.write_sparse`."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; use one of {', '.join(LAYOUTS)}")
    require_zarr()
    decomposition = decomposition.to_numpy()
    source = _source(decomposition)
    _refuse_input(path, source)
    with replacing_store(path, overwrite=overwrite, form=SPARSE) as staging:
        _fill_sparse(decomposition, source, staging, layout, tell)


def _fill_sparse(
    decomposition: Decomposition, source: LocalBlocks | DaskBlocks, path: Path, layout: str, tell: Tell | None
) -> None:
    """Write the store of S to an unused path: the source works on its blocks, and the store takes the results."""
    from lrpca.matrices.chunked.block_work import outlier_limits, tasks

    facts, dtype = _facts(decomposition, SPARSE) | {"layout": layout}, decomposition.L.dtype
    threshold = np.asarray(decomposition.outlier_threshold)
    facts["outlier_threshold"] = float(threshold) if threshold.ndim == 0 else None
    store: Coordinates | Dense
    if layout == "coordinates":
        store = Coordinates(path, facts, dtype)
    else:
        store = Dense(path, facts, source.grid, dtype, _chunks_of(source, dtype))
    high, wide = outlier_limits(threshold, source.shape)
    meter = Meter(tell)
    meter.begin(len(source.grid))
    try:
        for places in _groups(store, list(source.grid)):
            found: Any = source.each(store.work, tasks(places, (decomposition.L, high), (decomposition.R, wide)))
            # Closed at once if taking fails: no further block is begun.
            with closing(found):
                for place, result in found:
                    store.take(place, result)
                    meter.advance(math.prod(place.shape) * source.dtype.itemsize)
        store.finish()
    finally:
        source.close()


def _groups(store: Coordinates | Dense, places: list[Place]) -> Iterator[list[Place]]:
    """Yield the blocks in groups whose results fit into memory; a large cluster works on many at a time."""
    largest = max(math.prod(place.shape) for place in places)
    # The first block shows how large a result is.
    first, count = 0, 1
    while first < len(places):
        yield places[first : first + count]
        first += count
        count = max(1, int(_IN_MEMORY // max(1.0, largest * store.result_bytes)))


def _fill_low_rank(decomposition: Decomposition, path: Path, tell: Tell | None) -> None:
    """Write the store of L Rᵀ to an unused path; Y is not read."""
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
    """Write a decomposition to a zarr group: the factors, then S (in this layout) and L Rᵀ if asked for.

    The attributes hold `facts`. A result that was there before stays if anything fails; anything else at `path` is
    left alone. If S or L Rᵀ cannot be written, or there is an interrupt, a new group holds the other parts, with
    ``complete`` false. Return the paths of the group and of S and L Rᵀ in it.
    """
    zarr = require_zarr()
    target = Path(path)
    arrays = all_parts(decomposition)
    attributes = {"format": RESULT, "version": VERSION, "complete": False} | facts
    attributes[_DECOMPOSITION] = str(arrays.pop("facts"))
    parts: dict[str, Callable[[Path], None]] = {}
    if sparse:
        parts["sparse"] = partial(
            _fill_sparse, decomposition, _source(decomposition), layout=sparse, tell=tell and partial(tell, "S")
        )
    if low_rank:
        parts["low_rank"] = partial(_fill_low_rank, decomposition, tell=tell and partial(tell, "L Rᵀ"))
    failed: tuple[str, BaseException] | None = None
    with replacing_store(path, overwrite=True, form=RESULT) as staging:
        group: Any = zarr.create_group(os.fspath(staging), attributes=attributes)
        for name, values in arrays.items():
            group.create_array(name, data=np.ascontiguousarray(values))
        for name, fill in parts.items():
            try:
                fill(staging / name)
            except BaseException as error:
                if os.path.lexists(path):
                    raise
                # The computation took long: its result stays, without the part that could not be written.
                abandon(staging / name)
                failed = name, error
                break
        else:
            group.attrs["complete"] = True
    if failed is not None:
        part, cause = failed
        left = f"path={os.fspath(path)!r} holds the result without {part!r}"
        if not isinstance(cause, OSError):
            cause.add_note(left)
            raise cause
        raise OSError(f"{cannot_write(path, cause) if cause.strerror else cause}; {left}") from cause
    return [target, *(target / name for name in parts)]


def read_store(path: Path) -> dict[str, Any]:
    """Return the arrays of a group that `write_store` wrote, without S and L Rᵀ, and the text ``facts``."""
    zarr = require_zarr()
    facts = attributes_of(path)
    if facts.get("format") != RESULT:
        raise ValueError(f"format {facts.get('format')!r}")
    group: Any = zarr.open_group(os.fspath(path), mode="r")
    small = {name: array[...] for name, array in group.arrays() if name not in ("sparse", "low_rank")}
    return small | {"facts": facts[_DECOMPOSITION]}


def read_sparse(path: str | os.PathLike[str]) -> Any:
    """Read S that `Decomposition.write_sparse` wrote by coordinates.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    scipy.sparse.coo_array (n1, n2)

    Examples
    --------
    >>> import tempfile
    >>> import lrpca
    >>> from lrpca.decomposition.zarr import read_sparse
    >>> d = lrpca.decompose(lrpca.testing.planted((60, 40), rank=2, outlier_fraction=0.1, random_state=0).Y, rank=2)
    >>> folder = tempfile.mkdtemp()
    >>> d.write_sparse(f"{folder}/S.zarr")
    >>> bool((read_sparse(f"{folder}/S.zarr") != d.sparse).any())
    False
    """
    import scipy.sparse

    zarr = require_zarr()
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
    group: Any = zarr.open_group(os.fspath(path), mode="r")
    row, column, value = (group[name][:] for name in ("row", "column", "value"))
    return scipy.sparse.coo_array((value, (row, column)), shape=tuple(facts["shape"]))


def _facts(decomposition: Decomposition, kind: str) -> dict[str, Any]:
    """Return the attributes of a store."""
    shape = [len(decomposition.L), len(decomposition.R)]
    return {"format": kind, "version": VERSION, "shape": shape, "dtype": str(decomposition.L.dtype)}


def _source(decomposition: Decomposition) -> LocalBlocks | DaskBlocks:
    """Return Y in blocks; if it is in memory, in blocks for the threads of this process."""
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
    """Raise ValueError if Y is in the store to be replaced."""
    array = getattr(getattr(source, "stored", None), "array", None)
    root = getattr(getattr(array, "store", None), "root", None)
    if array is not None and root is not None and Path(root, array.path).resolve().is_relative_to(Path(path).resolve()):
        raise ValueError(f"path={os.fspath(path)!r} would replace the input; choose another name")


def _chunks_of(source: LocalBlocks | DaskBlocks, dtype: Any) -> tuple[int, int]:
    """Return the chunks of Y, or parts of its blocks if it has none or too large ones."""
    stored = getattr(source, "stored", None)
    chunks = source.as_dask()[0].chunksize if stored is None else stored.chunks
    if chunks is None or np.prod(chunks, dtype=float) * dtype.itemsize > _LARGEST_CHUNK:
        return _pieces_of(source.grid, dtype.itemsize)
    high, wide = (min(size, n) for size, n in zip(chunks, source.shape, strict=True))
    return high, wide


def _pieces_of(grid: Grid, itemsize: int) -> tuple[int, int]:
    """Return chunks that divide the blocks of a regular grid."""
    (high, *_), (wide, *_) = grid.chunks
    parts = next((k for k in (1, 2, 4, 8, 16) if high % (2 * k) or high // k * wide * itemsize <= _CHUNK), 16)
    return high // parts, wide
