"""Odd data: a documented result, or a warning; never a silent wrong answer."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import ConvergenceWarning, DiagnosisWarning, decompose
from lrpca.testing import planted

GOOD = planted((60, 50), rank=2, outlier_fraction=0.1, outlier_size=5, random_state=1)


@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_rows_and_columns_without_entries(dtype: str) -> None:
    """They get no influence, zeros in the low-rank part, and a place in the diagnosis and in a warning."""
    Y = GOOD.Y.astype(dtype)
    Y[[5, 17]], Y[:, 7] = np.nan, np.nan
    with (
        pytest.warns(DiagnosisWarning, match=r"2 row\(s\) without influence \(5, 17\).*missing"),
        pytest.warns(DiagnosisWarning, match=r"1 column\(s\) without influence \(7\)"),
    ):
        d = decompose(Y, 2)
    np.testing.assert_array_equal(d.diagnosis.rows_without_influence, [5, 17])
    np.testing.assert_array_equal(d.diagnosis.columns_without_influence, [7])
    assert np.isnan(d.diagnosis.kept_by_row[[5, 17]]).all() and np.isnan(d.diagnosis.kept_by_column[7])
    assert d.converged
    rows, columns = np.setdiff1d(np.arange(60), [5, 17]), np.setdiff1d(np.arange(50), [7])
    assert np.linalg.norm((d.low_rank - GOOD.X)[np.ix_(rows, columns)]) < 1e-5 * np.linalg.norm(GOOD.X)
    assert np.abs(d.low_rank[[5, 17]]).max() < 1e-6 and np.abs(d.low_rank[:, 7]).max() < 1e-6
    assert not d.sparse[5].any() and not d.outliers[:, 7].any()


@pytest.mark.parametrize("rank", (3, "auto"))
@pytest.mark.parametrize("fill", (1e20, 9.96921e36, -3.4028235e38), ids=str)
@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_fill_values_do_not_hide_the_noise(dtype: str, fill: float, rank: int | str) -> None:
    """Those of netCDF and of GIS files are 1e40 times what clean entries leave."""
    problem = planted((200, 150), rank=3, outlier_fraction=0.05, outlier_size=5, noise=0.01, random_state=0)
    rng = np.random.default_rng(1)
    Y = np.where(rng.random(problem.Y.shape) < 0.01, fill, problem.Y).astype(dtype)
    d = decompose(Y, rank)
    assert d.converged and d.rank == 3
    assert problem.error(d.low_rank) < 2 * problem.oracle_error
    assert d.outliers[np.abs(Y) > 1e19].all()


@pytest.mark.parametrize("dtype", ("float64", "float32", "uint8", "complex128"))
def test_zero_matrix(dtype: str) -> None:
    with pytest.warns(DiagnosisWarning, match="S is empty"):
        d = decompose(np.zeros((20, 12), dtype), 2)
    assert d.converged
    assert not d.low_rank.any() and not d.sparse.any() and not d.outliers.any()
    assert d.outlier_fraction == 0


@pytest.mark.parametrize("rank", (1, 3))
@pytest.mark.parametrize(("dtype", "within"), [("float64", 1e-13), ("float32", 1e-5), ("uint8", 1e-4)])
def test_constant_matrix(rank: int, dtype: str, within: float) -> None:
    with pytest.warns(DiagnosisWarning, match="S is empty"):
        d = decompose(np.full((20, 12), 7, dtype), rank)
    assert d.converged
    np.testing.assert_allclose(d.low_rank, 7, rtol=within)
    assert not d.outliers.any()


def test_constant_matrix_with_outliers() -> None:
    Y = np.full((40, 30), 7.0)
    hit = np.random.default_rng(0).random(Y.shape) < 0.1
    Y[hit] = 100
    d = decompose(Y, 1)
    assert d.converged
    np.testing.assert_allclose(d.low_rank, 7, rtol=1e-7)
    np.testing.assert_array_equal(d.outliers, hit)


def with_warnings(Y: Any, rank: int) -> tuple[lrpca.Decomposition, dict[type[Warning], str]]:
    """Return the decomposition and, by category, what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        d = decompose(Y, rank)
    texts: dict[type[Warning], str] = {}
    for warning in caught:
        texts[warning.category] = texts.get(warning.category, "") + f"{warning.message}\n"
    return d, texts


def test_spikes_on_zeros_are_not_called_a_fit() -> None:
    """Spikes of one sign lean on components of their own: the run does not converge, and zeros are pointed out."""
    Y = np.zeros((60, 50))
    hit = np.random.default_rng(0).random(Y.shape) < 0.1
    Y[hit] = np.random.default_rng(1).uniform(1, 5, int(hit.sum()))
    d, said = with_warnings(Y, 2)
    assert not d.converged and d.reason in said[ConvergenceWarning]
    assert "89% of the entries of Y are exactly zero" in said[DiagnosisWarning]


