"""How a matrix is cut into blocks: along the chunks it is stored in, in pieces worth a thread's while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Bytes that blocks are made of, where chunks are smaller; less where that would leave fewer blocks than so many, which
# threads and workers share.
_BLOCK_BYTES, _LEAST_BYTES, _ENOUGH = 1 << 25, 1 << 20, 64
_QUAD = 4


class Place(NamedTuple):
    """One block: its position in the grid, and its rows and columns of Y."""

    i: int
    j: int
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the block."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def __str__(self) -> str:
        rows, columns = self.rows, self.columns
        return f"Y[{rows.start}:{rows.stop}, {columns.start}:{columns.stop}]"


@dataclass(frozen=True)
class Grid:
    """Cuts of rows and of columns."""

    rows: tuple[slice, ...]
    columns: tuple[slice, ...]

    @classmethod
    def of_chunks(cls, heights: Sequence[int], widths: Sequence[int]) -> Grid:
        """Return the grid with these heights and widths of blocks."""
        return cls(_slices(heights), _slices(widths))

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    def __iter__(self) -> Iterator[Place]:
        for i, rows in enumerate(self.rows):
            for j, columns in enumerate(self.columns):
                yield Place(i, j, rows, columns)

    @property
    def chunks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Heights and widths, as dask writes them."""
        heights, widths = (tuple(cut.stop - cut.start for cut in cuts) for cuts in (self.rows, self.columns))
        return heights, widths

    def touched(self, rows: Any, columns: Any) -> Iterator[tuple[Place, Any]]:  # rows (m,) int; columns (m,) int
        """Yield the blocks in which some positions lie, with the numbers of those positions."""
        i = np.searchsorted([cut.stop for cut in self.rows], rows, side="right")
        j = np.searchsorted([cut.stop for cut in self.columns], columns, side="right")
        number = i * len(self.columns) + j
        order = np.argsort(number, kind="stable")
        edges = np.flatnonzero(np.diff(number[order])) + 1
        for those in np.split(order, edges):
            if len(those):
                a, b = divmod(int(number[those[0]]), len(self.columns))
                yield Place(a, b, self.rows[a], self.columns[b]), those


def plan_grid(
    shape: tuple[int, int],
    itemsize: int,
    chunks: tuple[int, int] | None,
    breaks: Sequence[int] = (),
    block_bytes: int | None = None,
) -> Grid:
    """Return blocks of whole chunks, of about `block_bytes` each, or one chunk where those are larger.

    By the shape alone if `block_bytes` is not given: bits must not depend on how many are at work.

    Examples
    --------
    >>> plan_grid((100, 50), 4, (30, 25), block_bytes=6000).chunks
    ((30, 30, 30, 10), (50,))
    """
    n1, n2 = shape
    if block_bytes is None:
        block_bytes = min(_BLOCK_BYTES, max(_LEAST_BYTES, n1 * n2 * itemsize // _ENOUGH))
    target = max(1, block_bytes // itemsize)
    if chunks is None:
        # Whole rows as far as they go: that is how files lie on disk.
        width = min(n2, target)
        height = min(n1, max(_QUAD, target // width // _QUAD * _QUAD))
    else:
        high, wide = min(chunks[0], n1), min(chunks[1], n2)
        width = min(n2, wide * max(1, target // (high * wide)))
        height = min(n1, high * max(1, target // (high * width)))
    edges = sorted({0, n1, *breaks})
    heights = [piece for low, high in zip(edges[:-1], edges[1:], strict=True) for piece in _pieces(high - low, height)]
    return Grid.of_chunks(heights, _pieces(n2, width))


def merged(sizes: Sequence[int], least: int) -> tuple[int, ...]:
    """Return neighbouring pieces merged until each has at least `least`.

    Examples
    --------
    >>> merged((3, 3, 3, 3, 1), 6)
    (6, 7)
    """
    found: list[int] = []
    for size in sizes:
        if found and found[-1] < least:
            found[-1] += size
        else:
            found.append(size)
    if len(found) > 1 and found[-1] < least:
        last = found.pop()
        found[-1] += last
    return tuple(found)


def _pieces(n: int, size: int) -> list[int]:
    return [min(size, n - start) for start in range(0, n, size)]


def _slices(sizes: Sequence[int]) -> tuple[slice, ...]:
    edges = np.concatenate([[0], np.cumsum(sizes)])
    return tuple(slice(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True))
