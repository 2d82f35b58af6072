"""The k-th largest modulus of every row and every column of a residual, and what is left below them.

The operator T_α of robust PCA keeps an entry if it is among the largest floor(α m) of the m observed entries of its row
*and* of its column. An entry as large as the k-th largest is kept, so equal entries are kept together.

All functions are serial, release the GIL and work on a range of rows or columns. D is stored, so that both thresholds
and the rejection see the same bits. NaN marks a missing entry; every comparison with it must be False, hence no
``nnan``.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from lrpca.kernels.cpu import jit, outer
from lrpca.kernels.trimmed import kth_smallest

# Rounding of `share * count`: 0.29 * 100 is a little less than 29.
_ROUNDING = 1e-9


def modulus(x: Any) -> Any:
    """Return |x| of a real or complex number, with the same bits wherever it is computed."""
    raise NotImplementedError("compiled code only")


# Without fastmath: a fused multiply-add in one loop and none in another would give two different moduli.
@overload(modulus, jit_options={"forceinline": True, "error_model": "numpy"})
def _choose_modulus(x):
    if isinstance(x, numba.types.Complex):
        narrow = np.float32 if x is numba.types.complex64 else np.float64
        return lambda x: narrow(
            np.sqrt(np.float64(x.real) * np.float64(x.real) + np.float64(x.imag) * np.float64(x.imag))
        )
    return lambda x: abs(x)


@jit
def selected_threshold(sizes, count, observed, share, work):
    """Return the size from which on entries are among the floor(share * observed) largest; inf if none is.

    Missing ones of the `count` sizes are negative; `work` is as long.
    """
    k = min(observed, int(share * observed + _ROUNDING))
    return kth_smallest(sizes, count, count - k, work) if k > 0 else np.inf


@jit
def residual_row(stored, L, i, Rt, row):
    """Set `row` to row i of Y - L Rᵀ."""
    for j in range(len(row)):
        row[j] = stored[j]
    rank = Rt.shape[0]
    for k in range(rank & 1):
        a = L[i, k]
        for j in range(len(row)):
            row[j] -= a * Rt[k, j]
    for k in range(rank & 1, rank, 2):
        a, b = L[i, k], L[i, k + 1]
        for j in range(len(row)):
            row[j] -= a * Rt[k, j] + b * Rt[k + 1, j]


@outer
def row_thresholds(
    Y,  # (n1, n2), NaN where missing; may be D
    L,  # (n1, r)
    Rt,  # (r, n2)
    share,
    D,  # (n1, n2), set to Y - L Rᵀ
    row,  # (n2,) of D's type, work memory
    sizes,  # (n2,) real, and the next: work memory
    work,
    thresholds,  # (n1,), set
):
    """Set D to the residual of some rows and `thresholds` to the k-th largest modulus of each of them."""
    n1, n2 = D.shape
    for i in range(n1):
        residual_row(Y[i], L, i, Rt, row)
        observed = 0
        for j in range(n2):
            size = modulus(row[j])
            seen = size == size
            sizes[j] = size if seen else -1.0
            observed += 1 if seen else 0
            D[i, j] = row[j]
        thresholds[i] = selected_threshold(sizes, n2, observed, share, work)


@outer
def column_thresholds(
    D,  # (n1, n2)
    first,
    stop,
    share,
    sizes,  # (width, n1) real, work memory
    work,  # (n1,) likewise
    thresholds,  # (n2,), set from `first` to `stop`
):
    """Set the k-th largest modulus of columns `first` to `stop`; tiles of them are transposed into `sizes`."""
    width, n1 = sizes.shape
    for j0 in range(first, stop, width):
        m = min(width, stop - j0)
        # Eight rows at a time, so that stores fill whole cache lines.
        for first_row in range(0, n1, 8):
            rows = min(8, n1 - first_row)
            for w in range(m):
                for i in range(first_row, first_row + rows):
                    size = modulus(D[i, j0 + w])
                    sizes[w, i] = size if size == size else -1.0
        for w in range(m):
            observed = 0
            for t in range(n1):
                observed += 1 if sizes[w, t] >= 0 else 0
            thresholds[j0 + w] = selected_threshold(sizes[w], n1, observed, share, work)


@outer
def reject(
    D,  # (n1, n2), set to E = D - T(D) if `store`
    row_levels,  # (n1,)
    column_levels,  # (n2,)
    At,  # (ka, n2)
    B,  # (n1, kb)
    store,
    row,  # (n2,) of D's type
    EA,  # (n1, ka), set
    BtE,  # (kb, n2), added to
    row_kept,  # (n1,), set
    column_kept,  # (n2,), added to
):
    """Take E = D where it is below either threshold, 0 elsewhere; return ‖E‖² and set the products E A and Bᵀ E.

    A residual of zero is never an outlier; a missing one is neither kept nor rejected.
    """
    n1, n2 = D.shape
    ka, kb = At.shape[0], B.shape[1]
    total = 0.0
    for i in range(n1):
        own = row_levels[i]
        kept = 0
        norm = 0.0
        for j in range(n2):
            x = D[i, j]
            size = modulus(x)
            keep = size < max(own, column_levels[j]) or size == 0
            row[j] = x if keep else 0.0
            kept += 1 if keep else 0
            column_kept[j] += 1 if keep else 0
            norm += np.float64(size) * np.float64(size) if keep else 0.0
        total += norm
        row_kept[i] = kept
        if store:
            for j in range(n2):
                D[i, j] = row[j]
        for k in range(ka):
            product = row[0] * At[k, 0]
            for j in range(1, n2):
                product += row[j] * At[k, j]
            EA[i, k] = product
        for k in range(kb & 1):
            a = B[i, k]
            for j in range(n2):
                BtE[k, j] += a * row[j]
        for k in range(kb & 1, kb, 2):
            a, b = B[i, k], B[i, k + 1]
            for j in range(n2):
                BtE[k, j] += a * row[j]
                BtE[k + 1, j] += b * row[j]
    return total
