"""Medians of columns, weighted and with gaps, and tables without them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.tables.bands import centred_dtype, part_of, rows_of

# Median of |z| of a normal variable.
MEDIAN_NORMAL = 0.6744897501960817
# Its multiples modulo 1 are spread evenly, without a period.
GOLDEN = 0.6180339887498949
# Entries of the rows that medians are taken of, where a table is not in memory, and the least number of rows.
_SAMPLE, _LEAST_ROWS = 1 << 24, 1000


def column_medians(values: Any, weight: Any) -> Any:  # values (m, p), NaN = missing; weight (m,)
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


def table_medians(Y: Any, weight: Any) -> Any:
    """Return the medians (n2,) of a table (n1, n2) of weighted rows; of one not in memory those of some rows."""
    if isinstance(Y, ChunkedMatrix):
        rows = _spread_rows(Y.shape)
        Y, weight = rows_of(Y, rows), weight[rows]
    dense = np.asarray(Y.toarray() if hasattr(Y, "toarray") else Y, np.float64)
    return column_medians(dense, weight)


def _spread_rows(shape: tuple[int, int]) -> Any:
    """Return the indices of evenly spread rows that fit into memory; raise ValueError where they are too few."""
    n1, n2 = shape
    count = min(n1, _SAMPLE // n2)
    if count < min(n1, _LEAST_ROWS):
        raise ValueError(
            f"center='median' needs {min(n1, _LEAST_ROWS)} rows in memory, too many with X.shape={(n1, n2)}; use "
            "center=True, which finds the centre along with the components"
        )
    steps = np.arange(count)
    # One from each stretch of rows.
    return steps if count == n1 else ((steps + steps * GOLDEN % 1.0) * (n1 / count)).astype(int)


def without_centre(Y: Any, offset: Any) -> Any:
    """Return a table less a centre (n2,): a floating-point copy; a chunked matrix subtracts at every read."""
    if not isinstance(Y, ChunkedMatrix):
        dense = Y.toarray() if hasattr(Y, "toarray") else Y
        return np.subtract(dense, offset, dtype=centred_dtype(dense.dtype))
    return part_of(Y, offset=offset)
