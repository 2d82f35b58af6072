"""The formulas of `lrpca.core.factors` that are computed another way on a device: from Grams of tall matrices.

One product and one transfer, where `lrpca.core.factors` takes several of each. Columns are scaled to length
one first, so that a Gram shows weak ones as well as strong ones; where they depend on each other so closely that it
does not show what is left of them, None is returned, and those formulas have to do it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.linalg import eigh, svd
from lrpca.matrices.device.array import DeviceArray, to_device, to_host
from lrpca.matrices.device.step import retract

__all__ = ["orthonormal", "retract", "thin_svd"]

# The least eigenvalue of a Gram of columns of length one: squares have sixteen digits, so bases are good to thirteen of
# them, or to eight where that is enough.
_WELL, _ROUGHLY = 1e-3, 1e-8


def orthonormal(M: DeviceArray, *, rough: bool = False) -> DeviceArray | None:  # M (n, k)
    """Return an orthonormal basis of the columns of M; see `lrpca.core.factors.orthonormal`. A `rough` one may do."""
    found = _whitening(M, least=_ROUGHLY if rough else _WELL)
    return None if found is None else _times(M, found[0])


def thin_svd(M: DeviceArray) -> tuple[Any, Any, Any] | None:  # M (n, k)
    """Return U, the singular values and V^H of M; see `lrpca.core.factors.thin_svd`."""
    found = _whitening(M, least=_ROUGHLY)
    if found is None:
        return None
    U, values, Vh = svd(found[1])
    return _times(M, found[0] @ U), values, Vh


def _whitening(M: DeviceArray, *, least: float) -> tuple[Any, Any] | None:  # M (n, k)
    """Return T (k, k) with orthonormal M T, and its inverse; None of complex matrices."""
    if M.tensor.is_complex() or not M.shape[1]:
        return None
    gram = to_host(M.tensor.T @ M.tensor)
    size = np.sqrt(np.diag(gram))
    if not (np.isfinite(gram).all() and size.min() > 0):
        return None
    values, vectors = eigh(gram / np.outer(size, size))
    if values[0] <= least * values[-1]:
        return None
    root = np.sqrt(values)
    return vectors / root / size[:, None], root[:, None] * vectors.T * size


def _times(M: DeviceArray, small: Any) -> DeviceArray:  # M (n, k); small (k, m)
    return DeviceArray(M.tensor @ to_device(small, M.tensor.device))
