"""The formulas of `lrpca.core.factors` that are computed another way on a device: from Grams of tall matrices.

One product and one transfer, where `lrpca.core.factors` takes several of each. Columns are scaled to length
one first, so that a Gram shows weak ones as well as strong ones; where they depend on each other so closely that it
does not show what is left of them, None is returned, and those formulas have to do it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lrpca.core.linalg import eigh, svd
from lrpca.matrices.device.array import DeviceArray, to_device, to_host
from lrpca.matrices.device.step import retract

__all__ = ["normal_form", "orthonormal", "retract", "thin_svd"]

# The least eigenvalue of a Gram of columns of length one: squares have sixteen digits, so bases are good to thirteen of
# them, or to eight where that is enough.
_WELL, _ROUGHLY = 1e-3, 1e-8
# Cosines, and differences of lengths, that are rounding.
_NORMAL = 1e-13


class _Whitening(NamedTuple):
    """T with orthonormal M T, and its inverse."""

    there: Any  # (k, k)
    back: Any  # (k, k)


def orthonormal(M: DeviceArray, *, rough: bool = False) -> DeviceArray | None:  # M (n, k)
    """Return an orthonormal basis of the columns of M; see `lrpca.core.factors.orthonormal`. A `rough` one may do."""
    found = _whitening(*_grams(M), least=_ROUGHLY if rough else _WELL)
    return None if found is None else _times(M, found.there)


def thin_svd(M: DeviceArray) -> tuple[Any, Any, Any] | None:  # M (n, k)
    """Return U, the singular values and V^H of M; see `lrpca.core.factors.thin_svd`."""
    found = _whitening(*_grams(M), least=_ROUGHLY)
    if found is None:
        return None
    U, values, Vh = svd(found.back)
    return _times(M, found.there @ U), values, Vh


def normal_form(L: DeviceArray, R: DeviceArray) -> tuple[Any, Any, Any] | None:
    """Return L = U Σ^½, R = V Σ^½ with the same product, and the values; see `lrpca.core.factors.normal_form`."""
    grams = _grams(L, R)
    if _are_normal(*grams):
        new_L, new_R, values = L.tensor, R.tensor, np.sqrt(np.diag(grams[0]) * np.diag(grams[1]))
    else:
        left, right = (_whitening(gram, least=_WELL) for gram in grams)
        if left is None or right is None:
            return None
        U, values, Vt = svd(left.back @ right.back.T)
        root = np.sqrt(values)
        new_L, new_R = _times(L, left.there @ U * root).tensor, _times(R, right.there @ Vt.T * root).tensor
    # The entry of largest modulus in each column of R is to be positive.
    sign = torch.sign(new_R.gather(0, new_R.abs().argmax(0, keepdim=True)))
    return DeviceArray(new_L * sign), DeviceArray(new_R * sign), values


def _are_normal(left: Any, right: Any) -> bool:  # left (r, r); right (r, r)
    """Tell whether Grams are those of factors in normal form, to rounding: equal, diagonal, largest first."""
    sizes = np.diag(left)
    if not (np.isfinite(left).all() and np.isfinite(right).all() and sizes.min(initial=np.inf) > 0):
        return False
    scale = np.sqrt(np.outer(sizes, sizes))
    alike = all((np.abs(gram - np.diag(sizes)) <= _NORMAL * scale).all() for gram in (left, right))
    return bool(alike and (np.diff(sizes) <= 0).all())


def _grams(*matrices: DeviceArray) -> Any:
    """Return the Grams, which come to the host at once; NaN of complex matrices."""
    if any(M.tensor.is_complex() for M in matrices):
        return np.full((len(matrices), 1, 1), np.nan)
    return to_host(torch.stack([M.tensor.T @ M.tensor for M in matrices]))


def _whitening(gram: Any, *, least: float) -> _Whitening | None:  # gram (k, k)
    size = np.sqrt(np.diag(gram))
    if len(size) == 0 or not (np.isfinite(gram).all() and size.min() > 0):
        return None
    values, vectors = eigh(gram / np.outer(size, size))
    if values[0] <= least * values[-1]:
        return None
    root = np.sqrt(values)
    return _Whitening(vectors / root / size[:, None], root[:, None] * vectors.T * size)


def _times(M: DeviceArray, small: Any) -> DeviceArray:  # M (n, k); small (k, m)
    return DeviceArray(M.tensor @ to_device(small, M.tensor.device))
