"""Medians of columns, weighted and with gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

# Median of |z| of a normal variable.
MEDIAN_NORMAL = 0.6744897501960817


def column_medians(
    values: Any,  # (m, p), NaN = missing
    weight: Any,  # (m,)
) -> Any:
    """Return the medians (p,) of the columns, as of so many equal rows; 0 for columns without values."""
    m, p = values.shape
    values = np.ascontiguousarray(values.T)
    result = np.zeros(p)
    if m and (weight == weight[0]).all():
        values.sort(axis=1)
        counts = m - np.isnan(values).sum(axis=1)
        there = np.flatnonzero(counts)
        low, high = (counts[there] - 1) // 2, counts[there] // 2
        result[there] = values[there, low] / 2 + values[there, high] / 2
        return result
    for j in range(p):
        order = np.argsort(values[j], kind="stable")
        ordered = values[j, order]
        heap = np.cumsum(np.where(ordered == ordered, weight[order], 0.0))
        if m and heap[-1] > 0:
            left, right = (int(np.searchsorted(heap, heap[-1] / 2, side=side)) for side in ("left", "right"))
            result[j] = ordered[left] / 2 + ordered[min(right, m - 1)] / 2
    return result
