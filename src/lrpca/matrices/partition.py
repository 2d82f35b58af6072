"""The fixed partition of a matrix: it depends on the shape alone, so the bits of a result never depend on threads."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

Rectangle = tuple[slice, slice]

_MOST_PARTS = 64
_FEWEST_PARTS = 8
# Entries below which a matrix is not cut: to cut it takes as long as its pass.
_WHOLE = 1 << 16
# Rows of a rectangle are counted in float32, exact up to 2**24.
_LONGEST = 1 << 20


@lru_cache(64)
def partition(shape: tuple[int, int], width: int, *, by_rows: bool) -> list[Rectangle]:
    """Return rectangles that cover a matrix, cut along one axis in multiples of four.

    Every part needs sums as long as the axis that is not cut, times `width`. The number of parts grows with the
    matrix so that many cores find work, and stays small enough for those sums to be a few per cent of Y.

    Examples
    --------
    >>> partition((800, 300), 2, by_rows=True)[:2]
    [(slice(0, 100, None), slice(0, 300, None)), (slice(100, 200, None), slice(0, 300, None))]
    """
    n = shape[0] if by_rows else shape[1]
    affordable = max(_FEWEST_PARTS, min(_MOST_PARTS, n // (100 * max(1, width))))
    quads = -(-n // 4)
    if shape[0] * shape[1] < _WHOLE:
        affordable = 1
    count = max(1, min(affordable, quads), -(-n // _LONGEST))
    edges = [min(n, 4 * int(edge)) for edge in np.linspace(0, quads, count + 1)]
    whole = slice(0, shape[1] if by_rows else shape[0])
    cuts = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True) if b > a]
    return [(cut, whole) if by_rows else (whole, cut) for cut in cuts]
