"""Trimmed means by selection: the sum of what lies between two order statistics, and no sorting.

Numbers on the wrong side of a pivot are dropped without a branch, so unpredictable data cost no more than others.
Serial, releasing the GIL; the caller runs threads.
"""

from __future__ import annotations

import numba

from lrpca.kernels.cpu import HELPER, outer

# So few numbers are sorted by insertion.
_FEW = 12


# Not inlined: it only compares, so no copy of it rounds differently.
@numba.njit(**{**HELPER, "forceinline": False})
def kth_smallest(values, count, k, work):
    """Return the k-th smallest of the first `count` numbers, counted from 0; `work` is at least as long."""
    for t in range(count):
        work[t] = values[t]
    while count > _FEW:
        a, b, c = work[0], work[count >> 1], work[count - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        less, equal = 0, 0
        for t in range(count):
            less += 1 if work[t] < pivot else 0
            equal += 1 if work[t] == pivot else 0
        found = 0
        if k < less:
            for t in range(count):
                x = work[t]
                work[found] = x
                found += 1 if x < pivot else 0
        elif k < less + equal:
            return pivot
        else:
            for t in range(count):
                x = work[t]
                work[found] = x
                found += 1 if x > pivot else 0
            k -= less + equal
        count = found
    for t in range(1, count):
        x, place = work[t], t
        while place > 0 and work[place - 1] > x:
            work[place] = work[place - 1]
            place -= 1
        work[place] = x
    return work[k]


@outer
def trimmed_means(values, cut, work, means):  # values (m, n), without NaN; work (n,); means (m,), set
    """Set the mean of every row without its `cut` smallest and `cut` largest numbers, ``2 cut < n``."""
    n = values.shape[1]
    for i in range(len(values)):
        row = values[i]
        low, high = kth_smallest(row, n, cut, work), kth_smallest(row, n, n - 1 - cut, work)
        if low == high:
            means[i] = low
            continue
        # Numbers equal to an end are inside as often as they are not among those cut off.
        inner, below, above = 0.0, 0, 0
        for t in range(n):
            x = row[t]
            inner += x if low < x < high else 0.0
            below += 1 if x <= low else 0
            above += 1 if x >= high else 0
        means[i] = (inner + low * (below - cut) + high * (above - cut)) / (n - 2 * cut)
