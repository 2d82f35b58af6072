"""How matrices are cut into blocks."""

from __future__ import annotations

import numpy as np
import pytest

from lrpca.matrices.chunked.grid import plan_grid

SHAPES = [(1, 1), (7, 1), (1, 9), (100, 50), (1000, 3), (3, 1000)]
CHUNKS = [None, (1, 1), (1, 50), (30, 25), (10_000, 10_000), (64, 7)]


@pytest.mark.parametrize("block_bytes", (1, 100, 4096, 1 << 25))
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_cover_the_matrix_once_in_whole_chunks(
    shape: tuple[int, int], chunks: tuple[int, int] | None, block_bytes: int
) -> None:
    breaks = [shape[0] // 3] if shape[0] > 5 else []
    grid = plan_grid(shape, 8, chunks, breaks, block_bytes)
    seen = np.zeros(shape, int)
    for number, place in enumerate(grid):
        assert number == place.i * len(grid.columns) + place.j
        assert (place.rows, place.columns) == (grid.rows[place.i], grid.columns[place.j])
        assert min(place.shape) > 0
        seen[place.rows, place.columns] += 1
        # No file is shared by two blocks, and a chunk only at such a break.
        assert not any(place.rows.start < edge < place.rows.stop for edge in breaks)
        if chunks is not None:
            first = max(edge for edge in (0, *breaks) if edge <= place.rows.start)
            assert (place.rows.start - first) % chunks[0] == 0
            assert place.columns.start % chunks[1] == 0
    assert (seen == 1).all()
    assert len(grid) == number + 1
    least = 8 * (4 if chunks is None else min(chunks[0], shape[0]) * min(chunks[1], shape[1]))
    # Without chunks, four rows go together at least.
    most = block_bytes * (4 if chunks is None else 1)
    assert all(8 * np.prod(place.shape) <= max(most, least) for place in grid)
