"""Binary pictures: majority, opening, small objects and holes. Compiled by numba, serial, releasing the GIL.

Pictures are (height, width) bytes, 0 or 1. Squares are cut off at the border. Components are found over runs of equal
pixels in a row, which are far fewer than pixels: with scipy.ndimage.label, which labels every pixel, marking a frame
takes 2.4 to 4.3 times as long.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from lrpca.kernels.cpu import HELPER

_jit = numba.njit(**{**HELPER, "fastmath": False, "error_model": "python"})
_outer = numba.njit(nogil=True, cache=True)
# Eight ones.
_ONES = np.uint64(0x0101010101010101)


@_jit
def _column_counts(mask, i, reach, columns):
    """Count the ones at most `reach` above and below every pixel of row i; return how many rows that are."""
    height, width = mask.shape
    columns[:] = 0
    top, bottom = max(i - reach, 0), min(i + reach, height - 1)
    for y in range(top, bottom + 1):
        row = mask[y]
        for x in range(width):
            columns[x] += row[x]
    return bottom - top + 1


@_outer
def square_vote(
    mask: Any,  # (h, w) uint8
    reach: int,
    share: float,
    out: Any,  # (h, w) uint8, not the mask itself
) -> None:
    """Mark where more than `share` of the square around a pixel is marked: .5 is the median, 0 dilates, .999 erodes."""
    height, width = mask.shape
    padded = np.zeros(width + 2 * reach, np.uint16)
    columns = padded[reach : reach + width]
    sums = np.empty(width, np.uint32)
    wanted = np.empty(width, np.float32)
    for i in range(height):
        rows = _column_counts(mask, i, reach, columns)
        for x in range(width):
            wanted[x] = share * rows * (min(x + reach, width - 1) - max(x - reach, 0) + 1)
        sums[:] = 0
        for d in range(2 * reach + 1):
            shifted = padded[d : d + width]
            for x in range(width):
                sums[x] += shifted[x]
        row = out[i]
        for x in range(width):
            row[x] = np.float32(sums[x]) > wanted[x]


@_jit
def _root(parent, k):
    while parent[k] != k:
        parent[k] = parent[parent[k]]
        k = parent[k]
    return k


@_jit
def _skip(line, words, x, wanted, other):
    """Return where `wanted` comes next: eight bytes at a time where all are `other`."""
    width = line.shape[0]
    while x < width and line[x] != wanted:
        x += 1
        if x % 8 == 0:
            while x // 8 < words.shape[0] and words[x // 8] == other:
                x += 8
    return x


@_jit
def _find_runs(mask, value, diagonal, row, start, stop, parent):
    """List the runs of `value` and join those that touch; return how many there are."""
    height, width = mask.shape
    whole = width // 8
    same, other = (_ONES, np.uint64(0)) if value else (np.uint64(0), _ONES)
    count, above, above_end = 0, 0, 0
    for i in range(height):
        begin, line = count, mask[i]
        words = line[: 8 * whole].view(np.uint64)
        x = _skip(line, words, 0, value, other)
        while x < width:
            row[count], start[count] = i, x
            x = _skip(line, words, x, 1 - value, same)
            stop[count], parent[count] = x, count
            count += 1
            x = _skip(line, words, x, value, other)
        a, b = above, begin
        while a < above_end and b < count:
            if start[a] < stop[b] + diagonal and start[b] < stop[a] + diagonal:
                first, second = _root(parent, a), _root(parent, b)
                if first < second:
                    parent[second] = first
                else:
                    parent[first] = second
            if stop[a] < stop[b]:
                a += 1
            else:
                b += 1
        above, above_end = begin, count
    return count


@_outer
def tidy(
    mask: Any,  # (h, w) uint8, changed
    weight: Any,  # (h, w) float32: what a pixel counts in the size of an object
    smallest: float,
    largest_hole: int,
) -> None:
    """Remove objects that count less than `smallest`, then fill holes of at most `largest_hole` pixels in objects."""
    height, width = mask.shape
    most = height * (width // 2 + 1)  # every other pixel of a row begins a run
    row, start, stop, parent = np.empty((4, most), np.int32)
    area = np.empty(most, np.float32)
    count = _find_runs(mask, 1, 1, row, start, stop, parent)
    area[:count] = 0
    for k in range(count):
        root = _root(parent, k)
        for x in range(start[k], stop[k]):
            area[root] += weight[row[k], x]
    for k in range(count):
        if area[_root(parent, k)] < smallest:
            for x in range(start[k], stop[k]):
                mask[row[k], x] = 0
    count = _find_runs(mask, 0, 0, row, start, stop, parent)
    area[:count] = 0
    for k in range(count):
        root = _root(parent, k)
        area[root] += stop[k] - start[k]
        if row[k] == 0 or row[k] == height - 1 or start[k] == 0 or stop[k] == width:
            area[root] += height * width
    for k in range(count):
        if area[_root(parent, k)] <= largest_hole:
            for x in range(start[k], stop[k]):
                mask[row[k], x] = 1
