"""The k-th largest modulus of every row and every column of a residual, and what is left below them.

The operator T_α of robust PCA keeps an entry if it is among the largest floor(α m) of the m observed entries of its row
*and* of its column. An entry as large as the k-th largest is kept, so equal entries are kept together. No sorting:
a histogram of the leading bits of the moduli (floating-point numbers are ordered like their bits) tells in which of 512
narrow bins the k-th largest lies, and only the few numbers of that bin are partitioned. It is exact for any data.

All functions are serial, release the GIL and work on a range of rows or columns. D is stored, so that both thresholds
and the rejection see the same bits. NaN marks a missing entry; every comparison with it must be False, hence no
``nnan``.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from lrpca.kernels.cpu import FASTMATH, jit

BINS = 512
# A sixteenth of an octave per bin.
_KEPT_BITS = 4
# So few numbers are partitioned at once.
_FEW = 64
# Rounding of `share * count`: 0.29 * 100 is a little less than 29.
_ROUNDING = 1e-9

_outer = numba.njit(nogil=True, cache=True, fastmath=FASTMATH, error_model="numpy")


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


def shift_of(real: Any) -> int:
    """Return by how many bits the moduli of a dtype are shifted to get the number of their bin."""
    return int(np.finfo(real).nmant) - _KEPT_BITS


@jit
def _partition_largest(work, count, k):
    """Return the k-th largest of work[:count], which is reordered (Hoare's selection, pivot the median of three)."""
    low, high, goal = 0, count - 1, k - 1
    while low < high:
        a, b, c = work[low], work[(low + high) >> 1], work[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while work[i] > pivot:
                i += 1
            while work[j] < pivot:
                j -= 1
            if i <= j:
                work[i], work[j] = work[j], work[i]
                i += 1
                j -= 1
        if goal <= j:
            high = j
        elif goal >= i:
            low = i
        else:
            break
    return work[goal]


@jit
def _kth_largest(sizes, bits, start, count, k, shift, counts, work):
    """Return the k-th largest of sizes[start : start + count], `bits` being the same memory seen as integers.

    Negative numbers stand for missing entries and are the smallest. `counts` holds two histograms.
    """
    if count <= _FEW:
        for t in range(count):
            work[t] = sizes[start + t]
        return _partition_largest(work, count, k)
    top = bits[start]
    for t in range(start, start + count):
        top = max(top, bits[t])
    base = top >> shift
    counts[:] = 0
    even = count & ~1
    # Two histograms: equal neighbours would wait for each other's sum.
    for t in range(start, start + even, 2):
        counts[min(base - (bits[t] >> shift), BINS - 1)] += 1
        counts[BINS + min(base - (bits[t + 1] >> shift), BINS - 1)] += 1
    if even < count:
        counts[min(base - (bits[start + even] >> shift), BINS - 1)] += 1
    place, before = 0, 0
    while before + counts[place] + counts[BINS + place] < k:
        before += counts[place] + counts[BINS + place]
        place += 1
    last = place == BINS - 1
    found = 0
    for t in range(start, start + count):
        distance = base - (bits[t] >> shift)
        work[found] = sizes[t]
        found += 1 if distance == place or (last and distance > place) else 0
    return _partition_largest(work, found, k - before)


@jit
def selected_threshold(sizes, bits, start, count, observed, share, shift, counts, work):
    """Return the modulus from which on entries are among the floor(share * observed) largest; inf if none is."""
    k = min(observed, int(share * observed + _ROUNDING))
    if k <= 0:
        return np.inf
    return _kth_largest(sizes, bits, start, count, k, shift, counts, work)


@_outer
def row_thresholds(
    Y,  # (n1, n2), NaN where missing; may be D
    L,  # (n1, r)
    Rt,  # (r, n2)
    share,
    shift,
    D,  # (n1, n2), set to Y - L Rᵀ
    row,  # (n2,) of D's type
    sizes,  # (n2,) real
    bits,  # (n2,) the same memory as integers
    counts,  # (2 BINS,)
    work,  # (n2 + 1,) real
    thresholds,  # (n1,), set
):
    """Set D to the residual of some rows and `thresholds` to the k-th largest modulus of each of them."""
    n1, n2 = D.shape
    rank = L.shape[1]
    for i in range(n1):
        for j in range(n2):
            row[j] = Y[i, j]
        for k in range(rank & 1):
            a = L[i, k]
            for j in range(n2):
                row[j] -= a * Rt[k, j]
        for k in range(rank & 1, rank, 2):
            a, b = L[i, k], L[i, k + 1]
            for j in range(n2):
                row[j] -= a * Rt[k, j] + b * Rt[k + 1, j]
        observed = 0
        for j in range(n2):
            size = modulus(row[j])
            seen = size == size
            sizes[j] = size if seen else -1.0
            observed += 1 if seen else 0
            D[i, j] = row[j]
        thresholds[i] = selected_threshold(sizes, bits, 0, n2, observed, share, shift, counts, work)


@_outer
def column_thresholds(
    D,  # (n1, n2)
    first,
    stop,
    share,
    shift,
    sizes,  # (width * n1,) real
    bits,  # (width * n1,) the same memory as integers
    counts,  # (2 BINS,)
    work,  # (n1 + 1,) real
    thresholds,  # (n2,), set from `first` to `stop`
):
    """Set the k-th largest modulus of columns `first` to `stop`; tiles of them are transposed into `sizes`."""
    n1 = D.shape[0]
    width = len(sizes) // n1
    for j0 in range(first, stop, width):
        m = min(width, stop - j0)
        # Eight rows at a time, so that stores fill whole cache lines.
        for first_row in range(0, n1, 8):
            rows = min(8, n1 - first_row)
            for w in range(m):
                for i in range(first_row, first_row + rows):
                    size = modulus(D[i, j0 + w])
                    sizes[w * n1 + i] = size if size == size else -1.0
        for w in range(m):
            observed = 0
            for t in range(w * n1, (w + 1) * n1):
                observed += 1 if sizes[t] >= 0 else 0
            thresholds[j0 + w] = selected_threshold(sizes, bits, w * n1, n1, observed, share, shift, counts, work)


@_outer
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
