"""Dask arrays, however they are cut: the answer of the array in memory, and lazy results cut like the input."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, decompose
from lrpca.core.influence import levels
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.grid import plan_grid
from lrpca.matrices.chunked.large import accept_large
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.chunked.progress import Reading
from lrpca.matrices.dense import DenseMatrix
from lrpca.testing import planted
from tests.helpers.python import run_python
from tests.helpers.same_answer import assert_same

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

RANK = 3
PROBLEM = planted((160, 120), rank=RANK, outlier_fraction=0.1, random_state=1)
Y = PROBLEM.Y.astype(np.float32)


def cut(chunks: Any, array: Any = Y) -> Any:
    return da.from_array(array, chunks=chunks)


ARRAYS: dict[str, Callable[[], Any]] = {
    "one chunk": lambda: cut(Y.shape),
    "rows": lambda: cut((50, 120)),
    "columns": lambda: cut((160, 33)),
    "both": lambda: cut((70, 45)),
    "uneven": lambda: cut(((3, 100, 57), (1, 60, 59))),
    "empty chunks": lambda: cut(((0, 100, 0, 60), (60, 0, 60))),
    "size-1 chunks": lambda: cut((1, 120)),
    "Fortran blocks": lambda: cut((70, 45)).map_blocks(np.asfortranarray),
    "transposed": lambda: cut((70, 45), Y.T.copy()).T,
    "a slice": lambda: cut((70, 45), np.pad(Y, ((3, 5), (2, 7))))[3:-5, 2:-7],
    "every other row": lambda: cut((70, 45), np.repeat(Y, 2, axis=0))[::2],
    "reversed": lambda: cut((70, 45), Y[::-1, ::-1].copy())[::-1, ::-1],
    "rechunked": lambda: cut((33, 65)).rechunk((50, 50)),
    "computed": lambda: (cut((50, 120)) + cut((160, 33))) / np.float32(2),
    "stacked": lambda: da.concatenate([cut((30, 60), Y[:70]), cut((45, 50), Y[70:])]),
    "big-endian": lambda: cut((70, 45), Y.astype(">f4")),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_every_cut_gives_the_answer_of_the_array(name: str) -> None:
    array = ARRAYS[name]()
    d = decompose(array, RANK)
    assert_same(d, decompose(Y, RANK))
    for lazy in (d.sparse, d.outliers, d.low_rank):
        assert isinstance(lazy, da.Array)
        assert lazy.chunks == array.chunks
    assert d.outliers.dtype == bool


@pytest.mark.parametrize("dtype", ("f8", "f2", "u1", "i2", "i8", "c8", "c16"))
def test_every_number_type(dtype: str) -> None:
    kind = np.dtype(dtype).kind
    scaled = PROBLEM.Y / np.abs(PROBLEM.Y).max() * (1 + 0.5j if kind == "c" else 1)
    array = np.rint(100 + 100 * scaled).astype(dtype) if kind in "ui" else scaled.astype(dtype)
    want = decompose(array, RANK + (kind in "ui"), max_iter=3, tol=0)
    got = decompose(cut((70, 45), array), RANK + (kind in "ui"), max_iter=3, tol=0)
    within = 1e-9 if want.L.dtype in (np.float64, np.complex128) else 1e-5
    for ours, theirs in ((got.L, want.L), (got.R, want.R), (got.low_rank, want.low_rank)):
        assert ours.dtype == theirs.dtype
        assert np.linalg.norm(np.asarray(ours) - theirs) <= within * np.linalg.norm(theirs)
    assert got.sparse.dtype == want.sparse.dtype


def test_large_chunks_of_any_shape_give_one_answer() -> None:
    n = 2000
    problem = planted((n, n), rank=2, outlier_fraction=0.05, random_state=2)
    array = problem.Y.astype(np.float32)
    found = [decompose(cut(chunks, array), 2, tol=1e-5) for chunks in ((1000, n), (n, 500), (700, 900), (n, n))]
    want = decompose(array, 2, tol=1e-5)
    for d in found:
        for ours, theirs in ((d.L, want.L), (d.R, want.R)):
            assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
        part = (slice(900, 1100), slice(0, 50))
        np.testing.assert_array_equal(d.outliers[part].compute(), want.outliers[part])


GRID_SHAPES = [(1, 1), (7, 1), (1, 9), (100, 50), (1000, 3), (3, 1000)]
GRID_CHUNKS = [None, (1, 1), (1, 50), (30, 25), (10_000, 10_000), (64, 7)]


@pytest.mark.parametrize("block_bytes", (1, 100, 4096, 1 << 25))
@pytest.mark.parametrize("chunks", GRID_CHUNKS)
@pytest.mark.parametrize("shape", GRID_SHAPES)
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


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("energy", (False, True))
@pytest.mark.parametrize("grams", (False, True))
def test_a_pass_sums_to_the_pass_over_the_whole(grams: bool, energy: bool, masked: bool) -> None:
    rng = np.random.default_rng(0)
    L, R, A, B = (rng.standard_normal((n, k)) for n, k in ((160, 2), (120, 2), (120, 3), (160, 4)))
    mask = rng.random(Y.shape) < 0.8 if masked else None
    array = np.where(rng.random(Y.shape) < 0.1, np.nan, PROBLEM.Y)
    level = levels("soft", 0.5)
    for first in (A, R):
        want = DenseMatrix(array, mask).run_pass(L, R, level, A=first, B=B, energy=energy, grams=grams)
        matrix = accept(cut(((1, 99, 60), (45, 75)), array), mask)
        got = matrix.run_pass(L, R, level, A=first, B=B, energy=energy, grams=grams)
        assert matrix.reads == 1
        for name in ("CA", "CtB", "norm_C", "norm_D", "row_grams", "column_grams"):
            ours, theirs = getattr(got, name), getattr(want, name)
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(got.kept_by_row, want.kept_by_row)
        np.testing.assert_array_equal(got.kept_by_column, want.kept_by_column)


def test_parts_of_the_matrix() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random(Y.shape) < 0.8
    matrix, whole = accept(cut((70, 45)), cut((50, 50), mask)), DenseMatrix(Y, mask)
    rows, columns = rng.integers(160, size=500), rng.integers(120, size=500)
    for ours, theirs in zip(matrix.entries(rows, columns), whole.entries(rows, columns), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    some, few = rng.permutation(160)[:31], rng.permutation(120)[:17]
    for ours, theirs in (
        (matrix.take_rows(some), whole.take_rows(some)),
        (matrix.take_columns(few), whole.take_columns(few)),
        (matrix.submatrix(some, few), whole.submatrix(some, few)),
        (matrix.loaded(), whole),  # type: ignore[attr-defined]
    ):
        np.testing.assert_array_equal(ours.array, theirs.array)
        np.testing.assert_array_equal(ours.mask, theirs.mask)
    np.testing.assert_array_equal(matrix.mask, mask)
    found = np.concatenate([band for _, band, _ in matrix.blocks(7)])
    np.testing.assert_array_equal(found, Y)


def test_graphs_of_the_input_are_not_computed_more_often_than_read(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def noted(block: Any) -> Any:
        with open(log, "a") as file:
            file.write("x")
        return block

    array = cut((80, 120)).map_blocks(noted, dtype=Y.dtype, meta=np.empty((0, 0), Y.dtype))
    matrix = accept(array)
    L, R = np.zeros((160, 1)), np.ones((120, 1))
    matrix.run_pass(L, R, levels("soft", 1.0), A=R, B=L)
    assert len(log.read_text()) == 2


HIDDEN = np.random.default_rng(0).random(Y.shape) < 0.1
SPOILED = np.where(HIDDEN, np.float32(1e6), Y)
MASKED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "NaN": lambda: (cut((70, 45), np.where(HIDDEN, np.float32(np.nan), Y)), None),
    "array": lambda: (cut((70, 45), SPOILED), ~HIDDEN),
    "dask": lambda: (cut((70, 45), SPOILED), cut((33, 50), ~HIDDEN)),
    "masked arrays": lambda: (da.ma.masked_array(cut((70, 45), SPOILED), mask=cut((70, 45), HIDDEN)), None),
    "masked arrays and a mask": lambda: (
        da.ma.masked_array(cut((70, 45), SPOILED), mask=cut((70, 45), HIDDEN & (np.arange(120) < 50))),
        ~HIDDEN | (np.arange(120) < 50),
    ),
}


@pytest.mark.parametrize("kind", MASKED)
def test_missing_entries(kind: str) -> None:
    array, mask = MASKED[kind]()
    d = decompose(array, RANK, mask=mask)
    assert_same(d, decompose(SPOILED, RANK, mask=~HIDDEN))
    assert not d.outliers.compute()[HIDDEN].any()


@pytest.mark.parametrize("rank", (None, 0.999))
def test_ranks_that_are_found(rank: Any) -> None:
    want, got = decompose(Y, rank), decompose(cut((70, 45)), rank)
    assert got.rank == want.rank
    assert_same(got, want)


def test_weights_starts_tolerances_and_callbacks() -> None:
    rng = np.random.default_rng(0)
    weight, start = rng.uniform(0.5, 2, 160), (PROBLEM.X[:, :RANK] + 0.1, PROBLEM.X[:RANK].T + 0.1)
    seen: list[int] = []
    options: dict[str, Any]
    for options in (
        {"row_weight": weight},
        {"start": start},
        {"tol": 1e-3},
        {"max_iter": 2, "tol": 0},
        {"callback": lambda state: seen.append(state.iteration) or state.iteration == 2},
    ):
        got, want = decompose(cut((70, 45)), RANK, **options), decompose(Y, RANK, **options)
        assert (got.n_iter, got.reason) == (want.n_iter, want.reason)
        for ours, theirs in ((got.L, want.L), (got.R, want.R)):
            assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
    assert seen == [1, 2, 1, 2]


@pytest.mark.parametrize("method", ("ircur", "sampled"))
def test_methods_that_sample(method: str) -> None:
    want, got = (decompose(data, RANK, method=method) for data in (Y, cut((70, 45))))
    for ours, theirs in ((got.L, want.L), (got.R, want.R)):
        assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs)


def test_new_rows_saving_and_loading(tmp_path: Path) -> None:
    d = decompose(cut((70, 45)), RANK)
    want = d.transform(Y[:90])
    np.testing.assert_allclose(d.transform(cut((40, 50), Y[:90])), want, rtol=0, atol=1e-6 * np.abs(want).max())
    d.save(tmp_path / "d.npz")
    again = Decomposition.load(tmp_path / "d.npz", cut((70, 45)))
    assert again.sparse.chunks == cut((70, 45)).chunks
    np.testing.assert_array_equal(again.sparse.compute(), d.sparse.compute())
    copy = pickle.loads(pickle.dumps(d))
    np.testing.assert_array_equal(copy.outliers.compute(), d.outliers.compute())
    with pytest.raises(ValueError, match=r"Y\.shape=\(40, 7\) has 7 columns, not 120"):
        d.transform(cut((40, 7), Y[:40, :7]))


def test_progress_is_told_block_by_block() -> None:
    told: list[Reading] = []
    matrix = accept_large(cut((70, 45)), tell=told.append)
    assert isinstance(matrix, ChunkedMatrix)
    d = decompose(matrix, RANK)
    blocks = len(matrix.source.grid)
    passes = [reading for reading in told if reading.blocks == blocks]
    assert [reading.done for reading in passes[-blocks:]] == list(range(1, blocks + 1))
    assert told[-1].bytes >= int(d.n_reads) * Y.nbytes


_FACTORS = """
import hashlib
import dask.array as da, numpy as np
import lrpca
problem = lrpca.testing.planted((160, 120), rank=3, outlier_fraction=0.1, random_state=1)
d = lrpca.decompose(da.from_array(problem.Y.astype(np.float32), chunks=(70, 45)), 3)
print(hashlib.sha256(d.L.tobytes() + d.R.tobytes()).hexdigest())
"""


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    found = [run_python(_FACTORS, NUMBA_NUM_THREADS=n, DASK_NUM_WORKERS=n) for n in ("1", "3")]
    assert found[0] == found[1] != ""


def blocks_that(function: Callable[[Any], Any], where: tuple[int, int] = (2, 1)) -> Any:
    """Return Y as a dask array of which one block is what a function makes of it."""

    def one(block: Any, block_info: Any = None) -> Any:
        return function(block) if block_info and block_info[0]["chunk-location"] == where else block

    return cut((70, 45)).map_blocks(one, dtype=Y.dtype, meta=np.empty((0, 0), Y.dtype))


def fail(block: Any) -> Any:
    raise RuntimeError("disk on fire")


def test_a_block_that_cannot_be_computed_names_itself() -> None:
    message = r"^Y\[140:160, 45:90\] could not be computed from dask array .*RuntimeError: disk on fire.*; mend"
    array = blocks_that(fail)
    for read in (decompose, lambda Y, rank: decompose(Y, rank, method="ircur"), lambda Y, _: accept(Y).loaded()):
        with pytest.raises(OSError, match=message):
            read(array, RANK)


@pytest.mark.parametrize("name", ("smaller", "larger", "object", "one number"))
def test_blocks_that_are_not_what_dask_was_told(name: str) -> None:
    spoil: dict[str, Callable[[Any], Any]] = {
        "smaller": lambda block: block[:-1],
        "larger": lambda block: np.concatenate([block, block]),
        "object": lambda block: block.astype(object),
        "one number": lambda block: np.float32(0),
    }
    with pytest.raises(ValueError, match=r"^Y\[140:160, 45:90\] came as .* of shape .*; make the blocks"):
        decompose(blocks_that(spoil[name]), RANK)


def test_inf_is_named_by_its_place_in_the_matrix() -> None:
    spoiled = Y.copy()
    spoiled[133, 101] = -np.inf
    for method in ("lrpca", "ircur"):
        with pytest.raises(ValueError, match=r"^Y\[133, 101\]=-inf is not finite; mark missing"):
            decompose(cut((70, 45), spoiled), RANK, method=method)


def test_nothing_observed() -> None:
    with pytest.raises(ValueError, match="Y has no observed entry"):
        decompose(cut((70, 45), np.full_like(Y, np.nan)), RANK)
    with pytest.raises(ValueError, match="Y has no observed entry"):
        decompose(cut((70, 45)), RANK, mask=da.zeros((1, 120), dtype=bool))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "unknown sizes": (
        lambda: cut((70, 45))[cut(70, Y[:, 0]) > 0],
        ValueError,
        r"Y\.chunks=.*nan.* has unknown sizes \(nan\); call Y\.compute_chunk_sizes\(\) first",
    ),
    "1-D": (lambda: cut(70, Y[:, 0]), ValueError, r"Y\.ndim=1 is not 2; reshape"),
    "3-D": (lambda: cut((1, 70, 45), Y[None]), ValueError, r"Y\.ndim=3 is not 2; reshape"),
    "nothing": (lambda: cut((70, 45))[:0], ValueError, r"Y\.shape=\(0, 120\) has no entries"),
    "objects": (lambda: cut((70, 45)).astype(object), ValueError, r"Y\.dtype=object is not numeric; convert"),
    "dates": (lambda: cut((70, 45)).astype("M8[s]"), ValueError, r"Y\.dtype=datetime64.* is not numeric"),
    "delayed": (lambda: dask.delayed(Y), TypeError, "Y=dask.delayed.* is not an array; pass a dask array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_matrix_is_refused(name: str) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        decompose(make(), RANK)


def test_frames_are_refused_with_the_remedy() -> None:
    pd = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    frame = frames.from_pandas(pd.DataFrame(Y), npartitions=3)
    with pytest.raises(TypeError, match=r"Y=dask\.dataframe.*DataFrame is not an array; .*to_dask_array"):
        decompose(frame, RANK)
    assert_same(decompose(frame.to_dask_array(lengths=True), RANK), decompose(Y, RANK))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((3, 4), bool), r"mask\.shape=\(3, 4\) does not fit Y\.shape=\(160, 120\); use"),
        (np.ones(120, bool), r"mask\.shape=\(120,\) does not fit"),
        (np.ones(Y.shape), r"mask\.dtype=float64 is not bool; pass True"),
    ],
)
def test_masks_that_do_not_fit(mask: Any, message: str) -> None:
    for given in (mask, da.from_array(mask)):
        with pytest.raises(ValueError, match=message):
            decompose(cut((70, 45)), RANK, mask=given)


_ENDLESS = """
import time
import dask.array as da, numpy as np
import lrpca

