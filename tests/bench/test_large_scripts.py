"""The benchmarks of large data: every format holds the same numbers, errors are of the factors, chunks are counted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lrpca
import lrpca.decomposition.zarr
import lrpca.matrices.accept
import lrpca.matrices.dense

zarr = pytest.importorskip("zarr")
pytest.importorskip("h5py")

ROOT = Path(__file__).resolve().parents[2]
SIDE = 500


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    names = ("measure", "limits", "large_data", "large_process", "large", "large_scaling")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        modules = SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        patch.setattr(modules.large_data, "TILE", 200)
        yield modules
        for name in names:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def files(scripts: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("large")
    problem = scripts.large_data.LargeProblem(SIDE)
    return {kind: scripts.large_data.write(problem, folder, kind) for kind in scripts.large_data.FORMATS}


def test_formats_hold_the_same_planted_numbers(scripts: SimpleNamespace, files: dict[str, Path]) -> None:
    import h5py

    Y = np.load(files["npy"])
    with h5py.File(files["h5"]) as file:
        np.testing.assert_array_equal(file["Y"], Y)
    for kind in ("zarr", "zarr-plain"):
        np.testing.assert_array_equal(zarr.open_array(files[kind])[:], Y)
    U, V = scripts.large_data.LargeProblem(SIDE).factors()
    # A tenth of the entries are outliers; the others differ from U Vᵀ by noise of 1% of its root mean square.
    residual = np.abs(Y - U @ V.T) / np.sqrt(np.mean((U @ V.T) ** 2))
    assert 0.085 < np.mean(residual > 0.05) < 0.105
    np.testing.assert_allclose(np.median(residual), 0.0067 * 1.17, rtol=0.15)


def test_error_is_that_of_the_product(scripts: SimpleNamespace) -> None:
    problem = scripts.large_data.LargeProblem(SIDE)
    U, V = problem.factors()
    L, R = U + 0.01 * V, V - 0.02 * U
    expected = np.linalg.norm(L @ R.T - U @ V.T) / np.linalg.norm(U @ V.T)
    np.testing.assert_allclose(problem.error(L, R), expected, rtol=1e-10)


def test_a_file_is_written_once(scripts: SimpleNamespace, files: dict[str, Path]) -> None:
    before = files["npy"].stat().st_mtime_ns
    assert scripts.large_data.write(scripts.large_data.LargeProblem(SIDE), files["npy"].parent, "npy") == files["npy"]
    assert files["npy"].stat().st_mtime_ns == before


def test_chunks_are_counted_in_full(scripts: SimpleNamespace, files: dict[str, Path]) -> None:
    matrix = lrpca.matrices.accept.accept(files["zarr"])
    count = scripts.large_process._count_chunks(matrix)
    matrix.entries(np.array([0, 1, 450]), np.array([0, 3, 450]))
    assert count.entries == 200 * 200 + 100 * 100
    assert scripts.large_process._count_chunks(lrpca.matrices.accept.accept(files["npy"])) is None


@pytest.mark.parametrize("state", ["cached", "disk"])
def test_passes_are_timed_beside_plain_reads(scripts: SimpleNamespace, files: dict[str, Path], state: str) -> None:
    found = scripts.large_process.passes(files["zarr"], SIDE, state, 2)
    assert [len(found[name]) for name in ("plain", "pass", "grams")] == [2, 2, 2]


def test_a_call_is_described(scripts: SimpleNamespace, files: dict[str, Path], tmp_path: Path) -> None:
    found = scripts.large_process.decompose(files["zarr"], SIDE, "cached", "lrpca", tmp_path / "S.zarr")
    assert found["converged"] and found["error"] < 3e-3
    assert found["file_reads"] >= 5 and found["anonymous"] > 2**20
    S = lrpca.decomposition.zarr.read_sparse(tmp_path / "S.zarr")
    assert found["sparse_bytes"] > 0 and 0.08 < S.nnz / SIDE**2 < 0.11


def test_the_peak_sees_what_was_allocated_in_between(scripts: SimpleNamespace) -> None:
    with scripts.large_process.AnonymousPeak() as peak:
        before = peak.bytes
        block = np.ones(1 << 24)
        scripts.large_process.time.sleep(0.1)
        del block
    assert peak.bytes > before + (100 << 20)


def test_table_of_workers_names_what_travels(scripts: SimpleNamespace) -> None:
    Y = scripts.large_scaling.noise(50, 40)
    result = scripts.large_scaling.one_pass(lrpca.matrices.dense.DenseMatrix(Y), 3)
    assert result.CA.shape == (50, 3) and result.CtB.shape == (40, 3)
