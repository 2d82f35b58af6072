"""Matrices on disk that are read a rectangle at a time: zarr arrays, HDF5 datasets, files stacked vertically.

They are pickled by their paths, so that other processes open them themselves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from lrpca.core.extras import require
from lrpca.files.formats import NUMERIC_KINDS, choose, map_npy, read_matrix

# One of them is in every zarr store.
ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")
_HDF5 = (".h5", ".hdf5", ".he5", ".nc")

Matrix = TypeVar("Matrix", bound="Stored")


class Stored(Protocol):
    """Numbers that are read by rectangles."""

    name: str  # in messages
    shape: tuple[int, int]
    ndim: int
    dtype: Any
    chunks: tuple[int, int] | None  # shape of the parts that can only be read whole; None if any rectangle can be read
    breaks: Sequence[int]  # first rows of further files; a rectangle should not cross them

    def __getitem__(self, place: tuple[slice, slice]) -> Any:
        """Return a rectangle as an array."""
        ...


class StoredArray:
    """A zarr array, or anything else with a shape, a dtype and rectangles by slices that can be pickled."""

    ndim = 2
    breaks: Sequence[int] = ()

    def __init__(self, array: Any, name: str) -> None:
        self.array = array
        self._describe(array, name)

    def _describe(self, array: Any, name: str) -> None:
        # A dataset without a dataspace has no shape.
        self.name, self.shape, self.dtype = name, tuple(array.shape or ()), np.dtype(array.dtype)
        # A shard is one file, but its inner chunks can be read alone.
        chunks = getattr(array, "chunks", None)
        self.chunks = None if chunks is None or len(chunks) != 2 else (int(chunks[0]), int(chunks[1]))

    def rectangle(self, place: tuple[slice, slice]) -> Any:
        """Return a rectangle, or raise any error of the store."""
        return self.array[place]

    def __getitem__(self, place: tuple[slice, slice]) -> Any:
        return _read(self, place)


class StoredZarr(StoredArray):
    """A zarr array; other processes open its store themselves.

    Chunks without a file are zeros to zarr, and so are all chunks if the store is gone (a drive that was unmounted, an
    array that is sent to where its files are not). So every read checks that the store is there.
    """

    _where: Any = None

    def __getstate__(self) -> dict[str, Any]:
        if self.array is None:  # pickled again before it was read
            return self.__dict__
        store = self.array.store
        if hasattr(store, "root"):
            store = type(store)(Path(store.root).resolve(), read_only=True)
        return self.__dict__ | {"array": None, "_where": (store, self.array.path)}

    def rectangle(self, place: tuple[slice, slice]) -> Any:
        """Return a rectangle, or raise any error of the store."""
        if self.array is None:
            import zarr

            store, path = self._where
            self.array = zarr.open_array(store=store, path=path, mode="r")
        root = getattr(self.array.store, "root", None)
        if root is not None and not any((Path(root) / self.array.path / name).exists() for name in ZARR_FILES):
            raise FileNotFoundError("the store is gone")
        return self.array[place]


class StoredDataset(StoredArray):
    """An HDF5 dataset; its file is opened for every rectangle, which costs little beside reading it."""

    def __init__(self, path: str, key: str) -> None:
        self.path, self.key = path, key
        with self._file() as file:
            self._describe(file[key], f"{path}:{key}")

    def _file(self) -> Any:
        import h5py

        return h5py.File(self.path, "r")

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredDataset, (self.path, self.key)

    def rectangle(self, place: tuple[slice, slice]) -> Any:
        """Return a rectangle, or raise any error of HDF5."""
        with self._file() as file:
            return file[self.key][place]


class OpenDataset(StoredArray):
    """An HDF5 dataset of a file that other processes cannot open: one that is being written, or is in memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"Y={self.name} is open for writing or has no file of its own; close it and pass its path")


