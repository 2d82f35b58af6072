"""Containers that are larger than memory, or elsewhere, turned into a chunked matrix."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from lrpca.files.formats import map_npy
from lrpca.matrices.chunked.progress import Meter, Reading
from lrpca.matrices.dense import DenseMatrix

# First part of the name of the modules whose arrays are read in blocks.
LARGE = ("dask", "zarr", "h5py")


def is_path(Y: Any) -> bool:
    """Tell whether something names a file."""
    return isinstance(Y, str | os.PathLike)


def is_list_of_paths(Y: Any) -> bool:
    """Tell whether something is a list of names of files."""
    return isinstance(Y, list | tuple) and len(Y) > 0 and all(is_path(part) for part in Y)


def accept_large(
    Y: Any, mask: Any = None, *, key: str | None = None, tell: Callable[[Reading], object] | None = None
) -> DenseMatrix:
    """Return a container that is read in blocks as a Matrix.

    Parameters
    ----------
    Y : dask array, zarr array, HDF5 dataset, path or list of paths
        Paths: a zarr store, an HDF5 or .npy file, or what `lrpca.files.read_matrix` reads (whole). A list of them is
        one above the other.
    mask : array-like of bool, optional
        True where observed; shape of Y, (n1, 1) or (1, n2); in memory, or of the same kinds as Y.
    key : str, optional
        Which array of a file that holds several.
    tell : callable, optional
        Is called with a `Reading` after every block.

    Returns
    -------
    DenseMatrix
        A `ChunkedMatrix`, but for files that are mapped into memory or were read whole.
    """
    from lrpca.files.stored import NpyFile, OpenDataset
    from lrpca.matrices.accept import accept
    from lrpca.matrices.chunked.cluster import active_client
    from lrpca.matrices.chunked.dask_blocks import DaskBlocks, check_array, stored_as_dask, unmasked
    from lrpca.matrices.chunked.grid import plan_grid
    from lrpca.matrices.chunked.local_blocks import LocalBlocks
    from lrpca.matrices.chunked.matrix import ChunkedMatrix

    meter = Meter(tell)
    data = _opened(Y, key)
    if isinstance(data, np.ndarray):
        return accept(data, mask)
    if is_dask(data):
        check_array(data)
        return ChunkedMatrix(DaskBlocks(*unmasked(data, open_mask(mask, data.shape)), meter))
    if active_client() is not None or is_dask(mask):
        if isinstance(data, OpenDataset) and active_client() is not None:
            raise TypeError(
                f"Y={data.name} is open for writing, or in memory: workers cannot read it; close it and pass its path"
            )
        array = stored_as_dask(data, plan_grid(data.shape, data.dtype.itemsize, data.chunks, data.breaks))
        return ChunkedMatrix(DaskBlocks(array, open_mask(mask, data.shape), meter))
    if isinstance(data, NpyFile):
        # Mapped into memory it needs no blocks.
        return accept(map_npy(data.path), mask)
    return ChunkedMatrix(LocalBlocks(data, open_mask(mask, data.shape), meter))


def is_dask(Y: Any) -> bool:
    """Tell whether something is a dask array."""
    # A delayed object would claim any attribute.
    return type(Y).__module__.startswith("dask.array")


def _opened(Y: Any, key: str | None) -> Any:
    """Return a dask array, a `Stored`, or an array in memory."""
    from lrpca.files.stored import from_hdf5, from_zarr, open_path, open_paths

    module = type(Y).__module__.split(".")[0]
    if is_path(Y):
        return open_path(Y, key)
    if is_list_of_paths(Y):
        return open_paths(Y, key)
    if module == "zarr":
        return from_zarr(Y)
    if module == "h5py":
        return from_hdf5(Y)
    if not is_dask(Y):
        raise TypeError(
            f"Y={type(Y).__module__}.{type(Y).__qualname__} is not an array; pass a dask array, e.g. "
            "frame.to_dask_array(lengths=True) or dask.array.from_delayed"
        )
    return Y


def open_mask(mask: Any, shape: tuple[int, int]) -> Any:
    """Return a mask, checked: an array, a dask array or a `Stored`; it is not broadcast."""
    if mask is None:
        return None
    module = type(mask).__module__.split(".")[0]
    mask = _opened_mask(mask) if module in LARGE or is_path(mask) else np.asarray(mask)
    check_mask(mask, shape)
    return mask


def check_mask(mask: Any, shape: tuple[int, int]) -> None:
    """Raise ValueError where an array or tensor is not a mask of a matrix of this shape."""
    if not str(mask.dtype).endswith("bool"):
        raise ValueError(f"mask.dtype={mask.dtype} is not bool; pass True where observed, e.g. mask != 0")
    n1, n2 = shape
    if tuple(mask.shape) not in {(n1, n2), (n1, 1), (1, n2)}:
        raise ValueError(
            f"mask.shape={tuple(mask.shape)} does not fit Y.shape={shape}; use {(n1, n2)}, {(n1, 1)} or {(1, n2)}"
        )


def _opened_mask(mask: Any) -> Any:
    """Return what `_opened` does; our own errors speak of the mask."""
    try:
        return _opened(mask, None)
    except (FileNotFoundError, TypeError, ValueError) as error:
        message = str(error)
        for start in ("path=", "Y=", "Y."):
            if message.startswith(start):
                raise type(error)("mask" + start[-1] + message.removeprefix(start)) from None
        raise
