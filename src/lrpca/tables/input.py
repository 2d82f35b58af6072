"""Checks of what an estimator is given: tables, numbers of components, weights of rows."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lrpca.core.devices import is_tensor
from lrpca.core.weights import as_weights
from lrpca.matrices.accept import accept
from lrpca.matrices.accept_tensor import check_kind, host_argument, host_array
from lrpca.matrices.chunked.large import LARGE, is_list_of_paths, is_path
from lrpca.matrices.chunked.matrix import ChunkedMatrix

# Weights are added, and their squares.
_LARGEST_WEIGHT = 1e100
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


def unwrapped(X: Any) -> Any:
    """Return the array of an xarray, and anything else as it is."""
    return X.data if type(X).__module__.split(".")[0] == "xarray" and hasattr(X, "dims") else X


def is_stored(X: Any) -> bool:
    """Tell whether X is not in memory: a dask or zarr array, an HDF5 dataset, a path, a list of paths."""
    known = type(X).__module__.split(".")[0] in LARGE or isinstance(X, ChunkedMatrix)
    return known or is_path(X) or is_list_of_paths(X)


def validated(estimator: Any, X: Any, *, reset: bool, least_samples: int = 1) -> Any:
    """Return X as an array, a CSR matrix or a chunked matrix, neither copied nor read where it is one already."""
    from sklearn.utils.validation import validate_data

    X = of_tensor(unwrapped(X))
    if is_stored(X):
        try:
            matrix = accept(X)
        except (ValueError, TypeError, FileNotFoundError) as error:
            message = str(error)
            raise type(error)("X" + message[1:] if message[:2] in ("Y.", "Y=", "Y[") else message) from None
        if isinstance(matrix, ChunkedMatrix):
            check_table(estimator, matrix, reset=reset, least_samples=least_samples)
            return matrix
        X = matrix.array
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


def check_table(estimator: Any, X: Any, *, reset: bool, least_samples: int = 1) -> None:
    """Raise ValueError where a table that is read in blocks does not fit the estimator; set its number of features.

    Only the shape and the dtype are checked here. Infinite entries raise when they are read.
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


def in_our_words(message: str) -> str:
    """Return a message of `decompose` in terms of the estimator's parameters."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


@contextmanager
def errors_in_our_words() -> Iterator[None]:
    """Raise ValueErrors with their messages in terms of the estimator's parameters."""
    try:
        yield
    except ValueError as error:
        raise ValueError(in_our_words(str(error))) from None


def checked_n_components(n_components: Any, name: str, most: int | None) -> int | float | str:
    """Return "auto", a share or a number of at most `most`, which messages call `name`; raise ValueError otherwise."""
    if isinstance(n_components, str):
        if n_components != "auto":
            raise ValueError(f"n_components={n_components!r} is unknown; use 'auto', a number or a share of variance")
        return n_components
    real = isinstance(n_components, numbers.Real) and not isinstance(n_components, bool)
    if not real:
        raise ValueError(f"n_components={n_components!r} is not a number; use 'auto', e.g. 5, or e.g. 0.95")
    if not isinstance(n_components, numbers.Integral):
        if not 0 < n_components < 1:
            raise ValueError(
                f"n_components={n_components} is not between 0 and 1; give an integer, or a share such as 0.95"
            )
        return float(n_components)
    if int(n_components) < 1 or (most is not None and int(n_components) > most):
        upper = "" if most is None else f" and {name}={most}"
        raise ValueError(f"n_components={n_components} is not between 1{upper}; choose one in that range or 'auto'")
    return int(n_components)


def checked_weight(sample_weight: Any, rows: int) -> Any:
    """Return the weights of rows as floats (None: all equal), or raise ValueError."""
    if sample_weight is None:
        return None
    weight = np.asarray(host_argument(sample_weight, "sample_weight", None, "X"))
    if weight.ndim == 0 and weight.dtype.kind in "biuf":
        weight = np.full(rows, weight)
    if weight.shape != (rows,) or weight.dtype.kind not in "biuf":
        raise ValueError(
            f"sample_weight of shape {weight.shape}, dtype {weight.dtype} does not fit; pass {rows} real numbers"
        )
    weight = as_weights("sample_weight", weight)
    if weight.max() > _LARGEST_WEIGHT:
        raise ValueError(
            f"sample_weight[{weight.argmax()}]={weight.max()} is beyond what can be summed; divide all by the largest"
        )
    if not weight.any():
        raise ValueError(
            "sample_weight is zero for every row, a weight that leaves nothing to fit; give some rows a positive one"
        )
    return weight
