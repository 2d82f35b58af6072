"""Decompositions know the data they were made from, in whatever container, and warn of other data."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import Decomposition
from lrpca.testing import Problem, planted

da, pd, torch, zarr = (pytest.importorskip(name) for name in ("dask.array", "pandas", "torch", "zarr"))

SHAPE, RANK = (90, 70), 3


@pytest.fixture(scope="module")
def problem() -> Problem:
    return planted(SHAPE, rank=RANK, random_state=1)


def other_holders(Y: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the same numbers in other containers."""
    np.save(folder / "Y.npy", Y)
    stored = zarr.create_array(folder / "Y.zarr", shape=Y.shape, chunks=(50, 30), dtype=Y.dtype)
    stored[:] = Y
    yield "itself", Y
    yield "list", Y.tolist()
    yield "fortran", np.asfortranarray(Y)
    yield "strides", np.repeat(Y, 2, axis=1)[:, ::2]
    yield "big endian", Y.astype(Y.dtype.newbyteorder(">"))
    yield "single", Y.astype(np.float32)
    yield "double", Y.astype(np.float32).astype(np.float64)
    yield "complex", Y.astype(complex)
    yield "memmap", np.load(folder / "Y.npy", mmap_mode="r")
    yield "path", folder / "Y.npy"
    yield "zarr", stored
    yield "dask", da.from_array(Y, chunks=(33, 70))
    yield "frame", pd.DataFrame(Y)
    yield "tensor", torch.from_numpy(Y.copy())
    yield "masked", np.ma.masked_invalid(Y)


@pytest.mark.parametrize("shape", [(60, 50), (150, 120)])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_data_are_known_by_their_fingerprint(tmp_path: Path, shape: tuple[int, int], missing: float) -> None:
    Y = planted(shape, rank=RANK, missing=missing, random_state=1).Y
    lrpca.decompose(Y, RANK).save(tmp_path / "result.npz")
    path = tmp_path / "result.npz"
    for name, same in other_holders(Y, tmp_path):
        loaded = Decomposition.load(path, same)  # warnings are errors here
        # What is saved again still knows its data.
        loaded.save(tmp_path / "again.npz")
        Decomposition.load(tmp_path / "again.npz", Y)
        with pytest.warns(UserWarning, match=r"^Y is not what path='.*again\.npz' was made from \(.*\); pass the same"):
            Decomposition.load(tmp_path / "again.npz", -Y)
        assert loaded.fingerprint is not None, name
    for other in (Y[::-1], Y + 1e-3, planted(shape, rank=RANK, random_state=2).Y, np.zeros(shape)):
        with pytest.warns(UserWarning, match="is not what path="):
            loaded = Decomposition.load(path, other)
        loaded.save(tmp_path / "again.npz")
        Decomposition.load(tmp_path / "again.npz", Y)
    with pytest.warns(UserWarning, match="missing in one of them"):
        Decomposition.load(path, Y, mask=np.arange(shape[0])[:, None] % 2 == 0)


def test_masks_are_part_of_the_fingerprint(tmp_path: Path, problem: Problem) -> None:
    mask = np.random.default_rng(0).random(SHAPE) < 0.9
    hidden = np.where(mask, problem.Y, 1e6)
    lrpca.decompose(hidden, RANK, mask=mask).save(tmp_path / "result.npz")
    for Y, given in ((hidden, mask), (problem.Y, mask), (np.where(mask, problem.Y, np.nan), None)):
        Decomposition.load(tmp_path / "result.npz", Y, given)
    Decomposition.load(tmp_path / "result.npz", np.ma.array(hidden, mask=~mask))
    with pytest.warns(UserWarning, match="pass the same data and mask"):
        Decomposition.load(tmp_path / "result.npz", hidden)


def test_integers_are_known_as_floats(tmp_path: Path) -> None:
    for dtype, scale in ((np.uint8, 10), (np.int64, 2**40)):
        Y = np.abs(planted((90, 70), rank=RANK, random_state=0).Y * scale).clip(0, 200 * scale).astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lrpca.decompose(Y, RANK, max_iter=2).save(tmp_path / "result.npz")
        Decomposition.load(tmp_path / "result.npz", Y.astype(np.float64))
        Decomposition.load(tmp_path / "result.npz", Y.tolist())


def test_files_without_a_fingerprint_and_data_that_are_gone(tmp_path: Path, problem: Problem) -> None:
    path = tmp_path / "old.npz"
    lrpca.decompose(problem.Y, RANK).save(path)
    with np.load(path) as content:
        arrays = dict(content)
    facts = json.loads(str(arrays.pop("facts")))
    assert facts.pop("fingerprint")
    np.savez(path, facts=np.array(json.dumps(facts)), **arrays)
    assert Decomposition.load(path, -problem.Y).fingerprint is None
    stored = zarr.create_array(tmp_path / "Y.zarr", shape=SHAPE, chunks=(50, 30), dtype=float)
    stored[:] = problem.Y
    d = lrpca.decompose(stored, RANK)
    shutil.rmtree(tmp_path / "Y.zarr")
    d.save(path)
    Decomposition.load(path, -problem.Y)
    Decomposition.load(path, stored)
