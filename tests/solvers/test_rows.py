"""Robust coefficients of new rows: what `transform` does with corrupted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import lrpca
from lrpca.kernels import threads
from lrpca.matrices.accept import accept
from lrpca.solvers import rows as regression
from lrpca.solvers.rows import robust_coefficients

N2, RANK, ROWS = 120, 4, 60
LONG = 2000


def draw(*size: int, seed: int, dtype: Any = float) -> Any:
    rng = np.random.default_rng(seed)
    real = rng.standard_normal(size)
    return real + 1j * rng.standard_normal(size) if np.dtype(dtype).kind == "c" else real


def corrupted(
    truth: Any, R: Any, *, fraction: float = 0.3, size: float = 10.0, noise: float = 0.0, missing: float = 0.0
) -> Any:
    """Return truth @ R.T with exactly that share of gross one-sided outliers in every row."""
    rng = np.random.default_rng(11)
    Y = truth @ R.T
    typical = np.abs(Y).mean()
    Y = Y + noise * typical * rng.standard_normal(Y.shape)
    for row in Y:
        where = rng.choice(len(R), int(fraction * len(R)), replace=False)
        row[where] += size * typical * rng.uniform(0.2, 1, len(where))
    Y[rng.random(Y.shape) < missing] = np.nan
    return Y


def error(got: Any, truth: Any) -> float:
    return float(np.linalg.norm(got - truth, axis=1).max() / np.linalg.norm(truth, axis=1).mean())


@pytest.mark.parametrize("size", (3.0, 10.0, 1e4))
@pytest.mark.parametrize("dtype", (float, complex))
def test_thirty_per_cent_gross_outliers(size: float, dtype: Any) -> None:
    R, truth = draw(N2, RANK, seed=1, dtype=dtype), draw(ROWS, RANK, seed=2, dtype=dtype)
    Y = corrupted(truth, R, size=size)
    assert error(robust_coefficients(accept(Y), R, 0.0), truth) < 1e-9
    # Least squares, which plain PCA does, is lost.
    assert error(np.linalg.lstsq(R, Y.T, rcond=None)[0].T, truth) > 0.05


def test_missing_entries() -> None:
    R, truth = draw(N2, RANK, seed=1), draw(ROWS, RANK, seed=2)
    assert error(robust_coefficients(accept(corrupted(truth, R, missing=0.3)), R, 0.0), truth) < 1e-9


def test_row_without_entries_gets_zeros() -> None:
    R, truth = draw(N2, RANK, seed=1), draw(ROWS, RANK, seed=2)
    Y = corrupted(truth, R)
    Y[7] = np.nan
    got = robust_coefficients(accept(Y), R, 0.0)
    assert not got[7].any()
    others = np.arange(ROWS) != 7
    assert error(got[others], truth[others]) < 1e-9
    assert not robust_coefficients(accept(Y[7:8]), R, 0.0).any()


def test_row_with_fewer_entries_than_components_is_fitted_where_observed() -> None:
    R, truth = draw(N2, RANK, seed=1), draw(1, RANK, seed=2)
    Y = np.full((1, N2), np.nan)
    Y[0, [3, 50]] = (truth @ R.T)[0, [3, 50]]
    got = robust_coefficients(accept(Y), R, 0.0)
    assert np.isfinite(got).all()
    np.testing.assert_allclose((got @ R.T)[0, [3, 50]], Y[0, [3, 50]], rtol=1e-6)


def test_noise_costs_little_more_than_least_squares_on_clean_rows() -> None:
    R, truth = draw(N2, RANK, seed=1), draw(ROWS, RANK, seed=2)
    noise = 0.05
    dirty = corrupted(truth, R, noise=noise)
    level = noise * float(np.abs(truth @ R.T).mean())
    clean = np.linalg.lstsq(R, corrupted(truth, R, noise=noise, fraction=0.0).T, rcond=None)[0].T
    assert np.linalg.norm(robust_coefficients(accept(dirty), R, level) - truth) < 1.6 * np.linalg.norm(clean - truth)


@pytest.mark.parametrize("scale", (1e-3, 1e3))
def test_badly_scaled_components(scale: float) -> None:
    R, truth = draw(N2, RANK, seed=1) * np.array([scale, 1, 1, 1 / scale]), draw(ROWS, RANK, seed=2)
    truth = truth / np.array([scale, 1, 1, 1 / scale])
    got = robust_coefficients(accept(corrupted(truth, R)), R, 0.0)
    assert np.abs(got @ R.T - truth @ R.T).max() < 1e-8 * np.abs(truth @ R.T).max()


# Rows longer than the sample that their fit starts from, and shorter ones.
@pytest.fixture(params=(N2, LONG), ids=("short", "long"))
def rows(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    R, truth = draw(request.param, RANK, seed=1), draw(20, RANK, seed=2)
    return corrupted(truth, R, noise=0.01), R, truth


def test_bits_of_a_row_depend_on_it_alone(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Y, R, _ = rows
    # Rows with missing entries, of other sizes, and unexplained ones as neighbours.
    Y[3, ::3], Y[5], Y[6], Y[9] = np.nan, np.nan, 1e6 * Y[6], draw(Y.shape[1], seed=5)
    together = robust_coefficients(accept(Y), R, 0.0)
    for i in range(len(Y)):
        np.testing.assert_array_equal(robust_coefficients(accept(Y[i : i + 1]), R, 0.0)[0], together[i])
    np.testing.assert_array_equal(robust_coefficients(accept(Y[::-1]), R, 0.0), together[::-1])
    monkeypatch.setattr(regression, "_PIECE", 1)
    monkeypatch.setattr(regression, "_LEAST_ROWS", 2)
    for count in (1, 3):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        np.testing.assert_array_equal(robust_coefficients(accept(Y), R, 0.0), together)


@pytest.mark.parametrize("rank", (1, 2, 5, 20))
@pytest.mark.parametrize("size", (3.0, 10.0, 1000.0))
def test_long_rows(rank: int, size: float) -> None:
    R, truth = draw(LONG, rank, seed=1), draw(30, rank, seed=2)
    assert error(robust_coefficients(accept(corrupted(truth, R, size=size)), R, 0.0), truth) < 1e-12


@pytest.mark.parametrize("n2", (N2, LONG))
def test_nearly_half_of_outliers_on_one_side_of_positive_components(n2: int) -> None:
    R, truth = np.abs(draw(n2, RANK, seed=1)), np.abs(draw(ROWS, RANK, seed=2))
    for fraction, noise, limit in ((0.4, 0.0, 1e-9), (0.42, 0.02, 0.05)):
        Y = corrupted(truth, R, fraction=fraction, noise=noise)
        level = noise * float(np.abs(truth @ R.T).mean())
        assert error(robust_coefficients(accept(Y), R, level), truth) < limit


@pytest.mark.parametrize("known", (True, False))
@pytest.mark.parametrize("rank", (1, 20))
def test_noise_costs_no_more_than_without_the_outliers(rank: int, known: bool) -> None:
    R, truth = draw(LONG, rank, seed=1), draw(ROWS, rank, seed=2)
    Y = corrupted(truth, R, noise=0.05)
    clean = np.abs(Y - truth @ R.T) < 0.5 * np.abs(truth @ R.T).mean()
    best = [np.linalg.lstsq(R[kept], row[kept], rcond=None)[0] for row, kept in zip(Y, clean, strict=True)]
    level = 0.05 * float(np.abs(truth @ R.T).mean()) if known else 0.0
    got = robust_coefficients(accept(Y), R, level)
    assert np.linalg.norm(got - truth) < 1.02 * np.linalg.norm(np.array(best) - truth)


@pytest.mark.parametrize("n2", (5 * N2, LONG))
def test_component_on_few_columns(n2: int) -> None:
    """A coefficient that one entry in twenty depends on: samples must hold those; rejecting them all is noticed."""
    R, truth = draw(n2, RANK, seed=1), draw(ROWS, RANK, seed=2)
    R[:, 0] *= np.random.default_rng(3).random(n2) < 0.05
    level = 0.01 * float(np.abs(truth @ R.T).mean())
    assert error(robust_coefficients(accept(corrupted(truth, R, noise=0.01)), R, level), truth) < 0.02


@pytest.mark.parametrize("share", (0.5, 0.85))
def test_missing_stretch_of_long_rows(share: float) -> None:
    """Where the kept entries are not spread over the row, their Gram is not that of all columns."""
    R, truth = draw(LONG, RANK, seed=1), draw(ROWS, RANK, seed=2)
    # One component lives on the columns that are left, mostly.
    R[: int(share * LONG), 0] *= 0.01
    Y = corrupted(truth, R, noise=0.02, fraction=0.2)
    Y[:, : int(share * LONG)] = np.nan
    level = 0.02 * float(np.abs(truth @ R.T).mean())
    assert error(robust_coefficients(accept(Y), R, level), truth) < 0.06


def test_long_rows_with_few_entries_or_none() -> None:
    R, truth = draw(LONG, RANK, seed=1), draw(3, RANK, seed=2)
    Y = np.full((3, LONG), np.nan)
    Y[0, ::300] = (truth @ R.T)[0, ::300]
    Y[2, 1::9] = (truth @ R.T)[2, 1::9]
    Y[2, 1:400:9] = 100.0
    got = robust_coefficients(accept(Y), R, 0.0)
    np.testing.assert_allclose(got[[0, 2]], truth[[0, 2]], rtol=1e-9)
    assert not got[1].any()


def test_components_that_are_not_there_get_zeros(rows: Any) -> None:
    Y, R, _ = rows
    got = robust_coefficients(accept(Y), np.insert(R, 2, 0.0, axis=1), 0.01)
    assert not got[:, 2].any()
    np.testing.assert_allclose(np.delete(got, 2, axis=1), robust_coefficients(accept(Y), R, 0.01), rtol=1e-9)
    assert not robust_coefficients(accept(Y), np.zeros_like(R), 0.01).any()


def test_infinite_entry_is_refused_wherever_it_is(rows: Any) -> None:
    Y, R, _ = rows
    for column in (0, 1, Y.shape[1] // 2, Y.shape[1] - 1):
        bad = Y.copy()
        bad[7, column] = -np.inf
        with pytest.raises(ValueError, match="inf.*NaN"):
            robust_coefficients(accept(bad), R, 0.0)
        # A masked one is not there.
        assert np.isfinite(robust_coefficients(accept(bad, np.isfinite(bad)), R, 0.0)).all()


def test_layouts_give_the_same_bits(rows: Any, tmp_path: Path) -> None:
    Y, R, _ = rows
    Y[2, 3:9] = np.nan
    expected = robust_coefficients(accept(Y), R, 0.0)
    Y.tofile(tmp_path / "Y")
    strided = np.zeros((2 * len(Y), 3 * Y.shape[1]))[::2, 1::3]
    strided[:] = Y
    mapped = np.memmap(tmp_path / "Y", float, "r", shape=Y.shape)
    for form in (np.asfortranarray(Y), strided, mapped, sparse.csr_array(Y)):
        np.testing.assert_array_equal(robust_coefficients(accept(form), R, 0.0), expected)
    filled = np.nan_to_num(Y, nan=7.0)
    np.testing.assert_array_equal(robust_coefficients(accept(filled, Y == Y), R, 0.0), expected)


@pytest.mark.parametrize("dtype", (np.float32, np.uint8, np.int16, np.int64))
def test_number_types_give_the_same_answer(rows: Any, dtype: Any) -> None:
    Y, R, _ = rows
    Y = np.clip(np.rint(10 * Y + 100), 0, 255)
    R = np.column_stack([R, np.ones(len(R))])
    expected = robust_coefficients(accept(Y), R, 0.3)
    np.testing.assert_allclose(robust_coefficients(accept(Y.astype(dtype)), R, 0.3), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", (float, complex))
def test_offset_is_taken_off_every_row(rows: Any, dtype: Any) -> None:
    Y, R, _ = rows
    Y, offset = Y.astype(dtype), 3 + draw(len(R), seed=8, dtype=dtype)
    Y[4, 2:5] = np.nan
    expected = robust_coefficients(accept(Y), R, 0.01)
    got = robust_coefficients(accept(Y + offset), R, 0.01, offset=offset)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    with pytest.raises(ValueError, match=r"offset\.shape=\(3,\)"):
        robust_coefficients(accept(Y), R, 0.01, offset=np.zeros(3))


def test_offset_far_larger_than_the_rows() -> None:
    """Rounding is that of the numbers as they are stored, not of what is left without the offset."""
    R, truth = draw(LONG, RANK, seed=1), draw(ROWS, RANK, seed=2)
    offset = np.full(LONG, 1e9)
    got = robust_coefficients(accept(corrupted(truth, R) + offset), R, 0.0, offset=offset)
    assert error(got, truth) < 1e-7


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, lrpca.Decomposition]:
    problem = lrpca.testing.planted((400, 150), rank=RANK, outlier_fraction=0.1, outlier_size=5, random_state=3)
    train = problem.Y[:300]
    return problem, lrpca.decompose(train, RANK)


def test_transform_of_held_out_rows(fitted: Any) -> None:
    problem, d = fitted
    rng = np.random.default_rng(4)
    X = problem.X[300:]
    Y = X.copy()
    where = rng.random(Y.shape) < 0.3
    Y[where] += 10 * np.abs(X).mean() * rng.uniform(-1, 1, int(where.sum()))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    before = Y.copy()
    got = d.transform(Y) @ d.R.T
    assert np.linalg.norm(got - X) < 1e-5 * np.linalg.norm(X)
    np.testing.assert_array_equal(Y, before)


def test_transform_of_training_rows_gives_their_rows_of_L(fitted: Any) -> None:
    problem, d = fitted
    np.testing.assert_allclose(d.transform(problem.Y[:50]), d.L[:50], atol=1e-5 * np.abs(d.L).max())


def test_transform_says_what_does_not_fit(fitted: Any) -> None:
    _, d = fitted
    with pytest.raises(ValueError, match=r"Y\.shape=\(3, 149\) has 149 columns.*150"):
        d.transform(np.ones((3, 149)))
    with pytest.raises(ValueError, match=r"Y\.ndim=1"):
        d.transform(np.ones(150))
    bad = np.ones((3, 150))
    bad[1, 2] = np.inf
    with pytest.raises(ValueError, match="inf.*NaN"):
        d.transform(bad)


def test_transform_takes_integers_and_keeps_the_dtype() -> None:
    rng = np.random.default_rng(0)
    Y = np.rint(40 + 160 * rng.random((80, 1)) @ rng.random((1, 60))).astype(np.uint8)
    Y[rng.random(Y.shape) < 0.05] = 255
    d = lrpca.decompose(Y, 2)
    got = d.transform(Y[:10])
    assert got.dtype == d.L.dtype == np.float32
    np.testing.assert_allclose(got @ d.R.T, d.low_rank[:10], atol=0.5)
