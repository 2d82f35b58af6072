"""T_α, exactly: thresholds by selection, and what is left of a residual, dense and on lists of entries."""

from __future__ import annotations

import numpy as np
import pytest

from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.listed import ListedResidual
from lrpca.solvers.sparsify import DenseResidual

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def rejected(D, share):
    """T_α as it is written in the papers: entries that are among the largest of their row and of their column."""
    sizes = np.sqrt(D.real.astype(float) ** 2 + D.imag.astype(float) ** 2).astype(D.real.dtype)
    seen = sizes == sizes
    chosen = np.ones(D.shape, bool)
    for axis in (0, 1):
        for line, values, here in zip(*(np.moveaxis(M, axis, 0) for M in (chosen, sizes, seen)), strict=True):
            k = int(share * here.sum() + 1e-9)
            level = np.sort(values[here])[-k] if k else np.inf
            line &= values >= level
    return chosen & (sizes > 0)


def residuals_of(Y, mask=None):
    """The same matrix as a dense residual and as a list of entries."""
    seen = (Y == Y) if mask is None else (Y == Y) & mask
    norm = float(np.linalg.norm(Y[seen].astype(np.complex128)))
    yield DenseResidual(DenseMatrix(Y, mask), norm, float(seen.mean()))
    yield ListedResidual(DenseMatrix(Y, mask), np.random.default_rng(0))


def make(shape, dtype, seed=0, rank=3):
    rng = np.random.default_rng(seed)

    def normal(*size):
        real = rng.standard_normal(size)
        return (real + 1j * rng.standard_normal(size) if np.dtype(dtype).kind == "c" else real).astype(dtype)

    return normal(*shape), normal(shape[0], rank), normal(shape[1], rank)


def check(Y, L, R, share, mask=None):
    seen = (Y == Y) if mask is None else (Y == Y) & mask
    for residual in residuals_of(Y, mask):
        result = residual.sparsified(L, R, share)
        wide = np.promote_types(L.dtype, np.float64)
        D = np.where(seen, Y, np.nan).astype(L.dtype) - (L @ R.T).astype(L.dtype)
        S = rejected(D, share)
        E = np.where(seen & ~S, D, 0).astype(wide)
        kept = seen & ~S
        np.testing.assert_array_equal(result.kept_by_row, kept.sum(axis=1))
        np.testing.assert_array_equal(result.kept_by_column, kept.sum(axis=0))
        rtol = 1e-4 if np.finfo(L.dtype).eps > 1e-10 else 1e-11
        scale = np.linalg.norm(E) * np.linalg.norm(R) + 1e-30
        np.testing.assert_allclose(result.CA, E @ R.conj(), atol=rtol * scale)
        np.testing.assert_allclose(result.CtB, E.T @ L.conj(), atol=rtol * scale)
        assert result.norm_C == pytest.approx(np.linalg.norm(E), rel=1e-5)
        residual.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(90, 90), (300, 70), (40, 500), (5, 3)])
@pytest.mark.parametrize("share", [0.0, 0.12, 0.5, 1.0])
def test_products_and_counts_are_those_of_the_definition(shape, share, dtype):
    check(*make(shape, dtype), share)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("missing", [0.1, 0.6, 0.97])
def test_missing_entries_do_not_count(missing, dtype):
    Y, L, R = make((150, 120), dtype)
    Y[np.random.default_rng(1).random(Y.shape) < missing] = np.nan
    Y[3], Y[:, 5] = np.nan, np.nan
    check(Y, L, R, 0.3)


def test_mask_and_nan_together():
    Y, L, R = make((80, 110), np.float64)
    Y[np.random.default_rng(1).random(Y.shape) < 0.1] = np.nan
    check(Y, L, R, 0.2, np.random.default_rng(2).random(Y.shape) < 0.7)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_one_huge_entry_does_not_hide_the_others(scale):
    Y, L, R = make((90, 200), np.float64)
    Y[::7, ::3] *= scale
    Y[5, 5] = 1e100
    check(Y, L, R, 0.2)


