"""S and the low-rank matrix in zarr stores: what they hold, and that nothing is half-written or lost."""

import asyncio
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import lrpca.decomposition.writing
from lrpca.decomposition.result import Decomposition
from lrpca.decomposition.writing import write_result
from lrpca.decomposition.zarr import read_sparse

zarr = pytest.importorskip("zarr", reason="needs the extra dask")

SHAPE, RANK = (600, 310), 2
# So that the little matrix has many blocks.
BLOCKS = 1 << 17


def planted() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SHAPE[0], RANK)) @ rng.standard_normal((RANK, SHAPE[1]))
    Y = X + 9 * rng.choice([-1, 1], SHAPE) * (rng.random(SHAPE) < 0.06)
    Y[rng.random(SHAPE) < 0.02] = np.nan
    return Y


Y = planted()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a decomposition of Y without its data."""
    path = tmp_path_factory.mktemp("saved") / "d.npz"
    lrpca.decompose(Y, RANK).save(path)
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrpca.matrices.chunked.grid.plan_grid.__defaults__", ((), BLOCKS))
    monkeypatch.setattr("lrpca.decomposition.zarr_stores._ENTRIES", 1000)


def stored(folder: Path, values: np.ndarray = Y, chunks: tuple[int, int] = (70, 100)) -> Any:
    array = zarr.create_array(folder / "Y.zarr", shape=values.shape, chunks=chunks, dtype=values.dtype)
    array[:] = values
    return array


def containers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield Y in every kind of container that S is made of in another way."""
    import dask.array as da

    folder.mkdir(exist_ok=True)
    np.save(folder / "a.npy", Y[:250])
    np.save(folder / "b.npy", Y[250:])
    yield "memory", Y
    yield "zarr", stored(folder)
    yield "list", [folder / "a.npy", folder / "b.npy"]
    yield "dask", da.from_array(Y, chunks=((90, 500, 10), (300, 10)))


def test_every_container_gives_the_same_store(saved: Path, tmp_path: Path) -> None:
    S = Decomposition.load(saved, Y).sparse
    for name, container in containers(tmp_path):
        d = Decomposition.load(saved, container)
        seen: list[Any] = []
        d.write_sparse(tmp_path / f"{name}.coordinates", tell=seen.append)
        d.write_sparse(tmp_path / f"{name}.dense", layout="dense")
        write_result(d, tmp_path / f"{name}.zarr", low_rank=True)
        found = read_sparse(tmp_path / f"{name}.coordinates")
        assert found.dtype == d.L.dtype and found.row.dtype == np.int32 and found.nnz == np.count_nonzero(S), name
        full, X = (zarr.open_array(tmp_path / f"{name}.{kind}", mode="r") for kind in ("dense", "zarr/low_rank"))
        for values in (found.toarray(), full[:]):
            np.testing.assert_array_equal(values != 0, S != 0, err_msg=name)
            np.testing.assert_allclose(values, S, rtol=1e-12, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(X[:], d.L @ d.R.T, rtol=1e-12, atol=1e-12)
        blocks = seen[-1].blocks
        assert blocks > 3 and [reading.done for reading in seen] == list(range(1, blocks + 1)), name
        assert seen[-1].bytes == Y.nbytes
        for node in (full, zarr.open_group(tmp_path / f"{name}.coordinates", mode="r")):
            facts = dict(node.attrs)
            assert facts["entries"] == found.nnz
            assert facts["outlier_threshold"] == d.outlier_threshold and facts["shape"] == list(SHAPE)


def test_chunks_are_those_of_the_input(saved: Path, tmp_path: Path) -> None:
    d = Decomposition.load(saved, stored(tmp_path))
    d.write_sparse(tmp_path / "S", layout="dense")
    assert zarr.open_array(tmp_path / "S", mode="r").chunks == (70, 100)
    # A matrix without chunks: each block is made of whole ones, so that no two writers share one.
    Decomposition.load(saved, Y).write_sparse(tmp_path / "T", layout="dense")
    assert zarr.open_array(tmp_path / "T", mode="r").chunks == (52, 310)


def test_masks_sparse_input_thresholds_by_column_and_nothing_found(saved: Path, tmp_path: Path) -> None:
    mask = np.random.default_rng(1).random(SHAPE) < 0.5
    with pytest.warns(UserWarning, match="is not what path="):
        masked = Decomposition.load(saved, stored(tmp_path), mask)
    masked.write_sparse(tmp_path / "masked")
    expected = np.where(mask, Decomposition.load(saved, Y).sparse, 0)
    np.testing.assert_allclose(read_sparse(tmp_path / "masked").toarray(), expected, rtol=1e-12, atol=1e-12)
    with pytest.warns(UserWarning, match="is not what path="):
        rows = Decomposition.load(saved, scipy.sparse.csr_array(np.nan_to_num(Y)))
    rows.write_sparse(tmp_path / "rows")
    np.testing.assert_allclose(read_sparse(tmp_path / "rows").toarray(), rows.sparse, rtol=1e-12, atol=1e-12)
    varying = Decomposition.load(saved, Y)
    varying.outlier_threshold = np.where(np.arange(SHAPE[1]) % 2, 1e9, varying.outlier_threshold)[None]
    varying.write_sparse(tmp_path / "varying")
    found = read_sparse(tmp_path / "varying")
    assert found.nnz and not (found.col % 2).any()
    np.testing.assert_allclose(found.toarray(), varying.sparse, rtol=1e-12, atol=1e-12)
    varying.outlier_threshold = 1e9
    varying.write_sparse(tmp_path / "nothing")
    assert read_sparse(tmp_path / "nothing").nnz == 0 and read_sparse(tmp_path / "nothing").shape == SHAPE


def test_what_is_in_the_way_is_left_alone(saved: Path, tmp_path: Path) -> None:
    Z = stored(tmp_path)
    d = Decomposition.load(saved, Z)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "file", "Y.zarr"):
        for overwrite in (False, True):
            with pytest.raises((OSError, ValueError), match="choose another name"):
                d.write_sparse(tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "notes" / "mine.txt").exists() and (tmp_path / "file").exists()
    np.testing.assert_array_equal(Z[:], Y)
    with pytest.raises(FileNotFoundError, match="make it first"):
        d.write_sparse(tmp_path / "none" / "S")
    with pytest.raises(ValueError, match="layout='csr' is unknown; use one of coordinates, dense"):
        d.write_sparse(tmp_path / "S", layout="csr")
    d.write_sparse(tmp_path / "S")
    with pytest.raises(FileExistsError, match="exists; choose another name or overwrite it"):
        d.write_sparse(tmp_path / "S")
    d.write_sparse(tmp_path / "S", layout="dense", overwrite=True)
    S = zarr.open_array(tmp_path / "S", mode="r")
    # S of S: the input is one of ours, and is not to be replaced by what is made of it.
    for array in (S, zarr.open_group(tmp_path, mode="a")["S"]):
        with pytest.warns(UserWarning, match="is not what path="):
            other = Decomposition.load(saved, array)
        with pytest.raises(ValueError, match="would replace the input"):
            other.write_sparse(tmp_path / "S", overwrite=True)
    for name, message in (("S", "full array"), ("Y.zarr", "is no S written by lrpca")):
        with pytest.raises(ValueError, match=message):
            read_sparse(tmp_path / name)
    with pytest.raises(ValueError, match="Y=None"):
        Decomposition.load(saved).write_sparse(tmp_path / "T")
    assert not (tmp_path / "T").exists()


