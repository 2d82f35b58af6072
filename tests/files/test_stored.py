"""Matrices on disk: zarr arrays, HDF5 datasets, .npy files and lists of them give the answer of the array in memory."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, DiagnosisWarning, decompose
from lrpca.files.stored import open_path, open_paths
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.testing import planted
from tests.helpers.python import run_python
from tests.helpers.same_answer import assert_same

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")
da = pytest.importorskip("dask.array")

RANK = 3
CHUNKS = (70, 45)
PROBLEM = planted((160, 120), rank=RANK, outlier_fraction=0.1, random_state=1)
Y = PROBLEM.Y.astype(np.float32)
# Bytes of a block, so that even small matrices are cut into several.
SMALL_BLOCKS = 1 << 14


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrpca.matrices.chunked.grid.plan_grid.__defaults__", ((), SMALL_BLOCKS))


def in_zarr(folder: Path, array: Any, name: str = "Y.zarr", **options: Any) -> Any:
    options = {"chunks": CHUNKS, **options}
    stored = zarr.create_array(str(folder / name), shape=array.shape, dtype=array.dtype, **options)
    stored[:] = array
    return stored


def group_of(folder: Path, names: tuple[str, ...]) -> Any:
    group = zarr.open_group(str(folder / "group.zarr"), mode="w")
    for name in names:
        group.create_array(name, shape=Y.shape, dtype="f4", chunks=CHUNKS)[:] = Y
    return group


def in_hdf5(folder: Path, array: Any, name: str = "Y.h5", **options: Any) -> Path:
    with h5py.File(folder / name, "w") as file:
        file.create_dataset("Y", data=array, **options)
    return folder / name


def in_npy(folder: Path, array: Any, name: str = "Y.npy") -> Path:
    np.save(folder / name, array)
    return folder / name


STORES: dict[str, Callable[[Path], Any]] = {
    "zarr 2": lambda folder: in_zarr(folder, Y, zarr_format=2),
    "zarr 3": lambda folder: in_zarr(folder, Y, zarr_format=3),
    "zarr, rows": lambda folder: in_zarr(folder, Y, chunks=(1, 120)),
    "zarr, shards": lambda folder: in_zarr(folder, Y, chunks=(20, 15), shards=(80, 60)),
    "zarr by path": lambda folder: (in_zarr(folder, Y), folder / "Y.zarr")[1],
    "zarr in memory": lambda _: zarr.array(Y, chunks=CHUNKS),
    "zarr group": lambda folder: (group_of(folder, ("one",)), folder / "group.zarr")[1],
    "HDF5": lambda folder: in_hdf5(folder, Y),
    "HDF5, compressed": lambda folder: in_hdf5(folder, Y, chunks=CHUNKS, compression="gzip", shuffle=True),
    "HDF5 open": lambda folder: h5py.File(in_hdf5(folder, Y), "r")["Y"],
    "HDF5 open for writing": lambda folder: h5py.File(in_hdf5(folder, Y, chunks=CHUNKS), "r+")["Y"],
    "HDF5 in memory": lambda _: h5py.File(io.BytesIO(), "w").create_dataset("Y", data=Y),
    ".npy": lambda folder: in_npy(folder, Y),
    ".npy, Fortran": lambda folder: in_npy(folder, np.asfortranarray(Y)),
    "list of .npy": lambda folder: [in_npy(folder, Y[k : k + 50], f"{k}.npy") for k in range(0, 160, 50)],
    "list of rows": lambda folder: [in_npy(folder, Y[k : k + 1], f"{k}.npy") for k in range(160)],
    "list of Fortran .npy": lambda folder: [
        in_npy(folder, np.asfortranarray(Y[k : k + 80]), f"{k}.npy") for k in (0, 80)
    ],
    "list of several formats": lambda folder: [
        in_npy(folder, Y[:33]),
        str(in_hdf5(folder, Y[33:64], chunks=(10, 20))),
        (in_zarr(folder, Y[64:]), folder / "Y.zarr")[1],
    ],
}


@pytest.mark.filterwarnings("ignore:.*(The codec|data type|consolidated).*")
@pytest.mark.parametrize("store", STORES)
def test_every_store_gives_the_answer_of_the_array(store: str, tmp_path: Path) -> None:
    stored = STORES[store](tmp_path)
    d = decompose(stored, RANK)
    assert_same(d, decompose(Y, RANK), 2e-6)
    chunks = getattr(stored, "chunks", None)
    if chunks is not None:
        assert tuple(max(sizes) for sizes in d.sparse.chunks) == chunks
        assert d.low_rank.chunks == d.sparse.chunks == d.outliers.chunks


NUMBERS = (">f4", "f2", "f8", ">f8", "u1", "i2", "i8", "?", "c8", "c16")


def numbers(dtype: str) -> Any:
    kind = np.dtype(dtype).kind
    scaled = PROBLEM.Y / np.abs(PROBLEM.Y).max()
    if kind == "b":
        flipped = np.random.default_rng(0).random(Y.shape) < 0.05
        return flipped ^ (np.arange(160) > 10)[:, None] & (np.arange(120) > 10)
    if kind in "ui":
        return np.rint(100 + 100 * scaled).astype(dtype)
    return (scaled * (1 + 0.5j if kind == "c" else 1)).astype(dtype)


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_number_type(dtype: str, tmp_path: Path) -> None:
    array = numbers(dtype)
    rank = 1 if dtype == "?" else RANK + (np.dtype(dtype).kind in "ui")
    options: dict[str, Any] = {"max_iter": 8, "tol": 0}
    want = decompose(array, rank, **options)
    within = 1e-5 if want.L.dtype.itemsize * (1 + (want.L.dtype.kind != "c")) <= 8 else 1e-9
    for stored in (
        in_zarr(tmp_path, array, "2.zarr", zarr_format=2),
        in_zarr(tmp_path, array, "3.zarr", zarr_format=3),
        in_hdf5(tmp_path, array, chunks=CHUNKS),
        [in_npy(tmp_path, array[:60], "a.npy"), in_npy(tmp_path, array[60:], "b.npy")],
    ):
        assert_same(decompose(stored, rank, **options), want, within)


def hidden(shape: tuple[int, int], seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) < 0.1


def test_nan_is_missing(tmp_path: Path) -> None:
    holes = np.where(hidden(Y.shape), np.float32(np.nan), Y)
    want = decompose(holes, RANK)
    assert_same(decompose(in_zarr(tmp_path, holes), RANK), want, 1e-5)
    assert not np.asarray(decompose(in_hdf5(tmp_path, holes), RANK).outliers)[hidden(Y.shape)].any()


MASKS: dict[str, Callable[[Path, Any], Any]] = {
    "array": lambda _, mask: mask,
    "list": lambda _, mask: mask.tolist(),
    "dask": lambda _, mask: da.from_array(mask, chunks=(30, 50)),
    "zarr": lambda folder, mask: in_zarr(folder, mask, "mask.zarr", chunks=(33, 44)),
    "path": lambda folder, mask: in_npy(folder, mask, "mask.npy"),
    "HDF5": lambda folder, mask: in_hdf5(folder, mask, "mask.h5"),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_of_every_kind(kind: str, tmp_path: Path) -> None:
    observed = ~hidden(Y.shape)
    spoiled = np.where(observed, Y, np.float32(1e6))
    mask = MASKS[kind](tmp_path, observed)
    want = decompose(spoiled, RANK, mask=observed)
    for stored in (in_zarr(tmp_path, spoiled), in_npy(tmp_path, spoiled), spoiled):
        assert_same(decompose(stored, RANK, mask=mask), want, 1e-5)


@pytest.mark.parametrize("kind", ("array", "zarr", "dask"))
@pytest.mark.parametrize("axis", (0, 1))
def test_masks_of_rows_and_columns(axis: int, kind: str, tmp_path: Path) -> None:
    keep = np.arange(Y.shape[axis]) % 10 != 0
    observed = keep[:, None] if axis == 0 else keep[None, :]
    mask = MASKS[kind](tmp_path, observed)
    with pytest.warns(DiagnosisWarning, match="without influence"):
        want = decompose(Y, RANK, mask=observed)
    with pytest.warns(DiagnosisWarning, match="without influence"):
        got = decompose(in_zarr(tmp_path, Y), RANK, mask=mask)
    assert_same(got, want, 1e-5)


@pytest.mark.parametrize("limits", ("one", "rows", "columns"))
def test_outliers_block_by_block(limits: str, tmp_path: Path) -> None:
    d = decompose(Y, RANK)
    threshold: Any = d.outlier_threshold
    if limits != "one":
        threshold = np.linspace(0.5, 20, Y.shape[limits == "columns"]) * threshold
        threshold = threshold[:, None] if limits == "rows" else threshold[None, :]
    observed = ~hidden(Y.shape)
    matrix = accept(in_zarr(tmp_path, Y, chunks=(40, 30)), observed)
    assert isinstance(matrix, ChunkedMatrix)
    want = Y - d.low_rank
    outlying = (np.abs(want) > threshold) & observed
    lazy = [matrix.lazy_outliers(d.L, d.R, threshold, values=values).compute() for values in (False, True)]
    np.testing.assert_array_equal(lazy[0], outlying)
    np.testing.assert_allclose(lazy[1], np.where(outlying, want, 0), rtol=0, atol=1e-7)


def test_stored_matrices_travel_by_their_path(tmp_path: Path) -> None:
    paths = [in_npy(tmp_path, Y[:60]), in_hdf5(tmp_path, Y[60:])]
    for stored in (open_path(paths[0]), open_path(paths[1]), open_paths(paths), accept(paths).source):
        data = pickle.dumps(stored)
        assert len(data) < 2000
        copy = pickle.loads(data)
        assert copy.shape == stored.shape
    np.testing.assert_array_equal(copy.read(slice(50, 70), slice(0, 3))[0], Y[50:70, :3])


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    decompose(in_zarr(tmp_path, Y), RANK)
    with pytest.raises(ZeroDivisionError):
        decompose(in_zarr(tmp_path, Y, "Z.zarr"), RANK, callback=lambda state: 1 / 0)
    for thread in threading.enumerate():
        if thread.name.startswith("lrpca"):
            thread.join(timeout=10)
            assert not thread.is_alive()


_FACTORS = """
import hashlib, sys
import lrpca.matrices.chunked.grid as grid
grid.plan_grid.__defaults__ = ((), 1 << 14)
import lrpca
d = lrpca.decompose(sys.argv[1], 3)
print(hashlib.sha256(d.L.tobytes() + d.R.tobytes()).hexdigest(), d.n_reads)
"""


def test_bits_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    in_zarr(tmp_path, Y)
    found = [run_python(_FACTORS, tmp_path / "Y.zarr", NUMBA_NUM_THREADS=n) for n in ("1", "3")]
    assert found[0] == found[1] != ""


_MEMORY = """
import json, resource, sys
import numpy as np, zarr, dask
import lrpca
from lrpca.matrices.accept import accept
path, n1, n2 = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lrpca.decompose(np.eye(40, 30, dtype=np.float32) + 1, 1, max_iter=1, tol=0)
small = zarr.open(path + "-small", mode="r")
accept(small).entries(np.array([0]), np.array([0]))
import lrpca.matrices.chunked.grid as grid
grid.plan_grid.__defaults__ = ((), 1 << 22)
def anonymous():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))
before, most = anonymous(), 0
def look(reading):
    global most
    most = max(most, anonymous())
