"""Mapped files: passes over large ones go through them once, from beginning to end, whatever their shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lrpca.core.influence import levels
from lrpca.matrices import dense
from lrpca.matrices.accept import accept
from lrpca.matrices.dense import DenseMatrix

SHAPE, RANK = (60, 3000), 3


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_LARGE_FILE", 1 << 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Y = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.save(tmp_path / "Y.npy", Y)
    return tmp_path / "Y.npy"


def cuts(matrix: DenseMatrix) -> tuple[int, int]:
    """Return into how many parts rows and columns are cut."""
    parts = matrix._parts(RANK)
    return len({rows.start for rows, _ in parts}), len({columns.start for _, columns in parts})


@pytest.mark.usefixtures("small_is_large")
def test_wide_file_is_cut_by_rows(path: Path) -> None:
    mapped = np.load(path, mmap_mode="r")
    rows, columns = cuts(accept(mapped))
    assert rows > 1 and columns == 1
    assert cuts(accept(path)) == (rows, 1)
    assert cuts(accept(mapped[:, 100:])) == (rows, 1)
    # In memory, where threads share less when columns are cut.
    in_memory = cuts(accept(np.load(path)))
    assert in_memory[0] == 1 and in_memory[1] > 1


@pytest.mark.usefixtures("small_is_large")
def test_columns_of_a_tall_fortran_file_follow_each_other(path: Path) -> None:
    np.save(path, np.asfortranarray(np.load(path).T))
    matrix = accept(path)
    assert matrix.shape == SHAPE[::-1]
    # Kernels see the transpose, whose rows are the columns of the file.
    assert cuts(matrix)[0] > 1 and cuts(matrix)[1] == 1


def test_small_files_are_cut_as_arrays_are(path: Path) -> None:
    assert cuts(accept(path)) == cuts(accept(np.load(path)))


@pytest.mark.usefixtures("small_is_large")
def test_pass_over_a_wide_file_gives_the_same_sums(path: Path) -> None:
    rng = np.random.default_rng(1)
    L, R = (rng.standard_normal((n, RANK)).astype(np.float32) for n in SHAPE)
    level = levels("redescending", 1.0, 2.0)
    mapped, loaded = (accept(Y).run_pass(L, R, level, A=R, B=L, grams=True) for Y in (path, np.load(path)))
    for name in ("CA", "CtB", "row_grams", "column_grams", "norm_C"):
        expected = getattr(loaded, name)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(getattr(mapped, name), expected, rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_array_equal(mapped.kept_by_row, loaded.kept_by_row)
    np.testing.assert_array_equal(mapped.kept_by_column, loaded.kept_by_column)


def test_columns_are_gathered_by_bands_of_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_BAND", 7 * 4 * SHAPE[1])
    Y = np.load(path)
    indices = np.concatenate([np.arange(16), np.arange(400, 432), [2999]])
    np.testing.assert_array_equal(dense.gather_columns(np.load(path, mmap_mode="r"), indices), Y[:, indices])
    np.testing.assert_array_equal(dense.gather_columns(np.asfortranarray(Y), indices), Y[:, indices])
