"""Pictures averaged over squares, compiled by numba, serial, releasing the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def average_squares(
    picture: Any,  # (height, width, channels) uint8
    side: int,
    out: Any,  # (ceil(height / side), ceil(width / side), channels) uint8
) -> None:
    """Write the mean over every square, rounded; squares that reach over the edge average what is there."""
    height, width, channels = picture.shape
    sums = np.empty((out.shape[1], channels), np.int32)
    for i in range(out.shape[0]):
        sums[:] = 0
        bottom = min(i * side + side, height)
        for y in range(i * side, bottom):
            for j in range(out.shape[1]):
                for x in range(j * side, min(j * side + side, width)):
                    for c in range(channels):
                        sums[j, c] += picture[y, x, c]
        for j in range(out.shape[1]):
            count = (bottom - i * side) * (min(j * side + side, width) - j * side)
            for c in range(channels):
                out[i, j, c] = (sums[j, c] + count // 2) // count