class StackedRows:
    """Files with the same number of columns and the same number type, stacked vertically."""

    ndim = 2

    def __init__(self, parts: Sequence[Any], names: Sequence[str]) -> None:
        self._parts, self.names = list(parts), list(names)
        heights = [part.shape[0] for part in parts]
        self.edges = np.concatenate([[0], np.cumsum(heights)])
        self.breaks = [int(edge) for edge in self.edges[1:-1]]
        self.name = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
        self.shape = (int(self.edges[-1]), parts[0].shape[1])
        self.dtype = np.dtype(parts[0].dtype)
        pieces = {part.chunks for part in parts}
        self.chunks = pieces.pop() if len(pieces) == 1 else None

    def __getitem__(self, place: tuple[slice, slice]) -> Any:
        rows, columns = (slice(*part.indices(n)) for part, n in zip(place, self.shape, strict=True))
        first = int(np.searchsorted(self.edges, rows.start, side="right")) - 1
        found = []
        for k in range(first, len(self._parts)):
            low, high = int(self.edges[k]), int(self.edges[k + 1])
            if low >= rows.stop:
                break
            here = slice(max(rows.start, low) - low, min(rows.stop, high) - low)
            found.append(_read(self._parts[k], (here, columns), above=low))
        return found[0] if len(found) == 1 else np.concatenate(found)


class NpyFile(StoredArray):
    """A .npy file; rectangles are views. It is mapped for each of them: a list may have thousands of files."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._describe(map_npy(path), path)

    def __reduce__(self) -> tuple[Any, ...]:
        return NpyFile, (self.path,)

    def rectangle(self, place: tuple[slice, slice]) -> Any:
        """Return a rectangle, or raise any error of mapping the file."""
        return map_npy(self.path)[place]


def open_path(path: str | os.PathLike[str], key: str | None = None) -> Any:
    """Return the matrix at a path: a `Stored` if its format can be read in parts, otherwise an array.

    The path is that of a zarr array or group, of an HDF5 file, or of a file for `lrpca.files.read_matrix`. `key` is the
    name of the array in a group or file that holds several.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"path={str(file)!r} does not exist; check the name and the folder")
    if file.is_dir() and any((file / name).exists() for name in ZARR_FILES):
        return _open_zarr(file, key)
    if file.suffix.lower() in _HDF5 and file.is_file():
        return _open_hdf5(file, key)
    if file.suffix.lower() == ".npy":
        read_matrix(file, key=key)  # raises if something is wrong with it
        return NpyFile(str(file.resolve()))
    return read_matrix(file, key=key)


def open_paths(paths: Sequence[str | os.PathLike[str]], key: str | None = None) -> StackedRows:
    """Return files as one matrix, stacked vertically; they are opened and compared, not read."""
    if not paths:
        raise ValueError("Y=[] names no file; pass at least one")
    # All names first: a missing file should be found at once.
    for k, path in enumerate(paths):
        if not Path(path).exists():
            raise FileNotFoundError(
                f"Y[{k}]={str(path)!r} does not exist ({len(paths)} files were named); check the list"
            )
    parts: list[Any] = []
    for k, path in enumerate(paths):
        part = open_path(path, key)
        if isinstance(part, np.ndarray):
            raise ValueError(
                f"Y[{k}]={str(path)!r} cannot be read in parts; convert the files to .npy, .zarr or .h5, or read them "
                "with lrpca.files.read_matrix and stack them"
            )
        _checked(part)
        first = parts[0] if parts else part
        if part.shape[1] != first.shape[1]:
            raise ValueError(
                f"Y[{k}]={str(path)!r} has {part.shape[1]} columns, not the {first.shape[1]} of {str(paths[0])!r}; all "
                "files of a list need the same"
            )
        if part.dtype != first.dtype:
            raise ValueError(
                f"Y[{k}]={str(path)!r} is of dtype {part.dtype}, not {first.dtype} like {str(paths[0])!r}; convert one"
            )
        parts.append(part)
    return StackedRows(parts, [str(path) for path in paths])


def from_zarr(array: Any) -> StoredZarr:
    """Return a zarr array as a matrix on disk."""
    if not hasattr(array, "dtype"):
        raise TypeError(f"Y=zarr group with {_listing(array, 'array', 'group')}")
    return _checked(StoredZarr(array, f"zarr array {array.store_path if hasattr(array, 'store_path') else ''}".strip()))


def from_hdf5(dataset: Any) -> Stored:
    """Return an open HDF5 dataset as a matrix on disk."""
    if not dataset:
        raise ValueError(f"Y={dataset} belongs to a file that is closed; open it again, or pass its path")
    if hasattr(dataset, "keys"):
        raise TypeError(f"Y=HDF5 group with {_listing(dataset, 'dataset', 'file')}")
    if not hasattr(dataset, "shape"):
        raise TypeError(f"Y={type(dataset).__qualname__} of an HDF5 file holds no numbers; pass one of its datasets")
    path, name = dataset.file.filename, f"{dataset.file.filename}:{dataset.name}"
    if dataset.file.mode == "r" and Path(path).is_file():
        return _checked(StoredDataset(str(Path(path).resolve()), dataset.name))
    return _checked(OpenDataset(dataset, name))


