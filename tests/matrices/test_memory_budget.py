"""Methods that cannot read Y in blocks are given it in memory, or refused with the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
import lrpca.matrices.chunked.memory_budget
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.chunked.memory_budget import available_bytes
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

da = pytest.importorskip("dask.array")

STREAMING = sorted(name for name, method in METHODS.items() if method.streams)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> Any:
        raise AssertionError("Y was read into memory")

    monkeypatch.setattr(ChunkedMatrix, "loaded", refuse)


def problem() -> Any:
    return planted((200, 150), rank=3, outlier_fraction=0.1, random_state=0)


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("method", STREAMING)
def test_streaming_methods_give_the_same(method: str) -> None:
    truth = problem()
    d = lrpca.decompose(da.from_array(truth.Y, chunks=(70, 80)), 3, method=method)
    expected = lrpca.decompose(truth.Y, 3, method=method)
    assert np.abs(d.L @ d.R.T - expected.low_rank).max() < 1e-6 * np.abs(truth.X).max()
    assert isinstance(d.low_rank, da.Array)


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(STREAMING)))
def test_other_methods_are_given_the_whole(method: str) -> None:
    truth = problem()
    d = lrpca.decompose(da.from_array(truth.Y, chunks=(70, 80)), 3, method=method)
    expected = lrpca.decompose(truth.Y, 3, method=method)
    np.testing.assert_array_equal(d.L, expected.L)
    assert d.n_reads == expected.n_reads + 1
    # The result is as lazy as what was given.
    assert isinstance(d.sparse, da.Array) and d.sparse.chunks == ((70, 70, 60), (80, 70))
    assert (d.outliers.compute() == expected.outliers).all()


@pytest.mark.usefixtures("nothing_loaded")
def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrpca.matrices.chunked.memory_budget, "available_bytes", lambda: 8_100_000_000)
    Y = da.zeros((20_000, 20_000), chunks=5000)
    with pytest.raises(ValueError, match=r"method='pcp' needs Y in memory, 11.2 GB of the 8.1 GB that are free; use"):
        lrpca.decompose(Y, method="pcp")
    with pytest.raises(ValueError, match="needs X in memory"):
        lrpca.RobustPCA(3, method="gd").fit(Y)


def test_unknown_memory_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrpca.matrices.chunked.memory_budget, "available_bytes", lambda: None)
    Y = problem().Y
    assert lrpca.decompose(da.from_array(Y, chunks=(70, 80)), 3, method="altproj").converged


def test_available_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = available_bytes()
    assert free is None or 1 << 20 < free < 1 << 50
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    monkeypatch.setattr(lrpca.matrices.chunked.memory_budget, "_MEMINFO", str(tmp_path / "meminfo"))
    assert available_bytes() == 50 * 1024
    monkeypatch.setattr(lrpca.matrices.chunked.memory_budget, "_MEMINFO", str(tmp_path / "none"))
    monkeypatch.delattr("os.sysconf")
    assert available_bytes() is None


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("memory.max", "5000\n"), ("memory.current", "4000\n"), ("memory.stat", "anon 900\nfile 600\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(lrpca.matrices.chunked.memory_budget, "_CGROUP", str(tmp_path))
    assert available_bytes() == 1600  # cached files make way
    (tmp_path / "memory.max").write_text("max\n")
    assert (available_bytes() or 0) > 1600