@pytest.mark.parametrize("share", (0.45, 0.6))
@pytest.mark.parametrize("seed", range(3))
def test_more_than_half_zeros(share: float, seed: int) -> None:
    """Zeros are data, not missing: the rest is recovered, and the one warning says how to have them missing."""
    rng = np.random.default_rng(seed)
    L, R = rng.standard_normal((130, 2)), rng.standard_normal((110, 2))
    L[rng.random(130) < share], R[rng.random(110) < share] = 0, 0
    X = L @ R.T
    hit = rng.random(X.shape) < 0.05
    Y = X + 3 * hit
    assert np.mean(Y == 0) > 0.5
    with pytest.warns(DiagnosisWarning, match=r"exactly zero and count as data; if they mean missing, pass mask="):
        d = decompose(Y, 2)
    assert d.converged and np.linalg.norm(d.low_rank - X) < 1e-7 * np.linalg.norm(X)
    np.testing.assert_array_equal(d.outliers, hit)


@pytest.mark.parametrize("surplus", (1, 4))
@pytest.mark.parametrize(("dtype", "within"), [("float64", 1e-12), ("float32", 1e-5)])
def test_over_specified_rank_of_exactly_low_rank_data(surplus: int, dtype: str, within: float) -> None:
    """LᵀL is singular: surplus components are zero, and nothing blows up."""
    X = planted((80, 60), rank=2, outlier_fraction=0, random_state=3).X.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        d = decompose(X, 2 + surplus)
        long = decompose(X, 2 + surplus, tol=0, max_iter=30)
    assert d.converged
    for result in (d, long):
        assert np.linalg.norm(result.low_rank - X) < within * np.linalg.norm(X)
        assert np.mean(result.outliers) < 1e-3
        assert np.abs(result.L[:, 2:]).max() < 1e-2 * np.abs(result.L).max()


@pytest.mark.parametrize("shape", ((1, 1), (1, 9), (9, 1), (2, 2), (3, 5)))
def test_tiny_matrices(shape: tuple[int, int]) -> None:
    Y = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        d = decompose(Y, min(shape))
        assert not decompose(0 * Y, min(shape)).low_rank.any()
    assert d.converged
    np.testing.assert_allclose(d.low_rank, Y, rtol=1e-10)


def test_nothing_but_outliers_is_said() -> None:
    """Heavy tails of full rank have no low-rank part: the run does not converge, and S holds nearly everything."""
    d, said = with_warnings(np.random.default_rng(0).standard_cauchy((80, 70)) ** 3, 2)
    assert not d.converged and d.reason in said[ConvergenceWarning]
    assert re.search("S holds 9[0-9]% of the entries", said[DiagnosisWarning])


@pytest.mark.parametrize("dtype", (np.float64, np.float32))
def test_rounding_of_large_entries_is_no_outlier(dtype: Any) -> None:
    """Rounding is relative to the entry, and entries of an exactly low-rank matrix differ in size."""
    rng = np.random.default_rng(0)
    X = np.outer(np.exp(rng.uniform(-1.2, 1.2, 300)), np.exp(rng.uniform(-1.2, 1.2, 250))).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        d = decompose(X, 1, tol=0, max_iter=20)
    assert np.linalg.norm(d.low_rank - X) < 4 * np.finfo(dtype).eps * np.linalg.norm(X)
    assert not d.outliers.any()


def test_result_of_an_over_specified_rank_is_a_start() -> None:
    X = planted((80, 60), rank=2, outlier_fraction=0, random_state=3).X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        d = decompose(X, 3)
        warm = decompose(X, 3, start=(d.L, d.R))
    assert np.linalg.norm(warm.low_rank - X) < 1e-7 * np.linalg.norm(X)


@pytest.mark.parametrize("spread", (2.0, 3.0))
@pytest.mark.parametrize("dtype", (np.float64, np.float32))
def test_heavy_tails_are_recovered(spread: float, dtype: Any) -> None:
    """An exact rank-1 matrix whose largest entries look like outliers next to the median."""
    rng = np.random.default_rng(0)
    X = np.outer(np.exp(rng.uniform(-spread, spread, 120)), np.exp(rng.uniform(-spread, spread, 90)))
    with pytest.warns(DiagnosisWarning, match="S is empty"):
        d = decompose(X.astype(dtype), 1)
    assert d.converged and not d.outliers.any()
    assert np.linalg.norm(d.low_rank - X) < (1e-10 if dtype is np.float64 else 1e-6) * np.linalg.norm(X)


@pytest.mark.parametrize("seed", range(3))
def test_integers_with_outliers_of_one_step_are_fitted_exactly(seed: int) -> None:
    """Below the step of integers there is no structure to find: a rank that is right was called too small."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-9, 10, (120, 2)) @ rng.integers(-9, 10, (2, 120))
    Y, hit = X.copy(), rng.random(X.shape) < 0.1
    Y[hit] += rng.integers(-99, 100, hit.sum())
    d = decompose(Y, 2)
    assert d.converged and np.linalg.norm(d.low_rank - X) < 1e-3 * np.linalg.norm(X)