def slow(block):
    time.sleep(0.05)
    return block

Y = da.from_array(np.random.default_rng(0).standard_normal((160, 120)), chunks=(40, 60)).map_blocks(slow, dtype=float)
print("ready", flush=True)
lrpca.decompose(Y, 3, tol=0, max_iter=10**6, callback=lambda state: print("step", flush=True))
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_an_interrupted_run_ends() -> None:
    run = subprocess.Popen([sys.executable, "-c", _ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        while "step" not in run.stdout.readline():
            assert run.poll() is None
        time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        errors = run.communicate(timeout=30)[1]
    finally:
        run.kill()
        run.wait()
    assert "KeyboardInterrupt" in errors
    assert run.returncode != 0


def test_no_thread_of_ours_is_left_behind() -> None:
    decompose(cut(Y.shape), RANK)
    for thread in threading.enumerate():
        if thread.name.startswith("lrpca"):
            thread.join(timeout=10)
            assert not thread.is_alive()


# In a process of its own: the client stays the current one of dask's, which everything else would wait for.
LOST_CLIENT = """
import dask.array as da, distributed, numpy as np
import lrpca

problem = lrpca.testing.planted((60, 50), rank=2, outlier_fraction=0.1, random_state=0)
try:
    distributed.Client("nonsense://nowhere", timeout=1)
except Exception as error:
    kept = error  # and with it the client
    print(lrpca.decompose(da.from_array(problem.Y, chunks=20), 2).reason)
"""


def test_a_client_that_never_found_its_scheduler_is_left_alone() -> None:
    pytest.importorskip("distributed")
    assert run_python(LOST_CLIENT) == "tol"