def test_equal_entries_are_rejected_together_and_zeros_never():
    Y = np.zeros((100, 100))
    Y[:, :30] = 255.0
    zero = np.zeros((100, 1))
    for residual in residuals_of(Y):
        result = residual.sparsified(zero, zero, 0.1)
        # All of a column are equal, so all 30 of a row are the largest of their columns too.
        np.testing.assert_array_equal(result.kept_by_row, 70)
        np.testing.assert_array_equal(result.kept_by_column, [0] * 30 + [100] * 70)
        assert result.norm_C == 0
    for residual in residuals_of(0 * Y):
        np.testing.assert_array_equal(residual.sparsified(zero, zero, 0.1).kept_by_row, 100)


@pytest.mark.parametrize("count", [63, 64, 65, 1000, 1001])
def test_long_and_short_rows(count):
    check(*make((3, count), np.float64), 0.3)
    check(*make((count, 3), np.float32), 0.3)


def test_counts_are_rounded_down_but_not_by_rounding():
    Y, L, R = make((100, 100), np.float64)
    zero_L, zero_R = L * 0, R * 0
    for share in (0.29, 0.3, 0.57):
        assert share * 100 != round(share * 100) or share == 0.3
        check(Y, zero_L, zero_R, share)


@pytest.mark.parametrize("order", ["fortran", "strided", "integers", "read-only"])
def test_any_layout_gives_the_same(order):
    Y, L, R = make((60, 90), np.float64)
    L, R = L.round(), R.round()
    if order == "integers":
        Y = (100 * Y).astype(np.int64)
    given = Y
    if order == "fortran":
        given = np.asfortranarray(Y)
    elif order == "strided":
        given = np.repeat(np.repeat(Y, 2, 0), 3, 1)[::2, ::3]
    elif order == "read-only":
        given = Y.copy()
        given.flags.writeable = False
    check(given, L, R, 0.2)


def test_bits_do_not_depend_on_threads(monkeypatch):
    Y, L, R = make((700, 600), np.float64)
    results = []
    for count in (1, 2, 5):
        monkeypatch.setattr("lrpca.kernels.threads.thread_count", lambda count=count: count)
        for residual in residuals_of(Y):
            result = residual.sparsified(L, R, 0.2)
            results.append((result.CA.tobytes(), result.CtB.tobytes(), result.norm_C))
            residual.close()
    assert results[0] == results[2] == results[4]
    assert results[1] == results[3] == results[5]


def test_held_matrix_is_what_is_left_of_Y():
    for dtype in (np.float64, np.complex128):
        Y, L, R = make((70, 50), dtype)
        E = np.where(rejected(Y, 0.2), 0, Y)
        for Y_given in (Y, np.asfortranarray(Y)):
            for residual in residuals_of(Y_given):
                residual.hold(0.2)
                np.testing.assert_allclose(residual.times(R), E @ R, atol=1e-10)
                np.testing.assert_allclose(residual.adjoint_times(L), E.conj().T @ L, atol=1e-10)


def test_a_sample_is_random_and_of_its_size():
    Y, L, R = make((400, 300), np.float64)
    residual = ListedResidual(DenseMatrix(Y), np.random.default_rng(3), 0.1)
    count = residual.observed * Y.size
    assert abs(count - 12_000) < 5 * np.sqrt(12_000 * 0.9)
    rows, columns = residual.sparsified(L, R, 0.0).kept
    assert rows.sum() == columns.sum() == count
    # No row or column is favoured: five standard deviations of a binomial count.
    assert np.abs(rows - 30).max() < 5 * np.sqrt(30)
    assert np.abs(columns - 40).max() < 5 * np.sqrt(40)


def test_a_sample_of_infinite_entries_is_refused():
    Y, _, _ = make((40, 30), np.float64)
    Y[3, 4] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        ListedResidual(DenseMatrix(Y), np.random.default_rng(0), 0.999)
