"""Singular values and eigenvalues of matrices on which LAPACK's fast algorithms may fail.

Divide and conquer (``gesdd``, ``syevd``) is several times as fast as QR iteration (``gesvd``, ``syev``), but does not
converge on a finite matrix now and then, such as one with repeated rows. QR iteration is the fallback, for stacks of
matrices and for tensors too. Where values are wanted without vectors, LAPACK uses QR iteration from the beginning.

What is not finite has no decomposition: these functions raise what NumPy, or torch, raises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache
def upper_triangle(n: int) -> tuple[Any, Any]:
    """Return the rows and columns of the upper triangle of an (n, n) matrix, not to be changed in place."""
    return np.triu_indices(n)


def svd(M: Any, *, full_matrices: bool = True) -> tuple[Any, Any, Any]:  # M (..., m, n)
    """Return U, the singular values and V^H."""
    return _or_slowly(np.linalg.svd, "svd", M, {"full_matrices": full_matrices}, lapack_driver="gesvd")  # type: ignore[no-any-return]


def eigh(M: Any) -> tuple[Any, Any]:  # M (..., n, n) Hermitian
    """Return the eigenvalues, the smallest first, and the eigenvectors."""
    return _or_slowly(np.linalg.eigh, "eigh", M, {}, driver="ev")  # type: ignore[no-any-return]


def some_eigh(
    M: Any,  # (n, n) Hermitian
    first: int,
    last: int,
    B: Any = None,  # (n, n) Hermitian, positive definite
) -> tuple[Any, Any]:
    """Return the eigenvalues from `first` to `last`, counted from the smallest, and their eigenvectors.

    With B, those of ``M v = λ B v``.
    """
    from scipy.linalg import eigh

    if not np.isfinite(M).all():
        raise np.linalg.LinAlgError("Array must not contain infs or NaNs")
    try:
        return eigh(M, B, subset_by_index=(first, last))  # type: ignore[no-any-return]
    except np.linalg.LinAlgError:
        values, vectors = eigh(M, B, driver="ev" if B is None else "gv")
    return values[first : last + 1], vectors[:, first : last + 1]


def least_squares(A: Any, B: Any) -> Any:  # A (m, n); B (m, k)
    """Return the least-squares solution (n, k) of ``A X = B``."""
    try:
        return np.linalg.lstsq(A, B, rcond=None)[0]
    except np.linalg.LinAlgError:
        from scipy.linalg import lstsq

        return lstsq(A, B, lapack_driver="gelss")[0]


def tensor_svd(M: Any, *, full_matrices: bool = True) -> tuple[Any, Any, Any]:  # M (..., m, n) tensor
    """Return U, the singular values and V^H of a tensor, without a graph where the fallback makes them."""
    import torch

    return _or_on_host(torch.linalg.svd, svd, M, full_matrices=full_matrices)  # type: ignore[no-any-return]


def tensor_eigh(M: Any) -> tuple[Any, Any]:  # M (..., n, n) Hermitian tensor
    """Return the eigenvalues of a tensor, the smallest first, and the eigenvectors; see `tensor_svd`."""
    import torch

    return _or_on_host(torch.linalg.eigh, eigh, M)  # type: ignore[no-any-return]


def _or_slowly(work: Callable[..., Any], name: str, M: Any, settings: dict[str, Any], **driver: str) -> Any:
    """Return what NumPy makes of a matrix or stack or, where that fails on finite numbers, SciPy with a driver."""
    try:
        return tuple(work(M, **settings))
    except np.linalg.LinAlgError:
        if not np.isfinite(M).all():
            raise
    from scipy import linalg

    parts = [getattr(linalg, name)(one, **settings, **driver) for one in M.reshape(-1, *M.shape[-2:])]
    return tuple(np.stack(same).reshape(*M.shape[:-2], *same[0].shape) for same in zip(*parts, strict=True))


def _or_on_host(work: Callable[..., Any], fallback: Callable[..., Any], M: Any, **settings: Any) -> Any:
    """Return what torch makes of a tensor or, where that fails on finite numbers, NumPy and SciPy."""
    import torch

    try:
        return tuple(work(M, **settings))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if not torch.isfinite(M).all():
            raise
    parts = fallback(M.detach().cpu().numpy(), **settings)
    return tuple(torch.from_numpy(np.ascontiguousarray(part)).to(M.device) for part in parts)