from lrpca.matrices.chunked.large import accept_large
lrpca.decompose(accept_large(path, tell=look), 2, max_iter=1, tol=0)
print(json.dumps([before, most]))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this system does not tell anonymous memory")
def test_memory_does_not_grow_with_the_matrix(tmp_path: Path) -> None:
    # 320 MB of floats, which a constant pattern compresses to nothing: the test is about memory, not the disk.
    n1, n2 = 16_000, 5_000
    pattern = np.add.outer(np.arange(1000) % 7, np.arange(n2) % 5).astype(np.float32)
    big = zarr.create_array(str(tmp_path / "Y"), shape=(n1, n2), dtype="f4", chunks=(1000, 1000))
    for start in range(0, n1, 1000):
        big[start : start + 1000] = pattern
    in_zarr(tmp_path, pattern[:100, :100], "Y-small")
    before, most = json.loads(run_python(_MEMORY, tmp_path / "Y", n1, n2, PYTHONWARNINGS="ignore"))
    assert most - before < 0.35 * n1 * n2 * 4


def spoil_zarr(folder: Path, version: int, *, cut: bool) -> Path:
    in_zarr(folder, Y, f"{version}.zarr", zarr_format=version)
    chunk = folder / f"{version}.zarr" / ("1.2" if version == 2 else "c/1/2")
    data = chunk.read_bytes()
    chunk.write_bytes(data[: len(data) // 2] if cut else b"\1\2" * 99)
    return folder / f"{version}.zarr"


def spoil_hdf5(folder: Path) -> Path:
    path = in_hdf5(folder, Y, chunks=CHUNKS, compression="gzip")
    with h5py.File(path) as file:
        place = file["Y"].id.get_chunk_info_by_coord((70, 90)).byte_offset
    with open(path, "r+b") as content:
        content.seek(place + 10)
        content.write(b"\0" * 100)
    return path


SPOILED: dict[str, Callable[[Path], Path]] = {
    "zarr 2, cut": lambda folder: spoil_zarr(folder, 2, cut=True),
    "zarr 3, cut": lambda folder: spoil_zarr(folder, 3, cut=True),
    "zarr 2, garbage": lambda folder: spoil_zarr(folder, 2, cut=False),
    "zarr 3, garbage": lambda folder: spoil_zarr(folder, 3, cut=False),
    "HDF5": spoil_hdf5,
}


@pytest.mark.parametrize("store", SPOILED)
def test_a_chunk_that_cannot_be_read_names_itself(store: str, tmp_path: Path) -> None:
    path = SPOILED[store](tmp_path)
    # Some look at a few entries may find it, or a pass over blocks of several chunks.
    for look in (lambda: decompose(path, RANK), lambda: accept(path).loaded()):  # type: ignore[attr-defined]
        with pytest.raises(OSError, match=r"^Y\[70:140, 90:120\] could not be read from .*; mend or restore") as caught:
            look()
        assert str(path) in str(caught.value)
    with pytest.raises(OSError, match=r"^Y\[70:140, 90:120\] could not be read from "):
        decompose(path, RANK, method="ircur")


GOING: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gone": (lambda path: path.unlink(missing_ok=True), r"\(FileNotFoundError"),
    "short": (lambda path: in_npy(path.parent, Y[:3], path.name), r".*found a shape of \(3, 120"),
}


@pytest.mark.parametrize("how", GOING)
def test_a_file_that_goes_away_or_shrinks_names_itself_and_its_rows(how: str, tmp_path: Path) -> None:
    paths = [in_npy(tmp_path, Y[k : k + 40], f"{k}.npy") for k in range(0, 160, 40)]
    change, words = GOING[how]
    with pytest.raises(OSError, match=r"^Y\[80:112, 0:120\] could not be read from .*80\.npy " + words):
        decompose(paths, RANK, callback=lambda state: change(paths[2]) and None)


def test_a_store_that_another_process_does_not_see_is_not_read_as_zeros(tmp_path: Path) -> None:
    in_zarr(tmp_path, Y)
    sent = pickle.dumps(accept(tmp_path / "Y.zarr").source.stored)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(pickle.loads(sent)[0:9, 0:9], Y[:9, :9])
    (tmp_path / "Y.zarr").rename(tmp_path / "elsewhere.zarr")
    with pytest.raises(OSError, match=r"^Y\[0:9, 0:9\] could not be read from .*Y\.zarr"):
        pickle.loads(sent)[0:9, 0:9]


@pytest.mark.parametrize(
    "opened", (lambda path: str(path), lambda path: zarr.open_array(str(path))), ids=("path", "array")
)
def test_stores_that_are_gone_are_not_zeros(tmp_path: Path, opened: Callable[[Path], Any]) -> None:
    in_zarr(tmp_path, Y)
    given = opened(tmp_path / "Y.zarr")
    d = decompose(given, RANK)
    (tmp_path / "Y.zarr").rename(tmp_path / "elsewhere.zarr")
    with pytest.raises(OSError, match=r"^Y\[\d+:\d+, \d+:\d+\] could not be read from .*Y\.zarr \(.*the store is gone"):
        np.asarray(d.sparse)
    if not isinstance(given, str):
        with pytest.raises(OSError, match="the store is gone"):
            decompose(given, RANK)


def test_a_truncated_hdf5_file(tmp_path: Path) -> None:
    path = in_hdf5(tmp_path, Y)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(ValueError, match=r"path=.*Y\.h5' is not a readable HDF5 file .*truncated"):
        decompose(path, RANK)


def test_inf_is_named_by_its_place_in_the_matrix(tmp_path: Path) -> None:
    spoiled = Y.copy()
    spoiled[133, 101] = np.inf
    for method in ("lrpca", "ircur"):
        with pytest.raises(ValueError, match=r"^Y\[133, 101\]=inf is not finite; mark missing"):
            decompose(in_zarr(tmp_path, spoiled, f"{method}.zarr"), RANK, method=method)


def folder_of(path: Path) -> Path:
    path.mkdir()
    return path


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def closed_dataset(folder: Path) -> Any:
    with h5py.File(in_hdf5(folder, Y), "r") as file:
        return file["Y"]


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no such path": (lambda f: f / "no.zarr", FileNotFoundError, r"path='.*no\.zarr' does not exist; check"),
    "no such name": (lambda f: str(f / "no.npy"), FileNotFoundError, r"no\.npy' does not exist; check"),
    "a folder": (lambda f: folder_of(f / "empty"), ValueError, "empty' is a folder; name a file in it"),
    "text": (lambda f: written(f / "a.txt", "hello world\nx"), ValueError, r"a\.txt' has 1 cells in line 2"),
    "garbage .npy": (lambda f: written(f / "a.npy", "garbage"), ValueError, "not a readable .npy file"),
    "garbage .h5": (lambda f: written(f / "a.h5", "garbage"), ValueError, "not a readable HDF5 file"),
    "broken zarr": (lambda f: written(f / "a.zarr/zarr.json", "{x").parent, ValueError, "not a readable zarr store"),
    "zarr group": (lambda f: group_of(f, ("a", "b")), TypeError, r"Y=zarr group with a, b; pass .* group\['a'\]"),
    "empty zarr group": (lambda f: group_of(f, ()), TypeError, "Y=zarr group with nothing in it"),
    "zarr groups by path": (
        lambda f: (group_of(f, ("a", "b")), f / "group.zarr")[1],
        ValueError,
        "holds several matrices .a 160x120, b 160x120.; choose one with --key",
    ),
    "zarr, 3-D": (lambda f: in_zarr(f, Y[None], chunks=(1, 9, 9)), ValueError, r"Y\.ndim=3 of zarr array .* not 2"),
    "zarr, empty": (lambda f: in_zarr(f, Y[:0], chunks=(1, 9)), ValueError, r"Y\.shape=\(0, 120\) of zarr array"),
    "HDF5 file": (lambda f: h5py.File(in_hdf5(f, Y)), TypeError, r"Y=HDF5 group with Y; pass .* file\['Y'\]"),
    "closed dataset": (closed_dataset, ValueError, "Closed HDF5 dataset> belongs to a file that is closed"),
    "HDF5, 1-D": (lambda f: in_hdf5(f, Y[0]), ValueError, r"Y\.h5' holds no 2-D array of numbers"),
    "HDF5, empty": (lambda f: in_hdf5(f, h5py.Empty("f4")), ValueError, "holds no 2-D array of numbers"),
    "HDF5, text": (lambda f: in_hdf5(f, np.array([[b"a"]])), ValueError, "holds no 2-D array of numbers"),
    "HDF5 dataset, 1-D": (lambda f: h5py.File(in_hdf5(f, Y[0]))["Y"], ValueError, r"Y\.ndim=1 of .*:/Y is not 2"),
    "no files": (lambda f: [], ValueError, r"Y\.shape=\(0,\) has no entries"),
    "a file of a list missing": (
        lambda f: [in_npy(f, Y), f / "no.npy", in_npy(f, Y)],
        FileNotFoundError,
        r"Y\[1\]='.*no\.npy' does not exist \(3 files were named\); check the list",
    ),
    "mixed widths": (
        lambda f: [in_npy(f, Y, "a.npy"), in_npy(f, Y[:, 1:], "b.npy")],
        ValueError,
        r"Y\[1\]='.*b\.npy' has 119 columns, not the 120 of '.*a\.npy'; all files",
    ),
    "mixed numbers": (
        lambda f: [in_npy(f, Y, "a.npy"), in_npy(f, Y.astype("f8"), "b.npy")],
        ValueError,
        r"Y\[1\]='.*b\.npy' is of dtype float64, not float32 like '.*a\.npy'; convert one",
    ),
    "empty file": (lambda f: [in_npy(f, Y, "a.npy"), in_npy(f, Y[:0])], ValueError, r"\(0, 120\) of .* no entries"),
    "a list with a table": (
        lambda f: [in_npy(f, Y), written(f / "b.csv", "1,2\n3,4")],
        ValueError,
        r"Y\[1\]='.*b\.csv' cannot be read in parts; convert the files",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_matrix_is_refused(name: str, tmp_path: Path) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        decompose(make(tmp_path), RANK)


def test_masks_that_do_not_fit(tmp_path: Path) -> None:
    stored = in_zarr(tmp_path, Y)
    with pytest.raises(ValueError, match=r"mask\.shape=\(3, 4\) does not fit Y\.shape=\(160, 120\); use"):
        decompose(stored, RANK, mask=in_zarr(tmp_path, np.ones((3, 4), bool), "m.zarr", chunks=(2, 2)))
    with pytest.raises(ValueError, match=r"mask\.dtype=float32 is not bool; pass True"):
        decompose(stored, RANK, mask=da.from_array(Y))
    with pytest.raises(ValueError, match=r"^mask\.ndim=1 of .*:/Y is not 2"):
        decompose(stored, RANK, mask=h5py.File(in_hdf5(tmp_path, Y[0] > 0, "m.h5"))["Y"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        decompose(stored, RANK, mask=tmp_path / "mask.npy")


@pytest.mark.parametrize("rank", ("auto", 0.999))
def test_ranks_that_are_found(rank: Any, tmp_path: Path) -> None:
    want, got = decompose(Y, rank), decompose(in_zarr(tmp_path, Y), rank)
    assert got.rank == want.rank
    assert_same(got, want, 1e-5)


def test_new_rows_from_disk(tmp_path: Path) -> None:
    d = decompose(Y, RANK)
    want = d.transform(Y[:77])
    for new in (in_zarr(tmp_path, Y[:77]), in_npy(tmp_path, Y[:77]), in_hdf5(tmp_path, Y[:77])):
        np.testing.assert_allclose(d.transform(new), want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_saved_and_loaded_with_data_on_disk(tmp_path: Path) -> None:
    stored = in_zarr(tmp_path, Y)
    d = decompose(stored, RANK)
    d.save(tmp_path / "d.npz")
    for data in (stored, tmp_path / "Y.zarr", in_npy(tmp_path, Y), [in_npy(tmp_path, Y)]):
        again = Decomposition.load(tmp_path / "d.npz", data)
        np.testing.assert_array_equal(np.asarray(again.sparse), np.asarray(d.sparse))
    with pytest.raises(ValueError, match=r"Y\.shape=\(5, 120\) is not \(160, 120\)"):
        Decomposition.load(tmp_path / "d.npz", in_zarr(tmp_path, Y[:5], "short.zarr"))
    copy = pickle.loads(pickle.dumps(d))
    np.testing.assert_array_equal(np.asarray(copy.outliers), np.asarray(d.outliers))
