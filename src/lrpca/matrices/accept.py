"""Turn what users bring into a Matrix, or say what is wrong with it."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from lrpca.core.devices import is_tensor
from lrpca.matrices.accept_tensor import accept_tensor, host_argument, refuse_list_of_tensors
from lrpca.matrices.chunked.large import LARGE, accept_large, is_list_of_paths, is_path, open_mask
from lrpca.matrices.dense import DenseMatrix, native_dtype, readable, two_axes_advice


def accept(Y: Any, mask: Any = None) -> DenseMatrix:
    """Return `Y` as a Matrix, without copying it unless its number type cannot be read in place.

    Parameters
    ----------
    Y : array-like (n1, n2)
        NumPy array or memmap, masked array, numeric pandas or polars frame, scipy sparse matrix, nested lists; torch
        tensor; dask array, zarr array, HDF5 dataset, path of a file or zarr store, list of paths (one above the other).
    mask : array-like of bool, optional
        True where observed; shape of Y, (n1, 1) or (1, n2).

    Returns
    -------
    DenseMatrix
    """
    if isinstance(Y, DenseMatrix):
        if mask is not None:
            raise ValueError("mask is not accepted together with a prepared matrix; pass it when preparing the matrix")
        return Y
    if is_tensor(Y):
        return accept_tensor(Y, mask)
    refuse_list_of_tensors(Y)
    mask = host_argument(mask, "mask")
    module = type(Y).__module__.split(".")[0]
    if module == "xarray" and hasattr(Y, "dims"):
        return accept(Y.data, mask)
    if module in LARGE or is_path(Y) or is_list_of_paths(Y):
        return accept_large(Y, mask)
    if hasattr(Y, "tocsr") and hasattr(Y, "nnz"):
        return _accept_sparse(Y, mask)
    array, own_mask = _as_array(Y)
    _check_array(array, "Y" if isinstance(Y, np.ndarray) else "numpy.asarray(Y)")
    observed = _as_mask(mask, array.shape)
    if own_mask is not None:
        observed = own_mask if observed is None else observed & own_mask
    return DenseMatrix(readable(array), observed)


def _as_array(Y: Any) -> tuple[Any, Any]:
    """Return (array, mask of observed entries or None)."""
    if isinstance(Y, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(Y)
        return np.asarray(Y.data), (~hidden if hidden.any() else None)
    if hasattr(Y, "to_numpy"):
        return _frame_to_array(Y), None
    try:
        return np.asarray(Y), None
    except ValueError as error:
        raise ValueError(f"Y={type(Y).__name__} is not rectangular ({error}); pass a 2-D numeric array") from None


def _frame_to_array(frame: Any) -> Any:
    array = np.asarray(frame.to_numpy())
    if array.dtype != object:
        return array
    # pandas' nullable columns come as objects with NA in them; text that looks like numbers is still text.
    if not all(_is_number_or_missing(value) for value in array.flat):
        return array
    return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def _is_number_or_missing(value: Any) -> bool:
    return isinstance(value, numbers.Number | np.bool_) or value is None or type(value).__name__ == "NAType"


def _check_array(array: Any, name: str) -> None:
    if array.dtype.kind not in "biufc":
        raise ValueError(
            f"Y.dtype={array.dtype} is not numeric; convert it first, e.g. Y.astype(float), or drop text columns"
        )
    if array.size == 0:
        raise ValueError(f"Y.shape={array.shape} has no entries; pass at least one row and one column")
    if array.ndim != 2:
        raise ValueError(f"Y.ndim={array.ndim} is not 2; {two_axes_advice(array.ndim, name)}")


def _as_mask(mask: Any, shape: tuple[int, int]) -> Any:
    mask = open_mask(mask, shape)
    return None if mask is None else np.broadcast_to(np.asarray(mask[:, :]), shape)


def _accept_sparse(Y: Any, mask: Any) -> DenseMatrix:
    from lrpca.matrices.sparse import SparseMatrix

    if len(Y.shape) != 2 or 0 in Y.shape:
        raise ValueError(f"Y.shape={Y.shape} is not a non-empty matrix; pass at least one row and one column")
    csr = Y.tocsr()
    if csr.dtype.kind not in "biufc":
        raise ValueError(f"Y.dtype={csr.dtype} is not numeric; convert it first, e.g. Y.astype(float)")
    return SparseMatrix(csr.astype(native_dtype(csr.dtype), copy=False), _as_mask(mask, csr.shape))
