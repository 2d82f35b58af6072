"""Mapped files: passes over large ones go through them once, from beginning to end, whatever their shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lrpca.core.influence import levels
from lrpca.matrices import dense
from lrpca.matrices.accept import accept

SHAPE, RANK = (60, 3000), 3


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_LARGE_FILE", 1 << 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Y = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.save(tmp_path / "Y.npy", Y)
    return tmp_path / "Y.npy"


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
