"""What may be asked of a fit of a table: number of components, weights of rows."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from lrpca.core.weights import as_weights
from lrpca.matrices.accept_tensor import host_argument

# Weights are added, and their squares.
_LARGEST_WEIGHT = 1e100


def as_number(n_components: Any) -> int | float:
    """Return a number of components, or a share, as a plain number."""
    return int(n_components) if isinstance(n_components, numbers.Integral) else float(n_components)


def check_n_components(n_components: Any, shape: tuple[int, int] | None) -> None:
    """Raise ValueError unless it is "auto", a share, or a number that a table of this shape has room for."""
    if isinstance(n_components, str):
        if n_components != "auto":
            raise ValueError(f"n_components={n_components!r} is unknown; use 'auto', a number or a share of variance")
        return
    real = isinstance(n_components, numbers.Real) and not isinstance(n_components, bool)
    if not real:
        raise ValueError(f"n_components={n_components!r} is not a number; use 'auto', e.g. 5, or e.g. 0.95")
    if not isinstance(n_components, numbers.Integral):
        if not 0 < n_components < 1:
            raise ValueError(
                f"n_components={n_components} is not between 0 and 1; give an integer, or a share such as 0.95"
            )
        return
    most = None if shape is None else min(shape)
    if int(n_components) < 1 or (most is not None and int(n_components) > most):
        upper = "" if most is None else f" and min(X.shape)={most}"
        raise ValueError(f"n_components={n_components} is not between 1{upper}; choose one in that range or 'auto'")


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
