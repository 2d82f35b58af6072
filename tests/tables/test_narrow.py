"""Robust principal axes of narrow tables: outlying cells, outlying rows, missing cells, weights, odd columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from lrpca.matrices.accept import accept
from lrpca.tables.cellwise import ENOUGH_ROWS, CellwiseMoments, cellwise_moments
from lrpca.tables.centre import column_medians


def table(
    columns: int, rank: int, *, rows: int = 300, noise: float = 0.02, seed: int = 0, offset: float = 3.0
) -> tuple[Any, Any]:
    """Return clean rows around a centre, and their axes (columns, rank)."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((columns, rank)))[0]
    X = rng.standard_normal((rows, rank)) * np.linspace(2, 1, rank) @ V.T + offset * rng.standard_normal(columns)
    return X + noise * rng.standard_normal(X.shape), V


def corrupted(Y: Any, fraction: float, size: float, *, one_sided: bool = False, seed: int = 1) -> tuple[Any, Any]:
    """Return the table with outliers, and where they are."""
    rng = np.random.default_rng(seed)
    hit = rng.random(Y.shape) < fraction
    sign = 1.0 if one_sided else rng.choice([-1.0, 1.0], Y.shape)
    return np.where(hit, Y + sign * size * rng.uniform(0.5, 1.5, Y.shape), Y), hit


def moments(Y: Any, **settings: Any) -> CellwiseMoments:
    return cellwise_moments(accept(Y), **settings)


def components_of(Y: Any, **settings: Any) -> Any:
    return moments(Y, **settings).axes()[0]


def angle(components: Any, V: Any) -> float:
    return float(subspace_angles(components[: V.shape[1]].T, V).max())


def ordinary(Y: Any) -> Any:
    return np.linalg.eigh(np.cov(Y.T))[1].T[::-1]


