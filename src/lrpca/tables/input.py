"""What an estimator is given: tables in memory by scikit-learn's checks, what is read in blocks by our own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.devices import is_tensor
from lrpca.matrices.accept import accept
from lrpca.matrices.accept_tensor import check_kind, host_array
from lrpca.matrices.chunked.large import LARGE, is_dask, is_list_of_paths, is_path
from lrpca.matrices.chunked.matrix import ChunkedMatrix

# What messages of `lrpca.decompose` say, and what an estimator says.
_WORDS = {
    "rank='auto'": "n_components='auto'",
    "rank_choice.singular_values and give a rank": "singular_values_ and give n_components",
    "rank 1 is returned": "one component is returned",
    "try a larger rank": "try a larger n_components",
    "the rank": "n_components",
    "Y looks like": "X looks like",
    "Y has": "X has",
    "Y[": "X[",
    "Y contains": "X contains",
    "rows contains": "X contains",
    "median|Y|": "median|X|",
    "Y is too large": "X is too large",
    "rescale Y, e.g. Y": "rescale X, e.g. X",
    "rescale Y": "rescale X",
    "needs Y in": "needs X in",
    " or mask=": "",
}


def is_lazy(X: Any) -> bool:
    """Tell whether what is made of X should be a dask array, since X is one."""
    return is_dask(unwrapped(X))


def unwrapped(X: Any) -> Any:
    """Return the array of an xarray, and anything else as it is."""
    return X.data if type(X).__module__.split(".")[0] == "xarray" and hasattr(X, "dims") else X


def is_stored(X: Any) -> bool:
    """Tell whether X is not in memory: a dask or zarr array, an HDF5 dataset, a path, a list of paths."""
    known = type(X).__module__.split(".")[0] in LARGE or isinstance(X, ChunkedMatrix)
    return known or is_path(X) or is_list_of_paths(X)


def validated(
    estimator: Any,
    X: Any,  # (n_samples, n_features)
    *,
    reset: bool,
    least_samples: int = 1,
) -> Any:
    """Return X as an array, a CSR matrix or a chunked matrix, neither copied nor read where it is one already."""
    X = of_tensor(unwrapped(X))
    if is_stored(X):
        matrix = _opened(X)
        if isinstance(matrix, ChunkedMatrix):
            check_table(estimator, matrix, reset=reset, least_samples=least_samples)
            return matrix
        X = matrix.array
    return _in_memory(estimator, X, reset=reset, least_samples=least_samples)


def check_table(
    estimator: Any,
    X: Any,  # (n_samples, n_features): shape and dtype are all that is looked at
    *,
    reset: bool,
    least_samples: int = 1,
) -> None:
    """Raise ValueError where a table that is read in blocks does not fit the estimator; set its number of features.

    Whether the entries are finite is seen when they are read.
    """
    if len(X.shape) != 2:
        raise ValueError(f"X.ndim={len(X.shape)} is not 2; reshape to (samples, features)")
    dtype = X.stored if isinstance(X, ChunkedMatrix) else X.dtype
    if dtype.kind not in "biuf":
        raise ValueError(f"X.dtype={dtype} is not a real number type; convert it first, e.g. X.astype(float)")
    rows, features = X.shape
    # The number of rows of a dask array may not be known yet.
    if not math.isnan(rows) and rows < least_samples:
        raise ValueError(f"X.shape={(rows, features)} has {rows} row(s); pass at least {least_samples}")
    if reset:
        estimator.n_features_in_ = features
        estimator.__dict__.pop("feature_names_in_", None)
    elif features != estimator.n_features_in_:
        raise ValueError(
            f"X has {features} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input; pass rows like those of the fit"
        )


def of_tensor(X: Any) -> Any:
    """Return a tensor on the CPU as the array of its memory, and anything else as it is."""
    if not is_tensor(X):
        return X
    if X.device.type != "cpu":
        raise TypeError(
            f"X.device={X.device}: estimators work on the CPU; pass X.cpu(), or use lrpca.decompose, which runs there"
        )
    check_kind(X, "X")
    return host_array(X)


def _opened(X: Any) -> Any:
    """Return a container as a matrix; errors speak of X."""
    try:
        return accept(X)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise type(error)(_of_x(str(error))) from None


def _of_x(message: str) -> str:
    return "X" + message[1:] if message[:2] in ("Y.", "Y=", "Y[") else message


def _in_memory(estimator: Any, X: Any, *, reset: bool, least_samples: int) -> Any:
    from sklearn.utils.validation import validate_data

    if isinstance(X, np.ma.MaskedArray):
        X = np.ma.filled(X.astype(np.result_type(X.dtype, np.float32)), np.nan)
    plain = type(X) in (np.ndarray, np.memmap) and X.dtype.kind in "biuf"
    # Whether entries are finite is seen by the first read of the solver.
    Y = validate_data(
        estimator,
        X,
        accept_sparse="csr",
        dtype="numeric",
        ensure_all_finite=False if plain else "allow-nan",
        ensure_min_samples=least_samples,
        reset=reset,
    )
    if Y.dtype != bool:
        return Y
    return Y.astype(np.uint8) if hasattr(Y, "tocsr") else Y.view(np.uint8)


def in_our_words(message: str) -> str:
    """Return a message of `decompose` in terms of the estimator's parameters."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message