def _checked(stored: Matrix) -> Matrix:
    """Return a matrix on disk, or raise ValueError if it is none."""
    if stored.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(f"Y.dtype={stored.dtype} of {stored.name} is not numeric; store the matrix as numbers")
    if len(stored.shape) != 2:
        raise ValueError(f"Y.ndim={len(stored.shape)} of {stored.name} is not 2; store it as (samples, features)")
    if 0 in stored.shape:
        raise ValueError(
            f"Y.shape={stored.shape} of {stored.name} has no entries; pass at least one row and one column"
        )
    return stored


def _read(part: Any, place: tuple[slice, slice], above: int = 0) -> Any:
    """Return a rectangle of a `Stored` with this many rows of Y above it, or raise an error that names it."""
    rows, columns = (slice(*cut.indices(n)) for cut, n in zip(place, part.shape, strict=True))
    try:
        found = part.rectangle((rows, columns))
        # If a file was replaced by a smaller one, a kernel would read beyond its end.
        if found.shape != (rows.stop - rows.start, columns.stop - columns.start):
            raise ValueError(f"found a shape of {found.shape} there, not as when it was opened")
        return found
    except MemoryError:
        raise
    except Exception as error:  # stores, codecs and file systems raise nearly anything
        rows, columns = _unreadable(part, rows, columns)
        where = f"Y[{above + rows.start}:{above + rows.stop}, {columns.start}:{columns.stop}]"
        raise OSError(
            f"{where} could not be read from {part.name} ({type(error).__name__}: {error}); mend or restore that part"
        ) from error


def _unreadable(part: Any, rows: slice, columns: slice) -> tuple[slice, slice]:
    """Return the first chunk of a rectangle that cannot be read; the rectangle itself if there is none."""
    high, wide = part.chunks or (1, 1)
    for i in range(rows.start // high * high, rows.stop if part.chunks else 0, high):
        for j in range(columns.start // wide * wide, columns.stop, wide):
            at = slice(max(i, rows.start), min(i + high, rows.stop))
            along = slice(max(j, columns.start), min(j + wide, columns.stop))
            try:
                part.rectangle((at, along))
            except Exception:  # as above
                return at, along
    return rows, columns


def _open_zarr(file: Path, key: str | None) -> StoredZarr:
    zarr = require("zarr", "dask", f"path={str(file)!r} is a zarr store, which needs zarr")
    try:
        node: Any = zarr.open(str(file), mode="r")
    except Exception as error:  # metadata can be wrong in many ways
        raise ValueError(
            f"path={str(file)!r} is not a readable zarr store ({type(error).__name__}: {error}); it is damaged or of a "
            "format that this zarr does not know"
        ) from error
    if hasattr(node, "dtype"):
        if key is not None:
            raise ValueError(f"key={key!r} has no meaning for a single zarr array; leave it out")
        return _checked(StoredZarr(node, str(file)))
    name = choose(file, {name: _header(array) for name, array in sorted(node.arrays())}, key)
    return _checked(StoredZarr(node[name], f"{file}/{name}"))


def _open_hdf5(file: Path, key: str | None) -> StoredDataset:
    h5py = require("h5py", "dask", f"path={str(file)!r} needs h5py to be read")
    found: dict[str, tuple[tuple[int, ...], bool]] = {}

    def visit(name: str, item: Any) -> None:
        if getattr(item, "shape", None) is not None:
            found[name] = _header(item)

    try:
        with h5py.File(file, "r") as content:
            content.visititems(visit)
    except OSError as error:
        raise ValueError(
            f"path={str(file)!r} is not a readable HDF5 file ({error}); it is truncated, damaged or of another kind"
        ) from error
    return _checked(StoredDataset(str(file.resolve()), choose(file, dict(sorted(found.items())), key)))


def _header(item: Any) -> tuple[tuple[int, ...], bool]:
    """Return the shape of an array, and whether it holds numbers."""
    return tuple(item.shape), item.dtype.kind in NUMERIC_KINDS


def _listing(group: Any, kind: str, variable: str) -> str:
    """Return the names in a group, and how to pass one of its members."""
    names = sorted(group)
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing in it"
    return f"{listed}; pass one of its {kind}s, e.g. {variable}[{min(names, default='name')!r}]"