@pytest.mark.parametrize(("rows", "columns"), ((300, 10), (5000, 20), (60, 20), (40, 3)))
@pytest.mark.parametrize("noise", (0.02, 0.5))
def test_clean_table_gives_the_sample_moments(rows: int, columns: int, noise: float) -> None:
    Y, _ = table(columns, max(1, columns // 4), rows=rows, noise=noise)
    cells = moments(Y)
    assert cells.converged and cells.rows_used.all()
    np.testing.assert_allclose(cells.mean, Y.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(cells.covariance, np.cov(Y.T), atol=1e-12 * np.ptp(Y))
    about_zero = moments(Y, center=False)
    assert not about_zero.mean.any()
    np.testing.assert_allclose(about_zero.covariance, Y.T @ Y / rows, rtol=1e-10)


@pytest.mark.parametrize(("rows", "columns"), ((20, 10), (30, 10), (10, 20)))
def test_few_clean_rows_are_not_flagged(rows: int, columns: int) -> None:
    # A fit with about as many coefficients as rows is too close to those it has seen.
    for seed in range(6):
        Y = table(columns, columns // 4, rows=rows, seed=seed)[0]
        cells = moments(Y)
        assert cells.converged and cells.rows_used.all()
        np.testing.assert_allclose(cells.covariance, np.cov(Y.T), atol=1e-11)


def test_clean_row_far_out_along_the_axis_stays() -> None:
    rng = np.random.default_rng(0)
    along = rng.standard_normal((300, 1))
    along[7] = 4.6
    Y = along * np.ones(5) + 0.01 * rng.standard_normal((300, 5))
    cells = moments(Y)
    assert cells.rows_used.all()
    np.testing.assert_allclose(cells.covariance, np.cov(Y.T), atol=1e-12)


def test_axes_are_those_of_the_covariance() -> None:
    Y, _ = table(6, 2, noise=0.3)
    components, variances = moments(Y).axes()
    np.testing.assert_allclose(components @ components.T, np.eye(6), atol=1e-12)
    np.testing.assert_allclose((components.T * variances) @ components, np.cov(Y.T), atol=1e-12)
    assert (np.diff(variances) <= 0).all()
    assert (components[np.arange(6), np.abs(components).argmax(axis=1)] > 0).all()


def test_long_table_uses_every_row() -> None:
    Y, V = table(5, 2, rows=3 * ENOUGH_ROWS + 7, noise=0.1)
    cells = moments(Y)
    assert cells.rows_used.all()
    np.testing.assert_allclose(cells.covariance, np.cov(Y.T), atol=1e-12)
    cells = moments(corrupted(Y, 0.05, 30.0)[0])
    assert angle(cells.axes()[0], V) < 1.5 * angle(ordinary(Y), V)
    assert cells.rows_used.mean() > 0.99


@pytest.mark.parametrize(("columns", "rank"), ((4, 1), (6, 2), (10, 3), (20, 5)))
@pytest.mark.parametrize(("fraction", "size", "one_sided"), ((0.05, 30, True), (0.1, 1e3, False), (0.1, 5, True)))
@pytest.mark.parametrize("noise", (0.02, 0.1))
def test_outlying_cells(columns: int, rank: int, fraction: float, size: float, one_sided: bool, noise: float) -> None:
    near = 0
    for seed in range(2):
        Y, V = table(columns, rank, noise=noise, seed=seed)
        bad, hit = corrupted(Y, fraction, size, one_sided=one_sided, seed=seed + 50)
        # Nothing can do better than to know the outliers.
        known = angle(components_of(np.where(hit, np.nan, Y)), V)
        got = angle(components_of(bad), V)
        near += got <= 1.5 * max(known, angle(ordinary(Y), V))
        assert angle(ordinary(bad), V) > 5 * known
    assert near == 2


@pytest.mark.parametrize(("columns", "rank"), ((4, 1), (6, 1), (10, 3)))
def test_a_fifth_of_the_cells_on_one_side(columns: int, rank: int) -> None:
    # They inflate the covariance so much that they hide in it, unless residuals are measured by what is typical.
    for seed in range(3):
        Y, V = table(columns, rank, seed=seed)
        bad, hit = corrupted(Y, 0.2, 5.0, one_sided=True, seed=seed + 50)
        known = angle(components_of(np.where(hit, np.nan, Y)), V)
        assert angle(components_of(bad), V) < 3 * known


@pytest.mark.parametrize(("columns", "rank"), ((4, 1), (6, 2), (10, 3), (15, 5)))
@pytest.mark.parametrize("size", (5, 1e3))
def test_table_without_noise_is_exact(columns: int, rank: int, size: float) -> None:
    for seed in range(3):
        Y, V = table(columns, rank, noise=0.0, seed=seed)
        bad, _ = corrupted(Y, 0.1, size, one_sided=True, seed=seed + 50)
        components, variances = moments(bad).axes()
        assert angle(components, V) < 1e-6
        assert variances[rank] < 1e-8 * variances[0]


def test_missing_cells_and_outliers() -> None:
    Y, V = table(10, 3)
    bad, _ = corrupted(Y, 0.1, 30.0)
    bad[np.random.default_rng(7).random(bad.shape) < 0.1] = np.nan
    assert angle(components_of(bad), V) < 1.5 * angle(ordinary(Y), V)


@pytest.mark.parametrize("scale", (1.0, 100.0))
def test_outlying_rows_are_left_out(scale: float) -> None:
    Y, V = table(8, 2)
    rng = np.random.default_rng(5)
    garbage = rng.random(len(Y)) < 0.08
    bad = Y.copy()
    bad[garbage] = 3 * scale * rng.standard_normal((garbage.sum(), 8))
    cells = moments(bad)
    assert angle(cells.axes()[0], V) < 1.5 * angle(ordinary(Y), V)
    assert not cells.rows_used[garbage].any() and cells.rows_used[~garbage].all()


def test_without_a_centre() -> None:
    Y, V = table(10, 3, offset=0.0)
    cells = moments(corrupted(Y, 0.1, 30.0)[0], center=False)
    assert not cells.mean.any()
    assert angle(cells.axes()[0], V) < 1.5 * angle(ordinary(Y), V)


@pytest.mark.parametrize("center", (True, False))
def test_weights_are_repeated_rows(center: bool) -> None:
    Y, _ = corrupted(table(6, 2, rows=200, noise=0.1)[0], 0.1, 10.0)
    Y[3, 2] = np.nan
    Y[:, 5] = np.maximum(Y[:, 5] - np.quantile(Y[:, 5], 0.7), 0.0)
    weight = np.random.default_rng(2).integers(0, 4, 200)
    weighted = moments(Y, weight=weight, center=center)
    repeated = moments(np.repeat(Y, weight, axis=0), center=center)
    np.testing.assert_allclose(weighted.mean, repeated.mean, atol=1e-12)
    np.testing.assert_allclose(weighted.covariance, repeated.covariance, atol=1e-11)
    assert np.array_equal(np.repeat(weighted.rows_used, weight), repeated.rows_used)
    assert not weighted.rows_used[weight == 0].any()
    assert np.abs(weighted.covariance - moments(Y, center=center).covariance).max() > 1e-3


def test_weighted_median_is_that_of_repeated_rows() -> None:
    rng = np.random.default_rng(0)
    values, weight = rng.standard_normal((40, 30)), rng.integers(0, 3, 40)
    values[rng.random(values.shape) < 0.1] = np.nan
    repeated = np.nanmedian(np.repeat(values, weight, axis=0), axis=0)
    np.testing.assert_allclose(column_medians(values, weight.astype(float)), repeated, rtol=1e-15)
    np.testing.assert_allclose(column_medians(values, np.full(40, 0.1)), np.nanmedian(values, axis=0), rtol=1e-15)


def test_shares_are_weights_too() -> None:
    Y, _ = corrupted(table(6, 2, noise=0.1)[0], 0.1, 10.0)
    plain, shares = moments(Y), moments(Y, weight=np.full(len(Y), 1 / len(Y)))
    np.testing.assert_allclose(shares.covariance, plain.covariance, rtol=1e-9)


def test_units_and_order_of_columns_and_rows() -> None:
    Y, _ = corrupted(table(6, 2, noise=0.1)[0], 0.1, 10.0)
    cells = moments(Y)
    unit, order = 10.0 ** np.arange(-3, 3), np.random.default_rng(0).permutation(6)
    other = moments((Y[::-1] * unit - 5 * unit)[:, order])
    expected = (cells.covariance * np.outer(unit, unit))[np.ix_(order, order)]
    np.testing.assert_allclose(other.covariance, expected, rtol=1e-5)
    assert np.array_equal(other.rows_used, cells.rows_used[::-1])


CHANGES: dict[str, tuple[Any, float]] = {
    "constant column": (np.s_[:, 1], 7.0),
    "empty column": (np.s_[:, 1], np.nan),
    "empty row": (3, np.nan),
    "one cell left": (np.s_[1:, 2], np.nan),
    "constant": (np.s_[:], 7.0),
    "zero": (np.s_[:], 0.0),
    "empty": (np.s_[:], np.nan),
}
SHAPES = {"one row": (1, 4), "two rows": (2, 4), "one column": (30, 1), "wide": (3, 4)}


@pytest.mark.parametrize("center", (True, False))
@pytest.mark.parametrize("name", (*CHANGES, *SHAPES, "equal columns"))
def test_odd_tables(name: str, center: bool) -> None:
    Y = np.random.default_rng(0).standard_normal((30, 4))
    if name in CHANGES:
        Y[CHANGES[name][0]] = CHANGES[name][1]
    elif name in SHAPES:
        Y = Y[: SHAPES[name][0], : SHAPES[name][1]]
    else:
        Y[:] = Y[:, :1]
    cells = moments(Y, center=center)
    components, variances = cells.axes()
    n2 = Y.shape[1]
    assert np.isfinite(cells.mean).all() and np.isfinite(variances).all()
    np.testing.assert_allclose(components @ components.T, np.eye(n2), atol=1e-12)
    assert np.array_equal(cells.rows_used, (Y == Y).any(axis=1))
    if name == "empty column" or (name == "constant column" and center):
        assert not cells.covariance[1].any()
    if name == "constant column" and center:
        assert cells.mean[1] == 7.0
    if center and np.isfinite(Y).all() and len(Y) > 1:
        np.testing.assert_allclose(cells.covariance, np.cov(Y.T).reshape(n2, n2), atol=1e-12)


def test_columns_of_equal_cells_are_no_outliers() -> None:
    rng = np.random.default_rng(0)
    indicators, counts = (rng.random((300, 3)) < [0.02, 0.1, 0.3]) * 1.0, rng.poisson(0.3, (300, 1))
    Y = np.column_stack([indicators, counts, rng.standard_normal((300, 2))])
    covariance = moments(Y).covariance
    np.testing.assert_allclose(covariance, np.cov(Y.T), atol=1e-12)
    gap, Y[5, 3] = np.where(np.arange(1800).reshape(300, 6) == 33, np.nan, Y), 1e5
    np.testing.assert_allclose(moments(Y).covariance, moments(gap).covariance, atol=1e-6)


def test_infinite_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="inf"):
        moments(np.array([[1.0, np.inf], [2.0, 3.0]]))
