"""A residual on a list of entries: what `lrpca.kernels.selection` does, where few entries are observed.

Entries are sorted by rows, ``pointers[i]`` to ``pointers[i + 1]`` being those of row i. `order` lists the same entries
by columns. All functions are serial, release the GIL and work on a range of rows or columns.
"""

from __future__ import annotations

import numpy as np

from lrpca.kernels.cpu import outer
from lrpca.kernels.selection import modulus, selected_threshold


@outer
def residual(
    values,  # (m,)
    columns,  # (m,) int
    pointers,  # (n1 + 1,) int
    first,
    stop,
    L,  # (n1, r)
    R,  # (n2, r)
    D,  # (m,), set
):
    """Set D = Y - L Rᵀ on the entries of rows `first` to `stop`."""
    for i in range(first, stop):
        for t in range(pointers[i], pointers[i + 1]):
            j = columns[t]
            x = values[t]
            for k in range(L.shape[1]):
                x -= L[i, k] * R[j, k]
            D[t] = x


@outer
def thresholds_by_line(
    D,  # (m,)
    order,  # (m,) int: the entries by columns; None for rows
    pointers,  # (n + 1,) int
    first,
    stop,
    share,
    sizes,  # (longest line,) real, and the next: work memory
    work,
    thresholds,  # (n,), set from `first` to `stop`
):
    """Set the modulus from which on entries are among the floor(share * observed) largest of their row or column."""
    for i in range(first, stop):
        start = pointers[i]
        observed = pointers[i + 1] - start
        for t in range(observed):
            sizes[t] = modulus(D[start + t if order is None else order[start + t]])
        thresholds[i] = selected_threshold(sizes, observed, observed, share, work)


@outer
def reject(
    D,  # (m,), set to E
    columns,  # (m,) int
    pointers,  # (n1 + 1,) int
    first,
    stop,
    row_levels,  # (n1,)
    column_levels,  # (n2,)
    row_kept,  # (n1,), set from `first` to `stop`
    column_kept,  # (n2,), added to
):
    """Set E = D where it is below either threshold and 0 elsewhere, in rows `first` to `stop`; return their ‖E‖²."""
    total = 0.0
    for i in range(first, stop):
        own = row_levels[i]
        kept = 0
        for t in range(pointers[i], pointers[i + 1]):
            size = modulus(D[t])
            if size < max(own, column_levels[columns[t]]) or size == 0:
                kept += 1
                column_kept[columns[t]] += 1
                total += np.float64(size) * np.float64(size)
            else:
                D[t] = 0.0
        row_kept[i] = kept
    return total


@outer
def lines_times(
    E,  # (m,)
    order,  # (m,) int: the entries by columns; None for rows
    others,  # (m,) int: their columns, or their rows in that order
    pointers,  # (n + 1,) int
    first,
    stop,
    A,  # (number of columns or rows, k)
    out,  # (n, k), set from `first` to `stop`
):
    """Set E A for rows `first` to `stop`, or Eᵀ A for such columns."""
    for i in range(first, stop):
        out[i] = 0.0
        for t in range(pointers[i], pointers[i + 1]):
            x = E[t if order is None else order[t]]
            j = others[t]
            for k in range(A.shape[1]):
                out[i, k] += x * A[j, k]