def content(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def fill_up(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let zarr write so many bytes, and then find the disk full."""
    from zarr.storage import LocalStore

    put = LocalStore.set

    async def refuse(self: LocalStore, key: str, value: Any) -> None:
        nonlocal room
        room -= len(value)
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), key)
        # What zarr writes beside it comes later.
        await asyncio.sleep(0.01)
        await put(self, key, value)

    monkeypatch.setattr(LocalStore, "set", refuse)


@pytest.mark.parametrize("layout", ["coordinates", "dense"])
@pytest.mark.parametrize("room", [0, 600, 1_500, 30_000])
def test_a_disk_that_fills_up(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, room: int
) -> None:
    """Nothing is left where nothing was, and an old store stays as it was; both can be written once there is room."""
    d = Decomposition.load(saved, stored(tmp_path))
    d.write_sparse(tmp_path / "old", layout=layout)
    before = content(tmp_path)
    for name in ("new", "old"):
        path = tmp_path / name
        cause = r"\(No space left on device\)"
        message = rf"^path={str(path)!r} cannot be written {cause}; choose another place or free space$"
        with monkeypatch.context() as patch, pytest.raises(OSError, match=message):
            fill_up(patch, room)
            d.write_sparse(path, layout=layout, overwrite=name == "old")
        assert content(tmp_path) == before and {file.name for file in tmp_path.iterdir()} == {"Y.zarr", "old"}
    for name in ("new", "old"):
        d.write_sparse(tmp_path / name, layout=layout, overwrite=name == "old")
        assert len(content(tmp_path / name)) == len(content(tmp_path / "old"))
    assert {file.name for file in tmp_path.iterdir()} == {"Y.zarr", "new", "old"}


def test_a_store_that_cannot_take_its_place(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = Decomposition.load(saved, Y)
    d.write_sparse(tmp_path / "S")
    before = content(tmp_path)
    rename = os.replace

    def refuse(source: Path, target: Path) -> None:
        if target == tmp_path / "S":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=r"cannot be written \(Input/output error\)"):
        patch.setattr(os, "replace", refuse)
        d.write_sparse(tmp_path / "S", overwrite=True)
    assert content(tmp_path) == before and len(list(tmp_path.iterdir())) == 1

    # A store that came while this one was written is not replaced unasked.
    def move(reading: Any) -> None:
        if reading.done == 1:
            (tmp_path / "S").rename(tmp_path / "T")

    with pytest.raises(FileExistsError, match="exists; choose another name or overwrite it"):
        d.write_sparse(tmp_path / "T", tell=move)
    assert [path.name for path in tmp_path.iterdir()] == ["T"]


@pytest.mark.parametrize("layout", ["coordinates", "dense"])
def test_a_block_that_cannot_be_read(saved: Path, tmp_path: Path, layout: str) -> None:
    d = Decomposition.load(saved, stored(tmp_path))
    (tmp_path / "Y.zarr" / "c" / "6" / "0").write_bytes(b"damaged")
    with pytest.raises(OSError, match=r"^Y\[420:490, 0:\d+\] could not be read from .*; mend or restore that part$"):
        d.write_sparse(tmp_path / "S", layout=layout)
    assert [path.name for path in tmp_path.iterdir()] == ["Y.zarr"]


@pytest.mark.parametrize("layout", ["coordinates", "dense"])
def test_interrupted(saved: Path, tmp_path: Path, layout: str) -> None:
    d = Decomposition.load(saved, stored(tmp_path))

    def stop(reading: Any) -> None:
        if reading.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        d.write_sparse(tmp_path / "S", layout=layout, tell=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["Y.zarr"]


def test_without_zarr(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = Decomposition.load(saved, Y)
    write_result(d, tmp_path / "out.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"pip install lrpca\[dask\]"):
        d.write_sparse(tmp_path / "S")
    with pytest.raises(ImportError, match=r"pip install lrpca\[dask\]"):
        Decomposition.load(tmp_path / "out.zarr")
