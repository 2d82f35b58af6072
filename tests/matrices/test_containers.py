"""Whatever a NumPy user brings is read: number types, layouts, frames, sparse and masked arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import DiagnosisWarning, decompose
from lrpca.testing import Problem, planted

RANK = 3


def small(**changes: Any) -> Problem:
    return planted(**{"shape": (120, 100), "rank": RANK, "outlier_fraction": 0.1, "random_state": 1, **changes})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small()


def close(got: Any, want: Any, within: float = 1e-9) -> bool:
    return bool(np.linalg.norm(got.low_rank - want.low_rank) <= within * np.linalg.norm(want.low_rank))


LAYOUTS = {
    "list": lambda Y: Y.tolist(),
    "tuple of arrays": lambda Y: tuple(Y),
    "Fortran": np.asfortranarray,
    "non-contiguous": lambda Y: np.repeat(np.repeat(Y, 2, 0), 2, 1)[::2, ::2],
    "reversed": lambda Y: Y[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda Y: Y.astype(">f8"),
    "extended": lambda Y: Y.astype(np.longdouble),
    "matrix": lambda Y: Y.view(type("Own", (np.ndarray,), {})),
    "unaligned": lambda Y: np.frombuffer(b"x" + Y.tobytes(), np.uint8)[1:].view(Y.dtype).reshape(Y.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout(problem: Problem, layout: str) -> None:
    assert close(decompose(LAYOUTS[layout](problem.Y), RANK), decompose(problem.Y, RANK))


def test_read_only_memmap(problem: Problem, tmp_path: Path) -> None:
    np.save(tmp_path / "Y.npy", problem.Y)
    Y = np.load(tmp_path / "Y.npy", mmap_mode="r")
    d = decompose(Y, RANK)
    np.testing.assert_array_equal(d.L, decompose(problem.Y, RANK).L)
    np.testing.assert_array_equal(d.outliers, decompose(problem.Y, RANK).outliers)


@pytest.mark.parametrize(
    ("dtype", "result", "within"),
    [("float16", "float32", 2e-3), ("int32", "float64", 1e-3), ("int16", "float32", 1e-3), ("uint16", "float32", 1e-3)],
)
def test_other_numbers(problem: Problem, dtype: str, result: str, within: float) -> None:
    scale = {"float16": 1.0}.get(dtype, 2000.0) / np.abs(problem.Y).max()
    shift = 3000 if dtype == "uint16" else 0
    Y, X = problem.Y * scale, problem.X * scale
    Y = Y + shift if dtype == "float16" else np.rint(Y + shift)
    d = decompose(Y.astype(dtype), RANK + (shift > 0))
    assert d.L.dtype == result
    assert np.linalg.norm(d.low_rank - X - shift) < 2 * within * np.linalg.norm(X)


def test_booleans() -> None:
    Y = np.zeros((60, 50), bool)
    Y[10:, 10:] = True
    flipped = np.random.default_rng(0).random(Y.shape) < 0.05
    d = decompose(Y ^ flipped, 1)
    assert d.L.dtype == np.float32
    np.testing.assert_array_equal(d.outliers, flipped)


@pytest.mark.parametrize("dtype", ("float64", "int64"))
def test_masked_arrays(problem: Problem, dtype: str) -> None:
    Y = (1e6 * problem.Y / np.abs(problem.Y).max()).astype(dtype)
    hidden = np.random.default_rng(0).random(Y.shape) < 0.05
    spoiled = np.where(hidden, 10**9, Y)
    d = decompose(np.ma.MaskedArray(spoiled, mask=hidden), RANK)
    assert close(d, decompose(spoiled, RANK, mask=~hidden), 1e-12)
    assert not d.outliers[hidden].any()
    assert problem.error(d.low_rank / 1e6 * np.abs(problem.Y).max()) < 1e-4
    unmasked = decompose(np.ma.MaskedArray(Y), RANK)
    assert close(unmasked, decompose(Y, RANK), 1e-12)


def test_mask_and_nan_and_masked_array_add_up(problem: Problem) -> None:
    rng = np.random.default_rng(0)
    first, second, third = (rng.random(problem.Y.shape) < 0.1 for _ in range(3))
    Y = np.where(first, np.nan, problem.Y)
    d = decompose(np.ma.MaskedArray(Y, mask=second), RANK, mask=~third)
    want = decompose(problem.Y, RANK, mask=~(first | second | third))
    assert close(d, want)


@pytest.mark.parametrize("axis", (0, 1))
def test_masks_of_whole_rows_and_columns(problem: Problem, axis: int) -> None:
    keep = np.arange(problem.Y.shape[axis]) % 10 != 0
    mask = keep[:, None] if axis == 0 else keep[None, :]
    with pytest.warns(DiagnosisWarning, match="without influence"):
        d = decompose(problem.Y, RANK, mask=mask)
    want = decompose(np.compress(keep, problem.Y, axis=axis), RANK)
    got = np.compress(keep, d.low_rank, axis=axis)
    assert np.linalg.norm(got - want.low_rank) < 1e-6 * np.linalg.norm(want.low_rank)


def test_pandas(problem: Problem) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(problem.Y, columns=[f"c{j}" for j in range(problem.Y.shape[1])])
    want = decompose(problem.Y, RANK)
    assert close(decompose(frame, RANK), want)
    assert close(decompose(frame.astype("Float64"), RANK), want)


def test_pandas_nullable_and_mixed_columns(problem: Problem) -> None:
    pd = pytest.importorskip("pandas")
    Y = np.rint(1e4 * problem.Y / np.abs(problem.Y).max())
    hidden = np.random.default_rng(0).random(Y.shape) < 0.1
    want = decompose(np.where(hidden, np.nan, Y), RANK)
    frame = pd.DataFrame(np.where(hidden, np.nan, Y))
    assert close(decompose(frame.astype("Int64"), RANK), want)
    mixed = frame.astype({j: "Int64" if j % 2 else "float64" for j in range(Y.shape[1])})
    assert close(decompose(mixed, RANK), want)


def test_polars(problem: Problem) -> None:
    pl = pytest.importorskip("polars")
    assert close(decompose(pl.DataFrame(problem.Y), RANK), decompose(problem.Y, RANK))
    Y = np.rint(1e4 * problem.Y / np.abs(problem.Y).max()).astype(int)
    columns = {f"c{j}": [None if (i + j) % 10 == 0 else int(Y[i, j]) for i in range(len(Y))] for j in range(Y.shape[1])}
    i, j = np.indices(Y.shape)
    assert close(decompose(pl.DataFrame(columns), RANK), decompose(np.where((i + j) % 10 == 0, np.nan, Y), RANK))


@pytest.mark.parametrize("form", ("csr_matrix", "csr_array", "csc_matrix", "coo_array"))
def test_scipy_sparse(problem: Problem, form: str) -> None:
    """Absent entries are zeros, here outliers among others; they are not missing."""
    sparse = pytest.importorskip("scipy.sparse")
    Y = np.where(np.random.default_rng(0).random(problem.Y.shape) < 0.1, 0.0, problem.Y)
    d, want = decompose(getattr(sparse, form)(Y), RANK), decompose(Y, RANK)
    assert problem.error(d.low_rank) < 1e-6
    assert close(d, want, 1e-7)
    np.testing.assert_allclose(d.sparse, want.sparse, atol=1e-6 * np.abs(Y).max())
    np.testing.assert_array_equal(d.outliers[Y == 0], True)


def test_sparse_with_mask(problem: Problem) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    mask = np.random.default_rng(0).random(problem.Y.shape) < 0.8
    assert close(decompose(sparse.csr_array(problem.Y), RANK, mask=mask), decompose(problem.Y, RANK, mask=mask))
