"""Robust coefficients of new rows: what `transform` does with corrupted ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.matrices.accept import accept
from lrpca.regression import robust_coefficients

N2, RANK, ROWS = 120, 4, 60


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


def test_rows_do_not_influence_each_other() -> None:
    R, truth = draw(N2, RANK, seed=1), draw(ROWS, RANK, seed=2)
    Y = corrupted(truth, R)
    together = robust_coefficients(accept(Y), R, 0.0)
    one_by_one = np.concatenate([robust_coefficients(accept(row[None]), R, 0.0) for row in Y[:5]])
    np.testing.assert_allclose(together[:5], one_by_one, rtol=1e-9, atol=1e-12)


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
