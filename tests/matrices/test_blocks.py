"""How matrices are cut into blocks, and how the sums over blocks are put together."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.matrices.chunked.grid import Grid, Place, merged, plan_grid
from lrpca.matrices.chunked.pass_sums import PassSums, total
from lrpca.matrices.chunked.progress import Meter, Reading
from lrpca.matrices.dense import DenseMatrix

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


def test_places_say_where_they_are() -> None:
    place = Place(0, 1, slice(0, 300), slice(400, 800))
    assert str(place) == "Y[0:300, 400:800]"
    assert place.shape == (300, 400)
    assert Grid.of_chunks((300,), (400, 400)).chunks == ((300,), (400, 400))


def test_positions_are_found_in_their_blocks() -> None:
    rng = np.random.default_rng(0)
    grid = Grid.of_chunks((5, 1, 20), (3, 9))
    rows, columns = rng.integers(26, size=200), rng.integers(12, size=200)
    found = list(grid.touched(rows, columns))
    assert sorted(itertools.chain.from_iterable(those for _, those in found)) == list(range(200))
    assert len({(place.i, place.j) for place, _ in found}) == len(found)
    for place, those in found:
        assert ((rows[those] >= place.rows.start) & (rows[those] < place.rows.stop)).all()
        assert ((columns[those] >= place.columns.start) & (columns[those] < place.columns.stop)).all()
    assert not list(grid.touched(np.array([], int), np.array([], int)))


@pytest.mark.parametrize("sizes", [(1,) * 50, (3, 3, 3, 3, 1), (10,), (1, 100, 1), (100, 1, 1)])
@pytest.mark.parametrize("least", (1, 4, 1000))
def test_small_chunks_are_put_together(sizes: tuple[int, ...], least: int) -> None:
    found = merged(sizes, least)
    assert sum(found) == sum(sizes)
    assert len(found) == 1 or min(found) >= least
    assert set(itertools.accumulate(found)) <= set(itertools.accumulate(sizes))


# ------------------------------------------------------------------------------------------ sums over blocks


@pytest.mark.parametrize("complex_data", (False, True))
def test_sums_over_blocks_are_the_pass_over_the_whole(complex_data: bool) -> None:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if complex_data else 0)

    Y, L, R = draw(40, 30), draw(40, 2), draw(30, 2)
    level = levels("soft", 1.0)
    want = DenseMatrix(Y).run_pass(L, R, level, A=R, B=L, energy=True, grams=True)
    grid = Grid.of_chunks((1, 25, 14), (13, 17))

    def part(place: Place) -> PassSums:
        left, right = L[place.rows], R[place.columns]
        block = DenseMatrix(Y[place.rows, place.columns])
        sums = PassSums.of(place, block.run_pass(left, right, level, A=right, B=left, energy=True, grams=True))
        return pickle.loads(pickle.dumps(sums))  # type: ignore[no-any-return]

    parts = [part(place) for place in grid]
    tree = total([total(parts[:2]), total(parts[2:5]), total(parts[5:])])
    for got in (total(parts).finish(grid), tree.finish(grid)):
        # How many are kept in all, and more, is told by devices only; elsewhere it follows from the counts.
        assert got.counted is want.counted is None and got.report is want.report is None
        for name in set(Pass.__dataclass_fields__) - {"counted", "report"}:
            np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12, atol=1e-12)
    # Adding up leaves the parts alone: a retry may add them once more.
    np.testing.assert_array_equal(total(parts).finish(grid).CA, total(parts).finish(grid).CA)


# ------------------------------------------------------------------------------------------ progress


def test_progress() -> None:
    told: list[Reading] = []
    meter = Meter(told.append)
    assert meter.now == Reading(0, 0, 0, 0, 0.0)
    assert meter.now.bytes_per_second == 0
    meter.begin(2)
    meter.advance(100)
    meter.advance(50)
    meter.begin(3)
    meter.advance(200, count=3)
    assert [(now.round, now.done, now.blocks, now.bytes) for now in told] == [
        (1, 1, 2, 100),
        (1, 2, 2, 150),
        (2, 3, 3, 350),
    ]
    assert told[-1].seconds >= told[0].seconds >= 0
    # Who is told stays here.
    pickle.loads(pickle.dumps(meter)).advance(1)
    assert len(told) == 3
